"""Hugging Face's servers: POST /, and POST /predict of text-embeddings-inference (TEI)."""

from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Response
from pydantic import BaseModel, PlainValidator, StrictBool
from pydantic_core import PydanticCustomError

from sentiment_service import errors
from sentiment_service.adapters import forms
from sentiment_service.engine.options import TextOptions
from sentiment_service.engine.text.text_tokenizer import Text
from sentiment_service.http.routes import HttpRequest, JsonAnswer, TextRoute, read_body
from sentiment_service.requests.service import Adapter
from sentiment_service.requests.validation import as_list, parse_texts, text_or_pair
from sentiment_service.results import every_prediction

router = APIRouter(tags=["compatibility"], route_class=TextRoute)


@router.post("/", operation_id="classifyHuggingFace")
async def text_classification(request: HttpRequest) -> Response:
    """Hugging Face's inference servers: the labels of each text, the highest score first."""
    body = await read_body(request, forms.TextClassification)
    ranked, done = await forms.best_labels(request, body)
    return JsonAnswer(ranked, done.server_timing)


_ERROR_TYPES: dict[type[errors.ServiceError], str] = {
    errors.EmptyText: "Empty",
    errors.Overloaded: "Overloaded",
    errors.InferenceFailed: "Backend",
    errors.OutOfMemory: "Backend",
    errors.DeadlineExceeded: "Backend",
    errors.NotReady: "Unhealthy",
    errors.ShuttingDown: "Unhealthy",
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


class PredictRequest(BaseModel):
    """One text, or a batch of texts; other fields are ignored.

    ``["a", "b"]`` and ``[["a"], ["b"]]`` are two documents each, and ``[["a", "b"]]`` is one pair.
    ``raw_scores`` are logits. With ``truncate`` false, a text that is too long is refused.
    """

    inputs: Annotated[Text | list[Text], PlainValidator(_parse_inputs)]
    raw_scores: StrictBool = False
    truncate: StrictBool | None = None
    truncation_direction: Literal["right", "Right"] = "right"


FORMS = forms.ByField({"instances": forms.InstancesRequest}, otherwise=PredictRequest)


class PredictRoute(TextRoute):
    """A route whose errors have TEI's member."""

    @staticmethod
    def error_members(kind: type[errors.ServiceError], detail: str) -> dict[str, str]:
        return {"error_type": _ERROR_TYPES.get(kind, "Validation")}


predict_router = APIRouter(tags=["compatibility"], route_class=PredictRoute)


@predict_router.post("/predict", operation_id="predictTei")
async def predict(request: HttpRequest) -> Response:
    """text-embeddings-inference, or with `instances` Vertex AI, often given the same path."""
    body = await read_body(request, FORMS)
    if isinstance(body, forms.InstancesRequest):
        return await forms.answer_instances(request, body)
    body = cast(PredictRequest, body)
    texts = as_list(body.inputs)
    options = TextOptions("error" if body.truncate is False else "truncate")
    done = await request.exchange.classify(texts, options=options)
    predictions = every_prediction(done.outcomes)
    batch = [forms.ranking(p["logits" if body.raw_scores else "scores"]) for p in predictions]
    return JsonAnswer(batch if isinstance(body.inputs, list) else batch[0], done.server_timing)


ADAPTER = Adapter([*router.routes, *predict_router.routes], instances=frozenset({"/predict"}))
