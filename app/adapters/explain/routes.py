"""POST /explain."""

from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from app.adapter import Adapter
from app.adapters.explain.explanation import Word, explain_text
from app.api.body import read_body
from app.api.http_exchange import HttpRequest, JsonAnswer, TextRoute
from app.api.openapi import examples
from app.api.openapi.document import ERRORS, documented, documented_body, example
from app.api.openapi.schemas import Answered
from app.api.routes.classify import version
from app.config.settings import Settings
from app.validation import RequestBody, Text


class ExplainRoute(TextRoute):
    operation = "explain"


router = APIRouter(tags=["classification"], route_class=ExplainRoute)

EXPLAINED = {
    "model": examples.VERSION,
    "label": "positive",
    "score": 0.482,
    "tokens": 10,
    "truncated": False,
    "words": [
        {"start": 0, "end": 1, "word": "I", "contribution": 0.005},
        {"start": 2, "end": 6, "word": "love", "contribution": 0.449},
        {"start": 7, "end": 12, "word": "this,", "contribution": 0.247},
        {"start": 13, "end": 16, "word": "but", "contribution": -0.342},
        {"start": 17, "end": 19, "word": "it", "contribution": -0.163},
        {"start": 20, "end": 22, "word": "is", "contribution": 0.025},
        {"start": 23, "end": 32, "word": "expensive", "contribution": -0.396},
    ],
}


class ExplainRequest(RequestBody):
    """One text."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"inputs": "I love this, but it is expensive"}]}
    )

    inputs: Text = Field(description="the text")
    model: str | None = Field(default=None, description="name of a served model")


class ExplainResponse(TypedDict):
    """The result of the text, and what each of its words contributes to it."""

    model: Answered
    label: Annotated[str, Field(description="the label with the highest score")]
    score: Annotated[float, Field(description="its score")]
    tokens: Annotated[
        int, Field(description="tokens of the text, special ones included, before truncation")
    ]
    truncated: Annotated[bool, Field(description="whether the end of the text was cut off")]
    words: Annotated[
        list[Word], Field(description="one item for each word, in the order of the text")
    ]


@router.post(
    "/explain",
    operation_id="explain",
    response_model=ExplainResponse,
    responses={**example(EXPLAINED), **documented(*ERRORS)},
    openapi_extra=documented_body(ExplainRequest),
)
async def explain(request: HttpRequest) -> Response:
    """Explain what each word of a text contributes to its label.

    The text is classified again without each word in turn. A word that speaks for the label has a
    contribution above 0, and a word that speaks against it has one below 0. A text may have at
    most 128 words and 4,000 characters. All copies of the text, each without one word, may
    together have at most half of `max_queue_tokens`.
    """
    body = await read_body(request, ExplainRequest)
    exchange = request.exchange
    classifier = exchange.service.models.classifier(body.model)
    exchange.asks(classifier.model.name, 1)
    explaining = explain_text(classifier, body.inputs, deadline=exchange.deadline)
    done, whole, words = await exchange.while_connected(explaining)
    exchange.classified(done, [whole])
    response: ExplainResponse = {
        "model": version(done.model),
        "label": whole["label"],
        "score": whole["score"],
        "tokens": whole["tokens"],
        "truncated": whole["truncated"],
        "words": words,
    }
    return JsonAnswer(response, done.server_timing)


def register(settings: Settings) -> Adapter:
    """The route of explanations."""
    return Adapter(router.routes)
