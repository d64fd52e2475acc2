"""Version 2 of the Open Inference Protocol over HTTP, with binary tensors."""

from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import Field
from typing_extensions import TypedDict

from app.adapter import Adapter
from app.adapters.forms.open_inference.tensors import (
    SERVER,
    VERSION,
    ModelMetadata,
    metadata_of,
    of_version,
)
from app.adapters.open_inference.bodies import infer_response, read_inference_request
from app.api.http_exchange import HttpRequest, Route, TextRoute
from app.api.openapi import examples
from app.api.openapi.document import ERRORS, documented, example, path_parameters
from app.engine.classifier import Classifier
from app.engine.predictions import every_prediction
from app.engine.text.encoding import TextOptions
from app.errors import ModelNotFound, NotReady, RateLimited, ShuttingDown, Unauthorized
from app.limits import Paths, PathSet

router = APIRouter(prefix="/v2", tags=["compatibility"], route_class=Route)
# Not in our OpenAPI document: JSON Schema cannot say that data must have as many texts as shape
# says, nor that bytes may follow the JSON. The protocol has its own description.
infer_router = APIRouter(prefix="/v2", include_in_schema=False, route_class=TextRoute)


class ServerMetadata(TypedDict):
    """Name and version of the service, and the extensions of the protocol that it has."""

    name: Annotated[str, Field(description="always sentiment-service")]
    version: Annotated[str, Field(description="of the service")]
    extensions: Annotated[list[str], Field(description="extensions of the protocol")]


class Live(TypedDict):
    """The process works."""

    live: Annotated[bool, Field(description="always true; otherwise the answer is an error")]


class Ready(TypedDict):
    """The service is ready for requests."""

    ready: Annotated[bool, Field(description="always true; otherwise the answer is an error")]


class ModelReady(Ready):
    """The model is ready for requests."""

    name: Annotated[str, Field(description="the model's name")]


SERVER_EXAMPLE = {
    "name": "sentiment-service",
    "version": "0.2.0",
    "extensions": ["binary_tensor_data"],
}
METADATA = {
    "name": examples.MODEL,
    "versions": ["1"],
    "platform": "onnxruntime_onnx",
    "inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1]}],
    "outputs": [
        {"name": "label", "datatype": "BYTES", "shape": [-1]},
        {"name": "score", "datatype": "FP32", "shape": [-1]},
        {"name": "logits", "datatype": "FP32", "shape": [-1, 3]},
        {"name": "scores", "datatype": "FP32", "shape": [-1, 3]},
        {"name": "polarity", "datatype": "FP32", "shape": [-1]},
    ],
    "parameters": {"labels": examples.LABELS},
}

_NAMED = path_parameters("name")
_VERSIONED = path_parameters("name", "version")
_METADATA = {
    **example(METADATA),
    **documented(Unauthorized, ModelNotFound, RateLimited, NotReady),
}
_READY = {
    **example({"ready": True, "name": examples.MODEL}),
    **documented(Unauthorized, ModelNotFound, RateLimited, NotReady, ShuttingDown),
}


@router.get(
    "",
    operation_id="getServerV2",
    responses={**example(SERVER_EXAMPLE), **documented(Unauthorized, RateLimited)},
)
async def server_metadata(request: HttpRequest) -> ServerMetadata:
    """Name and version of the service, and the extensions of the protocol that it has."""
    return {
        "name": SERVER,
        "version": request.exchange.service.version,
        "extensions": ["binary_tensor_data"],
    }


@router.get(
    "/health/live",
    operation_id="checkLiveV2",
    responses={**example({"live": True}), **documented(NotReady)},
)
async def server_live(request: HttpRequest) -> Live:
    """Succeeds if the process works or can recover by itself; otherwise restart the process."""
    request.exchange.service.check_live()
    return {"live": True}


@router.get(
    "/health/ready",
    operation_id="checkReadyV2",
    responses={**example({"ready": True}), **documented(NotReady, ShuttingDown)},
)
async def server_ready(request: HttpRequest) -> Ready:
    """Succeeds while you can send traffic.

    This means that the models are warm, inference works, and shutdown has not begun.
    """
    await request.exchange.service.check_ready()
    return {"ready": True}


@router.get(
    "/models/{name}/versions/{version}",
    operation_id="getModelVersionV2",
    responses=_METADATA,
    openapi_extra=_VERSIONED,
)
@router.get("/models/{name}", operation_id="getModelV2", responses=_METADATA, openapi_extra=_NAMED)
async def model_metadata(request: HttpRequest) -> ModelMetadata:
    """The model's tensors, and its labels in the order of the logits and scores."""
    return metadata_of(served(request).model)


@router.get(
    "/models/{name}/versions/{version}/ready",
    operation_id="checkModelVersionReadyV2",
    responses=_READY,
    openapi_extra=_VERSIONED,
)
@router.get(
    "/models/{name}/ready", operation_id="checkModelReadyV2", responses=_READY, openapi_extra=_NAMED
)
async def model_ready(request: HttpRequest) -> ModelReady:
    """Succeeds while you can send traffic for this model."""
    classifier = served(request)
    request.exchange.service.lifecycle.check()
    await classifier.health.check_ready()
    return {"ready": True, "name": classifier.model.name}


@infer_router.post("/models/{name}/versions/{version}/infer", responses=documented(*ERRORS))
@infer_router.post("/models/{name}/infer", responses=documented(*ERRORS))
async def infer(request: HttpRequest) -> Response:
    """Labels, scores and logits of a tensor of texts.

    The texts may follow the JSON as bytes, and so may the outputs in the answer: this is the
    protocol's binary tensor data extension. If a text is bad, the answer is the error of the
    first bad text.
    """
    name = served(request).model.name
    body, texts = await read_inference_request(request)
    options = TextOptions(body.parameters.overflow)
    done = await request.exchange.classify(texts, model=name, options=options)
    timing = {"server-timing": done.server_timing}
    return infer_response(body, done.model, every_prediction(done.outcomes), timing)


def served(request: HttpRequest) -> Classifier:
    """The classifier that the path names.

    Raises:
        ModelNotFound: no model has that name, or the model does not have that version.
    """
    version = request.path_params.get("version", VERSION)
    return of_version(request.exchange.service, request.path_params["name"], version)


ADAPTER = Adapter(
    [*router.routes, *infer_router.routes],
    Paths(probes=PathSet({"/v2/health/live", "/v2/health/ready"})),
)
