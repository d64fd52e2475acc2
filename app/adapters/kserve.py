"""KServe V1: POST /v1/models/{name}:predict. ``model_list.py`` has its GET /v1/models."""

from fastapi import APIRouter, Response

from app.adapter import Adapter
from app.adapters.forms.instances import InstancesRequest, answer_instances
from app.api.body import read_body
from app.api.http_exchange import HttpRequest, TextRoute
from app.api.openapi.document import ERRORS, documented

# Not in our OpenAPI document, where GET /v1/models/{name} would match it, too: `x:predict` may be a
# name.
router = APIRouter(prefix="/v1/models", include_in_schema=False, route_class=TextRoute)


@router.post("/{name}:predict", responses=documented(*ERRORS))
async def predict(request: HttpRequest) -> Response:
    """Labels, scores and logits, in the format of KServe's protocol V1.

    A bad text has its error in its place.
    """
    name = request.exchange.service.models.classifier(request.path_params["name"]).model.name
    body = await read_body(request, InstancesRequest)
    return await answer_instances(request, body, model=name)


ADAPTER = Adapter(router.routes)
