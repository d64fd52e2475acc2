"""The models for clients of OpenAI's API, and KServe's protocol V1."""

from typing import Any

from fastapi import APIRouter, Response

from sentiment_service.adapters.forms import InstancesRequest, answer_instances
from sentiment_service.http.body import read_body
from sentiment_service.http.exchange import HttpRequest, Route, TextRoute
from sentiment_service.http.openapi import NAME_IN_PATH
from sentiment_service.requests.service import Adapter, Service

models_router = APIRouter(prefix="/v1/models", tags=["compatibility"], route_class=Route)
# Not in our OpenAPI document, where GET /v1/models/{name} would match it, too: `x:predict` may be a
# name.
predict_router = APIRouter(prefix="/v1/models", include_in_schema=False, route_class=TextRoute)


@models_router.get("", operation_id="listModelsV1", response_model=None)
async def models(request: HttpRequest) -> dict[str, Any]:
    """OpenAI's list of models, and KServe's."""
    service = request.exchange.service
    names = [*service.models.classifiers]
    listed = [served_model(service, name) for name in names]
    return {"object": "list", "data": listed, "models": names}


@models_router.get(
    "/{name}", operation_id="getModelV1", response_model=None, openapi_extra=NAME_IN_PATH
)
async def model(request: HttpRequest) -> dict[str, Any]:
    """OpenAI's description of a model, and KServe's: succeeds while you can send traffic for it."""
    service = request.exchange.service
    classifier = service.models.classifier(request.path_params["name"])
    service.lifecycle.check()
    await classifier.health.check_ready()
    name = classifier.model.name
    return {**served_model(service, name), "name": name, "ready": True}


@predict_router.post("/{name}:predict")
async def predict(request: HttpRequest) -> Response:
    """Labels, scores and logits, in the format of KServe's protocol V1.

    A bad text has its error in its place.
    """
    name = request.exchange.service.models.classifier(request.path_params["name"]).model.name
    body = await read_body(request, InstancesRequest)
    return await answer_instances(request, body, model=name)


def served_model(service: Service, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": service.started_at,
        "owned_by": "sentiment-service",
    }


ADAPTER = Adapter([*models_router.routes, *predict_router.routes])
