"""KServe's protocol V1: GET /v1/models, GET /v1/models/{name}, POST /v1/models/{name}:predict.

The answers of the first two have the fields of OpenAI as well, whose clients ask the same paths.
"""

from typing import Annotated, Literal

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from pydantic import Field
from typing_extensions import TypedDict

from app.api.body import read_body
from app.api.http_exchange import HttpRequest
from app.api.openapi import examples
from app.api.openapi.document import ERRORS, documented, example, path_parameters
from app.api.protocols.instances import InstancesRequest, answer_instances
from app.api.routing import Route
from app.errors import ModelNotFound, NotReady, RateLimited, ShuttingDown, Unauthorized
from app.service import Service

router = APIRouter(prefix="/v1/models", tags=["compatibility"], route_class=Route)


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
    response_model=ServedModels,
    responses={**example(examples.LISTED), **documented(Unauthorized, RateLimited)},
)
async def models(request: HttpRequest) -> Response:
    """The served models, in the format that OpenAI's clients read."""
    service = request.exchange.service
    names = [*service.models.classifiers]
    listed: ServedModels = {
        "object": "list",
        "data": [served_model(service, name) for name in names],
        "models": names,
    }
    return JSONResponse(listed)


@router.get(
    "/{name}",
    operation_id="getModelV1",
    responses={
        **example(examples.STATUS),
        **documented(Unauthorized, ModelNotFound, RateLimited, NotReady, ShuttingDown),
    },
    openapi_extra=path_parameters("name"),
)
async def model(request: HttpRequest) -> ModelStatus:
    """Succeeds while you can send traffic for this model."""
    service = request.exchange.service
    classifier = service.models.classifier(request.path_params["name"])
    service.lifecycle.check()
    await classifier.health.check_ready()
    name = classifier.model.name
    return {**served_model(service, name), "name": name, "ready": True}


# Not in our OpenAPI document, where the path above would match it, too: `x:predict` may be a name.
@router.post("/{name}:predict", responses=documented(*ERRORS), include_in_schema=False)
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
