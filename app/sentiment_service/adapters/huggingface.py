"""POST /, compatible with Hugging Face's clients."""

from fastapi import APIRouter, Response

from sentiment_service.adapter import Adapter
from sentiment_service.adapters.forms.common import RANKED, LabelScore
from sentiment_service.adapters.forms.pipeline import TextClassification, best_labels
from sentiment_service.api.body import read_body
from sentiment_service.api.http_exchange import HttpRequest, JsonAnswer, TextRoute
from sentiment_service.api.openapi.document import ERRORS, documented, documented_body, example

router = APIRouter(tags=["compatibility"], route_class=TextRoute)


@router.post(
    "/",
    operation_id="classifyHuggingFace",
    response_model=list[list[LabelScore]],
    responses={**example([RANKED[:2]]), **documented(*ERRORS)},
    openapi_extra=documented_body(TextClassification),
)
async def text_classification(request: HttpRequest) -> Response:
    """Labels and scores, in the format of Hugging Face's inference servers.

    The answer has one list for each text, with the highest score first. If a text is bad, the
    answer is the error of the first bad text.
    """
    body = await read_body(request, TextClassification)
    ranked, done = await best_labels(request, body)
    return JsonAnswer(ranked, done.server_timing)


ADAPTER = Adapter(router.routes)
