"""{"instances": […]} → {"predictions": […]}: the format of Vertex AI and KServe V1."""

from typing import Annotated, Any

from fastapi import Response
from pydantic import BaseModel, PlainValidator
from pydantic_core import PydanticCustomError

from sentiment_service.adapters.forms.common import TextParameters
from sentiment_service.api.http_exchange import HttpRequest, JsonAnswer
from sentiment_service.engine.text.pairs import Text
from sentiment_service.results import item, whole_failure
from sentiment_service.validation import text_or_pair

TEXT_FIELDS = ("text", "inputs", "content")
ACCEPTED = f"a string, or an object with a string in one of the fields {', '.join(TEXT_FIELDS)}"


def text_of_record(value: Any) -> Text | None:
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
        if (text := text_of_record(instance)) is None:
            raise PydanticCustomError(
                "instances",
                "item {index}, counted from 0, must be {accepted}",
                {"index": index, "accepted": ACCEPTED},
            )
        texts.append(text)
    return texts


class InstancesRequest(BaseModel):
    """A list of texts, or of objects with a text; other fields are ignored."""

    instances: Annotated[list[Text], PlainValidator(_texts)]
    parameters: TextParameters | None = None


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
    predictions = [item(outcome) for outcome in done.outcomes]
    return JsonAnswer({"predictions": predictions}, done.server_timing)
