"""POST /classify, and what other routes that classify share with it."""

from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import Field
from typing_extensions import TypedDict

from sentiment_service.engine.model.model import ModelVersion
from sentiment_service.http.body import read_body
from sentiment_service.http.exchange import HttpRequest, JsonAnswer, TextRoute
from sentiment_service.http.openapi import (
    EMPTY,
    ERRORS,
    VERSION,
    documented,
    documented_body,
    example,
)
from sentiment_service.requests.validation import ClassifyRequest
from sentiment_service.results import FailedItem, Prediction, items

router = APIRouter(tags=["classification"], route_class=TextRoute)

PREDICTION = {
    "label": "positive",
    "score": 0.899,
    "scores": {"negative": 0.061, "neutral": 0.04, "positive": 0.899},
    "logits": {"negative": -0.946, "neutral": -1.47, "positive": 2.464},
    "tokens": 6,
    "truncated": False,
    "polarity": 0.838,
}
CLASSIFIED = {
    "model": VERSION,
    "labels": ["negative", "neutral", "positive"],
    "results": [PREDICTION, EMPTY],
}

Answered = Annotated[ModelVersion, Field(description="the model that answered")]


class ClassifyResponse(TypedDict):
    """The results of the texts, and the model that they are from."""

    model: Answered
    labels: Annotated[
        list[str], Field(description="the model's labels, in the order of its logits")
    ]
    results: Annotated[
        list[Prediction | FailedItem],
        Field(description="one item for each text, in the order of the texts"),
    ]


@router.post(
    "/classify",
    operation_id="classify",
    response_model=ClassifyResponse,
    responses={**example(CLASSIFIED), **documented(*ERRORS)},
    openapi_extra=documented_body(ClassifyRequest),
)
async def classify(request: HttpRequest) -> Response:
    """Classify one text or several: label, scores and logits.

    `results` is always a list, in the order of the texts. If one text of a list is bad, its place
    in `results` has its error, and the other texts are still classified. If you send a single
    text and it is bad, the request fails with its error.
    """
    return await answer(request, await read_body(request, ClassifyRequest))


async def answer(request: HttpRequest, body: ClassifyRequest) -> Response:
    """The answer to a request in our own format."""
    single = not isinstance(body.inputs, list)
    texts = body.inputs if isinstance(body.inputs, list) else [body.inputs]
    done = await request.exchange.classify(texts, model=body.model, options=body.options)
    response: ClassifyResponse = {
        "model": done.model.version,
        "labels": done.model.labels,
        "results": items(done.outcomes, single=single),
    }
    return JsonAnswer(response, done.server_timing)
