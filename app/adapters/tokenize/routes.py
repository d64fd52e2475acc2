"""POST /tokenize."""

from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import ConfigDict, Field, StrictBool
from typing_extensions import TypedDict

from app.adapter import Adapter
from app.adapters.tokenize.tokens import Tokens, tokens_steps
from app.api.body import read_body
from app.api.http_exchange import HttpRequest, JsonAnswer, TextRoute
from app.api.openapi import examples
from app.api.openapi.document import ERRORS, documented, documented_body, example
from app.api.openapi.schemas import Answered
from app.api.routes.classify import version
from app.config.settings import Settings
from app.engine.predictions import FailedItem, item
from app.errors import ServiceError
from app.validation import RequestBody, Texts, as_list


class TokenizeRoute(TextRoute):
    operation = "tokenize"


router = APIRouter(tags=["classification"], route_class=TokenizeRoute)

TOKENS = {
    "model": examples.VERSION,
    "results": [
        {
            "text": "@user I love this!",
            "tokens": ["[CLS]", "@", "user", "i", "love", "this", "!", "[SEP]"],
            "ids": [101, 1030, 5310, 1045, 2293, 2023, 999, 102],
            "offsets": [[0, 0], [0, 1], [1, 5], [6, 7], [8, 12], [13, 17], [17, 18], [0, 0]],
            "sequence_ids": [None, 0, 0, 0, 0, 0, 0, None],
            "count": 8,
            "truncated": False,
        },
        examples.EMPTY,
    ],
}


class TokenizeRequest(RequestBody):
    """One text, or a list of texts."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"inputs": ["@bob I love this!", ""]}]}
    )

    inputs: Texts = Field(description="one text, or a list of texts")
    model: str | None = Field(default=None, description="name of a served model")
    add_special_tokens: StrictBool = Field(
        default=True, description="false: leave out the special tokens, which the model also gets"
    )


class TokenizeResponse(TypedDict):
    """The tokens of the texts, and the model that they are for."""

    model: Answered
    results: Annotated[
        list[Tokens | FailedItem],
        Field(description="one item for each text, in the order of the texts"),
    ]


@router.post(
    "/tokenize",
    operation_id="tokenize",
    response_model=TokenizeResponse,
    responses={**example(TOKENS), **documented(*ERRORS)},
    openapi_extra=documented_body(TokenizeRequest),
)
async def tokenize(request: HttpRequest) -> Response:
    """Show the tokens of one text or several, as the model sees them. Nothing is classified.

    The model's preprocessing and truncation are applied first. `results` is always a list, in the
    order of the texts. A bad text of a list has its error in its place. If you send a single text
    and it is bad, the request fails with its error. All texts together may have at most half of
    `max_queue_tokens`.
    """
    body = await read_body(request, TokenizeRequest)
    texts = as_list(body.inputs)
    exchange, service = request.exchange, request.exchange.service
    exchange.check_number(len(texts))
    classifier = service.models.classifier(body.model)
    model = classifier.model
    exchange.asks(model.name, len(texts))
    steps = tokens_steps(
        model.tokenizer,
        texts,
        special=body.add_special_tokens,
        max_chars=service.settings.max_text_chars,
        max_tokens=classifier.request_tokens,
    )
    work = service.step_thread.run(steps, deadline=exchange.deadline)
    results = await exchange.while_connected(work)
    if not isinstance(body.inputs, list) and isinstance(results[0], ServiceError):
        raise results[0]
    if use := exchange.model_use:
        use.tokens = sum(r["count"] for r in results if not isinstance(r, ServiceError))
    response: TokenizeResponse = {
        "model": version(model),
        "results": [item(result) for result in results],
    }
    return JsonAnswer(response)


def register(settings: Settings) -> Adapter:
    """The route of tokens."""
    return Adapter(router.routes)
