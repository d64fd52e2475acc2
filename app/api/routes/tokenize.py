"""POST /tokenize."""

from fastapi import APIRouter, Response

from app.api.answers import JsonAnswer, version
from app.api.body import read_body
from app.api.http_exchange import HttpRequest
from app.api.openapi import examples
from app.api.openapi.document import ERRORS, documented, documented_body, example
from app.api.openapi.schemas import TokenizeRequest, TokenizeResponse
from app.api.routing import Route
from app.api.validation import as_list
from app.engine.predictions import item
from app.engine.text.tokens import tokens_steps
from app.errors import ServiceError

router = APIRouter(tags=["classification"], route_class=Route)


@router.post(
    "/tokenize",
    operation_id="tokenize",
    response_model=TokenizeResponse,
    responses={**example(examples.TOKENS), **documented(*ERRORS)},
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
    work = service.worker.run(steps, deadline=exchange.deadline)
    results = await exchange.while_connected(work)
    if not isinstance(body.inputs, list) and isinstance(results[0], ServiceError):
        raise results[0]
    if exchange.work is not None:
        exchange.work.tokens = sum(r["count"] for r in results if not isinstance(r, ServiceError))
    response: TokenizeResponse = {
        "model": version(model),
        "results": [item(result) for result in results],
    }
    return JsonAnswer(response, {})
