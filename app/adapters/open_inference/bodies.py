"""Reads and answers inference requests: JSON, or JSON followed by tensors as bytes."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import NotRequired

from fastapi import Response
from typing_extensions import TypedDict

from app.adapters.forms.open_inference.request import BinaryRequest, InferRequest, JsonRequest
from app.adapters.forms.open_inference.tensors import (
    VERSION,
    Tensor,
    asked_outputs,
    output_tensor,
    packed_values,
    unpack,
)
from app.api.body import media_type, read_bytes, validated
from app.api.http_exchange import HttpRequest
from app.engine.model.model import Model
from app.engine.predictions import Prediction
from app.errors import InvalidRequest, UnsupportedMediaType

JSON_LENGTH = "inference-header-content-length"
# tritonclient sends JSON without a media type.
_MEDIA_TYPES = ("", "application/json", "application/octet-stream")


async def read_inference_request(request: HttpRequest) -> tuple[InferRequest, list[str]]:
    """The request and its texts.

    Raises:
        TooManyTexts: there are more texts than a request may have.
        UnsupportedMediaType, PayloadTooLarge, InvalidRequest, ClientDisconnected: as ``read_body``.
    """
    if media_type(request, b"content-type") not in _MEDIA_TYPES:
        raise UnsupportedMediaType(f"send {' or '.join(_MEDIA_TYPES[1:])}")
    content = await read_bytes(request)
    length = _json_length(request, content)
    document, binary = content[:length], content[length:]
    body: JsonRequest | BinaryRequest
    if binary:
        body = await validated(request, document, BinaryRequest)
        if len(binary) != (size := body.inputs[0].parameters.binary_data_size):
            raise InvalidRequest(
                f"inputs.0: binary_data_size is {size}, but {len(binary)} bytes follow the JSON; "
                f"{JSON_LENGTH} gives the length of the JSON"
            )
        texts = unpack(binary, request.exchange.service.settings.max_texts)
    else:
        body = await validated(request, document, JsonRequest)
        texts = body.inputs[0].data
    if len(texts) != body.inputs[0].shape:
        raise InvalidRequest(
            f"inputs.0: shape says {body.inputs[0].shape} texts; there are {len(texts)}"
        )
    return body, texts


def _json_length(request: HttpRequest, content: bytes) -> int:
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


class InferResponse(TypedDict):
    """The JSON of the answer to an inference request."""

    model_name: str
    model_version: str
    id: NotRequired[str]
    outputs: list[Tensor]


def infer_response(
    body: InferRequest, model: Model, predictions: Sequence[Prediction], headers: Mapping[str, str]
) -> Response:
    """The outputs that the client requested. Those requested as bytes follow the JSON.

    Raises:
        InvalidRequest: the model has no such output.
    """
    outputs = asked_outputs(body, model)
    tensors = [output_tensor(output.name, predictions, model.labels) for output in outputs]
    binary = b""
    for output, tensor in zip(outputs, tensors, strict=True):
        if output.parameters.binary_data_or(body.parameters.binary_data_output):
            packed = packed_values(tensor["datatype"], tensor.pop("data"))
            tensor["parameters"] = {"binary_data_size": len(packed)}
            binary += packed
    answer: InferResponse = {
        "model_name": model.name,
        "model_version": VERSION,
        "outputs": tensors,
    }
    if body.id is not None:
        answer["id"] = body.id
    # Not pydantic's serializer: the id may hold half of a surrogate pair, which only an escape can
    # express.
    document = json.dumps(answer).encode()
    if not binary:
        return Response(document, media_type="application/json", headers=dict(headers))
    return Response(
        document + binary,
        media_type="application/octet-stream",
        headers={**headers, JSON_LENGTH: str(len(document))},
    )
