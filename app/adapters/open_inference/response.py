"""Answers of the Open Inference Protocol: tensors, as JSON or as JSON followed by bytes."""

import json
from collections.abc import Mapping, Sequence
from typing import NotRequired

from fastapi import Response
from typing_extensions import TypedDict

from app.adapters.forms.open_inference.request import InferRequest
from app.adapters.forms.open_inference.tensors import (
    VERSION,
    Tensor,
    asked_outputs,
    output_tensor,
    packed_values,
)
from app.adapters.open_inference.request import JSON_LENGTH
from app.engine.model.model import Model
from app.engine.predictions import Prediction


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
