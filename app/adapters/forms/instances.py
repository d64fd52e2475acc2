"""{"instances": […]} → {"predictions": […]}: the format of Vertex AI and KServe V1."""

from typing import Annotated, Any, NotRequired

from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field, PlainValidator
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from app.adapters.forms.common import TextParameters
from app.api.http_exchange import HttpRequest, JsonAnswer
from app.api.openapi import examples
from app.api.routes.classify import whole_failure
from app.engine.predictions import FailedItem, Prediction, item
from app.engine.text.pairs import Text
from app.validation import NonEmpty, text_or_pair

TEXT_FIELDS = ("text", "inputs", "content")
ACCEPTED = f"a string, or an object with a string in one of the fields {', '.join(TEXT_FIELDS)}"


def text_of(value: Any) -> Text | None:
    """The text that a record of a platform holds: the value itself, or one of its fields.

    A record with ``text_pair`` holds a pair. None means that the record holds something else.
    """
    text, text_pair = value, None
    if isinstance(value, dict):
        text = next((value[name] for name in TEXT_FIELDS if name in value), None)
        text_pair = value.get("text_pair")
    return text_or_pair(text, text_pair)


def _texts(value: Any) -> list[Text]:
    if not isinstance(value, list) or not value:
        raise PydanticCustomError("instances", "must be a list of at least one text")
    texts = []
    for index, instance in enumerate(value):
        if (text := text_of(instance)) is None:
            raise PydanticCustomError(
                "instances",
                "item {index}, counted from 0, must be {accepted}",
                {"index": index, "accepted": ACCEPTED},
            )
        texts.append(text)
    return texts


class TextObject(TypedDict):
    """A text in an object. The fields `inputs` and `content` are accepted in its place.

    Only models with `text_pairs` (see `GET /models`) take a second text.
    """

    text: Annotated[str, Field(description="the text")]
    text_pair: NotRequired[Annotated[str | None, Field(description="the second text")]]


PREDICTIONS = {"predictions": [examples.PREDICTION, examples.EMPTY]}
EXAMPLE: JsonDict = {"instances": ["I love this!", ""]}


class InstancesRequest(BaseModel):
    """A list of texts; other fields are ignored."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    instances: Annotated[
        list[Text],
        PlainValidator(_texts, json_schema_input_type=NonEmpty[str] | NonEmpty[TextObject]),
    ] = Field(description="texts, or objects with a text")
    parameters: TextParameters | None = Field(default=None, description="for all texts")


class InstancesResponse(TypedDict):
    """The results of the instances."""

    predictions: Annotated[
        list[Prediction | FailedItem],
        Field(description="one item for each instance, in their order"),
    ]


async def answer_instances(
    request: HttpRequest, body: InstancesRequest, *, model: str | None = None
) -> Response:
    """Classify the instances. A bad text has its error in its place.

    Raises:
        ServiceError: ``model`` is not served, or the request as a whole failed.
    """
    options = (body.parameters or TextParameters()).options
    done = await request.exchange.classify(body.instances, model=model, options=options)
    if error := whole_failure(done.outcomes, single=False):
        raise error
    response: InstancesResponse = {"predictions": [item(outcome) for outcome in done.outcomes]}
    return JsonAnswer(response, done.server_timing)
