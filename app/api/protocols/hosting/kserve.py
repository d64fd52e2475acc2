"""KServe's protocol V1: GET /v1/models/{name} and POST /v1/models/{name}:predict.

``GET /v1/models`` is in vllm.py, because OpenAI's clients ask the same path.
"""

from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import Field

from app.api.body import read_body
from app.api.http_exchange import HttpRequest
from app.api.openapi import examples
from app.api.openapi.document import ERRORS, documented, example, path_parameters
from app.api.protocols.hosting.instances import InstancesRequest, answer_instances
from app.api.protocols.vllm import ServedModel, served_model
from app.api.routing import Route
from app.errors import ModelNotFound, NotReady, RateLimited, ShuttingDown, Unauthorized

router = APIRouter(prefix="/v1/models", tags=["compatibility"], route_class=Route)
classifying = APIRouter(prefix="/v1/models", tags=["compatibility"], route_class=Route)


class ModelStatus(ServedModel):
    """A served model: the fields of KServe and of OpenAI."""

    name: Annotated[str, Field(description="the model's name")]
    ready: Annotated[bool, Field(description="always true; otherwise the answer is an error")]


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
@classifying.post("/{name}:predict", responses=documented(*ERRORS), include_in_schema=False)
async def predict(request: HttpRequest) -> Response:
    """Labels, scores and logits, in the format of KServe's protocol V1.

    A bad text has its error in its place.
    """
    name = request.exchange.service.models.classifier(request.path_params["name"]).model.name
    body = await read_body(request, InstancesRequest)
    return await answer_instances(request, body, model=name)
