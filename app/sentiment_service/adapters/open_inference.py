"""Version 2 of the Open Inference Protocol over HTTP, with binary tensors."""

import json
import re
from typing import Any

from fastapi import APIRouter, Response

from sentiment_service.adapters import tensors
from sentiment_service.engine.classifier import Classification, Classifier
from sentiment_service.engine.options import TextOptions
from sentiment_service.errors import InvalidRequest, UnsupportedMediaType
from sentiment_service.http import routes
from sentiment_service.requests.limits import Paths, PathSet
from sentiment_service.requests.service import Adapter

# Not in our OpenAPI document: the protocol has its own description.
router = APIRouter(prefix="/v2", include_in_schema=False, route_class=routes.Route)
infer_router = APIRouter(prefix="/v2", include_in_schema=False, route_class=routes.TextRoute)

JSON_LENGTH = "inference-header-content-length"
# tritonclient sends JSON without a media type.
_MEDIA_TYPES = ("", "application/json", "application/octet-stream")


@router.get("")
async def server_metadata(request: routes.HttpRequest) -> dict[str, Any]:
    return {
        "name": tensors.SERVER,
        "version": request.exchange.service.version,
        "extensions": ["binary_tensor_data"],
    }


@router.get("/health/live")
async def server_live(request: routes.HttpRequest) -> dict[str, Any]:
    request.exchange.service.check_live()
    return {"live": True}


@router.get("/health/ready")
async def server_ready(request: routes.HttpRequest) -> dict[str, Any]:
    await request.exchange.service.check_ready()
    return {"ready": True}


@router.get("/models/{name}/versions/{version}")
@router.get("/models/{name}")
async def model_metadata(request: routes.HttpRequest) -> dict[str, Any]:
    """The model's tensors, and its labels in the order of the logits and scores."""
    model = served(request).model
    return {**tensors.metadata_of(model), "parameters": {"labels": model.labels}}


@router.get("/models/{name}/versions/{version}/ready")
@router.get("/models/{name}/ready")
async def model_ready(request: routes.HttpRequest) -> dict[str, Any]:
    classifier = served(request)
    request.exchange.service.lifecycle.check()
    await classifier.health.check_ready()
    return {"ready": True, "name": classifier.model.name}


@infer_router.post("/models/{name}/versions/{version}/infer")
@infer_router.post("/models/{name}/infer")
async def infer(request: routes.HttpRequest) -> Response:
    """Labels, scores and logits of a tensor of texts, or the error of the first bad text.

    The texts may follow the JSON as bytes, and so may the outputs in the answer.
    """
    name = served(request).model.name
    body, texts = await _read(request)
    options = TextOptions(body.parameters.overflow)
    done = await request.exchange.classify(texts, model=name, options=options)
    response = _answer(body, done)
    response.headers["server-timing"] = done.server_timing
    return response


def served(request: routes.HttpRequest) -> Classifier:
    named = request.path_params
    return tensors.of_version(request.exchange.service, named["name"], named.get("version"))


async def _read(request: routes.HttpRequest) -> tuple[tensors.InferRequest, list[str]]:
    if routes.media_type(request) not in _MEDIA_TYPES:
        raise UnsupportedMediaType(f"send {' or '.join(_MEDIA_TYPES[1:])}")
    content = await routes.read_bytes(request)
    length = _json_length(request, content)
    body = await routes.validated(request, content[:length], tensors.InferRequest)
    most = request.exchange.service.settings.max_texts
    return body, body.inputs[0].texts(content[length:], most)


def _json_length(request: routes.HttpRequest, content: bytes) -> int:
    """The length of the JSON. The header that gives it counts decompressed bytes."""
    header = request.headers.get(JSON_LENGTH)
    if header is None:
        return len(content)
    if not re.fullmatch("[0-9]{1,9}", header) or int(header) > len(content):
        raise InvalidRequest(
            f"{JSON_LENGTH} must be the number of bytes of the JSON; the body has "
            f"{len(content)} bytes"
        )
    return int(header)


def _answer(body: tensors.InferRequest, done: Classification) -> Response:
    """The outputs that the client requested. Those requested as bytes follow the JSON."""
    described = []
    binary = b""
    for tensor in tensors.outputs(body, done):
        values: dict[str, Any] = {"data": tensor.values}
        if tensor.binary:
            values = {"parameters": {"binary_data_size": len(tensor.packed)}}
            binary += tensor.packed
        described.append(
            {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape, **values}
        )
    answer: dict[str, Any] = {
        "model_name": done.model.name,
        "model_version": tensors.VERSION,
        "outputs": described,
    }
    if body.id is not None:
        answer["id"] = body.id
    # Not pydantic's serializer: only an escape can express half of a surrogate pair in the id.
    document = json.dumps(answer).encode()
    if not binary:
        return Response(document, media_type="application/json")
    headers = {JSON_LENGTH: str(len(document))}
    return Response(document + binary, media_type="application/octet-stream", headers=headers)


ADAPTER = Adapter(
    [*router.routes, *infer_router.routes],
    Paths(probes=PathSet({"/v2/health/live", "/v2/health/ready"})),
)
