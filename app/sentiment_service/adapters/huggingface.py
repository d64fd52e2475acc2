"""POST /, compatible with Hugging Face's clients."""

from fastapi import APIRouter, Response

from sentiment_service.adapters.forms import TextClassification, best_labels
from sentiment_service.http.body import read_body
from sentiment_service.http.exchange import HttpRequest, JsonAnswer, TextRoute
from sentiment_service.http.openapi import FOREIGN_BODY
from sentiment_service.requests.service import Adapter

router = APIRouter(tags=["compatibility"], route_class=TextRoute)


@router.post("/", operation_id="classifyHuggingFace", openapi_extra=FOREIGN_BODY)
async def text_classification(request: HttpRequest) -> Response:
    """Hugging Face's inference servers: the labels of each text, the highest score first."""
    body = await read_body(request, TextClassification)
    ranked, done = await best_labels(request, body)
    return JsonAnswer(ranked, done.server_timing)


ADAPTER = Adapter(router.routes)
