"""POST /predict, compatible with text-embeddings-inference (TEI) and with Vertex AI."""

from typing import Annotated, Any, Literal, NotRequired, cast

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, StrictBool, WithJsonSchema
from pydantic_core import PydanticCustomError

from sentiment_service.adapter import Adapter
from sentiment_service.adapters.forms.common import RANKED, ByField, LabelScore, ranking
from sentiment_service.adapters.forms.instances import InstancesRequest, answer_instances
from sentiment_service.api.body import read_body
from sentiment_service.api.http_exchange import HttpRequest, JsonAnswer, TextRoute
from sentiment_service.api.openapi.document import ERRORS, documented, documented_body, example
from sentiment_service.engine.text.encoding import TextOptions
from sentiment_service.engine.text.pairs import Text
from sentiment_service.errors import (
    DeadlineExceeded,
    EmptyText,
    InferenceFailed,
    NotReady,
    OutOfMemory,
    Overloaded,
    ServiceError,
    ShuttingDown,
)
from sentiment_service.problems import Problem
from sentiment_service.results import every_prediction
from sentiment_service.validation import (
    NonEmpty,
    PairObject,
    SingleText,
    as_list,
    parse_texts,
    text_or_pair,
)

ErrorType = Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Empty"]
_ERROR_TYPES: dict[type[ServiceError], ErrorType] = {
    EmptyText: "Empty",
    Overloaded: "Overloaded",
    InferenceFailed: "Backend",
    OutOfMemory: "Backend",
    DeadlineExceeded: "Backend",
    NotReady: "Unhealthy",
    ShuttingDown: "Unhealthy",
}


def _parse_inputs(value: Any) -> Text | list[Text]:
    """The texts. A batch may be a list of lists: of one text each, or of two for a pair."""
    if not isinstance(value, list) or not any(isinstance(item, list) for item in value):
        return parse_texts(value)
    texts = []
    for row in value:
        complete = isinstance(row, list) and len(row) in (1, 2) and None not in row
        text = text_or_pair(*row) if complete else None
        if text is None:
            raise PydanticCustomError(
                "batch", "must be a list of lists of one string each, or of two for a pair"
            )
        texts.append(text)
    return texts


Inputs = Annotated[
    Text | list[Text],
    PlainValidator(
        _parse_inputs,
        json_schema_input_type=SingleText
        | NonEmpty[SingleText]
        | NonEmpty[PairObject]
        | NonEmpty[Annotated[list[SingleText], Field(min_length=1, max_length=2)]],
    ),
]


class PredictRequest(BaseModel):
    """One text, or a batch of texts; other fields are ignored."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"inputs": "I love this!"}]})

    inputs: Inputs = Field(
        description='one text, or a batch: ["a", "b"] and [["a"], ["b"]] are two documents each, '
        'and [["a", "b"]] is one pair'
    )
    raw_scores: StrictBool = Field(default=False, description="logits in the place of scores")
    truncate: StrictBool | None = Field(
        default=None, description="false: refuse a text of more tokens than the model takes"
    )
    truncation_direction: Annotated[
        Literal["right", "Right"], WithJsonSchema({"type": "string", "const": "right"})
    ] = Field(default="right", description="only 'right' is accepted: the end of a text is cut off")


FORMS = ByField({"instances": InstancesRequest}, otherwise=PredictRequest)


class PredictProblem(Problem):
    """An error. ``error_type`` is TEI's, and missing if no route was reached (for example 401)."""

    error_type: NotRequired[Annotated[ErrorType, Field(description="the kind of error in TEI")]]


def _error_type(kind: type[ServiceError], detail: str) -> dict[str, ErrorType]:
    return {"error_type": _ERROR_TYPES.get(kind, "Validation")}


class PredictRoute(TextRoute):
    """A route whose errors have TEI's member."""

    error_members = staticmethod(_error_type)


router = APIRouter(tags=["compatibility"], route_class=PredictRoute)


@router.post(
    "/predict",
    operation_id="predictTei",
    response_model=list[LabelScore] | list[list[LabelScore]],
    responses={
        **example(RANKED),
        **documented(*ERRORS, form=PredictProblem, members=_error_type),
    },
    openapi_extra=documented_body(PredictRequest),
)
async def predict(request: HttpRequest) -> Response:
    """Labels and scores in the format of text-embeddings-inference, with the highest first.

    One text is answered with a list, a batch with a list of lists. If a text is bad, the answer is
    the error of the first bad text. A body with `instances` is answered in the format of Vertex AI,
    which is often given the same path.
    """
    body = await read_body(request, FORMS)
    if isinstance(body, InstancesRequest):
        return await answer_instances(request, body)
    body = cast(PredictRequest, body)
    texts = as_list(body.inputs)
    options = TextOptions("error" if body.truncate is False else "truncate")
    done = await request.exchange.classify(texts, model=None, options=options)
    predictions = every_prediction(done.outcomes)
    batch = [ranking(p["logits" if body.raw_scores else "scores"]) for p in predictions]
    return JsonAnswer(batch if isinstance(body.inputs, list) else batch[0], done.server_timing)


ADAPTER = Adapter(router.routes, instances=frozenset({"/predict"}))
