"""POST /classify."""

from fastapi import APIRouter, Response

from app.api.answers import JsonAnswer, timing, version, whole_failure
from app.api.body import read_body
from app.api.http_exchange import HttpRequest
from app.api.openapi import examples
from app.api.openapi.document import ERRORS, documented, documented_body, example
from app.api.openapi.schemas import (
    ClassifyRequest,
    ClassifyResponse,
)
from app.api.routing import TextRoute
from app.engine.predictions import item
from app.engine.text.encoding import TextOptions
from app.validation import as_list

router = APIRouter(tags=["classification"], route_class=TextRoute)


@router.post(
    "/classify",
    operation_id="classify",
    response_model=ClassifyResponse,
    responses={**example(examples.CLASSIFIED), **documented(*ERRORS)},
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
    """The answer to a request in our own format.

    Raises:
        ServiceError: its only text is bad, or the request as a whole failed.
    """
    single = not isinstance(body.inputs, list)
    texts = as_list(body.inputs)
    options = TextOptions(body.overflow, body.split, body.language)
    done = await request.exchange.classify(texts, model=body.model, options=options)
    if error := whole_failure(done.outcomes, single=single):
        raise error
    response: ClassifyResponse = {
        "model": version(done.model),
        "labels": done.model.labels,
        "results": [item(outcome) for outcome in done.outcomes],
    }
    return JsonAnswer(response, timing(done))
