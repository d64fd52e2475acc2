"""/v1/models: the models for clients of OpenAI's API, and the protocol V1 of KServe."""

from typing import Annotated, Literal

from fastapi import APIRouter, Response
from pydantic import Field
from typing_extensions import TypedDict

from sentiment_service.adapter import Adapter
from sentiment_service.adapters.forms.instances import InstancesRequest, answer_instances
from sentiment_service.api.body import read_body
from sentiment_service.api.http_exchange import HttpRequest, Route, TextRoute
from sentiment_service.api.openapi import examples
from sentiment_service.api.openapi.document import ERRORS, NAME_IN_PATH, documented, example
from sentiment_service.errors import (
    ModelNotFound,
    NotReady,
    RateLimited,
    ShuttingDown,
    Unauthorized,
)
from sentiment_service.service import Service

router = APIRouter(prefix="/v1/models", tags=["compatibility"], route_class=Route)
# Not in our OpenAPI document, where GET /v1/models/{name} would match it, too: `x:predict` may be a
# name.
predict_router = APIRouter(prefix="/v1/models", include_in_schema=False, route_class=TextRoute)

SERVED = {
    "id": examples.MODEL,
    "object": "model",
    "created": 1_767_225_600,
    "owned_by": "sentiment-service",
}
LISTED = {"object": "list", "data": [SERVED], "models": [examples.MODEL]}
STATUS = {**SERVED, "name": examples.MODEL, "ready": True}


class ServedModel(TypedDict):
    """A model name that requests may send as ``model``."""

    id: Annotated[str, Field(description="the model's name")]
    object: Annotated[Literal["model"], Field(description="always model")]
    created: Annotated[int, Field(description="when the service started, in Unix seconds")]
    owned_by: Annotated[str, Field(description="always sentiment-service")]


class ServedModels(TypedDict):
    """The served models. The first one answers requests that name no model."""

    object: Annotated[Literal["list"], Field(description="always list")]
    data: Annotated[list[ServedModel], Field(description="the default model first")]
    models: Annotated[list[str], Field(description="their names again, for KServe's clients")]


class ModelStatus(ServedModel):
    """A served model: the fields of KServe and of OpenAI."""

    name: Annotated[str, Field(description="the model's name")]
    ready: Annotated[bool, Field(description="always true; otherwise the answer is an error")]


@router.get(
    "",
    operation_id="listModelsV1",
    responses={**example(LISTED), **documented(Unauthorized, RateLimited)},
)
async def models(request: HttpRequest) -> ServedModels:
    """The served models, in the format that OpenAI's clients read."""
    service = request.exchange.service
    names = [*service.models.classifiers]
    listed = [served_model(service, name) for name in names]
    return {"object": "list", "data": listed, "models": names}


@router.get(
    "/{name}",
    operation_id="getModelV1",
    responses={
        **example(STATUS),
        **documented(Unauthorized, ModelNotFound, RateLimited, NotReady, ShuttingDown),
    },
    openapi_extra=NAME_IN_PATH,
)
async def model(request: HttpRequest) -> ModelStatus:
    """Succeeds while you can send traffic for this model."""
    service = request.exchange.service
    classifier = service.models.classifier(request.path_params["name"])
    service.lifecycle.check()
    await classifier.health.check_ready()
    name = classifier.model.name
    return {**served_model(service, name), "name": name, "ready": True}


@predict_router.post("/{name}:predict", responses=documented(*ERRORS))
async def predict(request: HttpRequest) -> Response:
    """Labels, scores and logits, in the format of KServe's protocol V1.

    A bad text has its error in its place.
    """
    name = request.exchange.service.models.classifier(request.path_params["name"]).model.name
    body = await read_body(request, InstancesRequest)
    return await answer_instances(request, body, model=name)


def served_model(service: Service, name: str) -> ServedModel:
    """The fields of a model that OpenAI's clients read."""
    return {
        "id": name,
        "object": "model",
        "created": service.started_at,
        "owned_by": "sentiment-service",
    }


ADAPTER = Adapter([*router.routes, *predict_router.routes])
