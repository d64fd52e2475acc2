"""Answers of the Open Inference Protocol: tensors, as JSON or as JSON followed by bytes."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NotRequired

import numpy as np
from fastapi import Response
from pydantic import Field
from typing_extensions import TypedDict

from app.adapters.open_inference.bytes_tensor import pack
from app.adapters.open_inference.request import (
    ALL_OUTPUTS,
    JSON_LENGTH,
    InferRequest,
    OutputName,
)
from app.engine.model.model import Model
from app.engine.predictions import Prediction

VERSION = "1"  # the same for every model; not the model's revision
DataType = Literal["BYTES", "FP32"]


class TensorMetadata(TypedDict):
    """Name, type and shape of a tensor. In a model's metadata, -1 means the number of texts."""

    name: Annotated[str, Field(description="the tensor's name")]
    datatype: Annotated[DataType, Field(description="type of its values")]
    shape: Annotated[list[int], Field(description="its dimensions; -1: the number of texts")]


class Tensor(TensorMetadata):
    """An output: its values row by row, or the number of bytes that follow the JSON for it."""

    data: NotRequired[list[str] | list[float]]
    parameters: NotRequired[dict[str, int]]


class InferResponse(TypedDict):
    """The JSON of the answer to an inference request."""

    model_name: str
    model_version: str
    id: NotRequired[str]
    outputs: list[Tensor]


def tensor_metadata(name: OutputName, texts: int, labels: Sequence[str]) -> TensorMetadata:
    """Name, type and shape of an output."""
    return {
        "name": name,
        "datatype": "BYTES" if name == "label" else "FP32",
        "shape": [texts, len(labels)] if name in ("logits", "scores") else [texts],
    }


def infer_response(
    body: InferRequest, model: Model, predictions: Sequence[Prediction], headers: Mapping[str, str]
) -> Response:
    """The outputs that the client requested. Those requested as bytes follow the JSON."""
    outputs = body.outputs or ALL_OUTPUTS
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


def output_tensor(
    name: OutputName, predictions: Sequence[Prediction], labels: Sequence[str]
) -> Tensor:
    """An output for these texts, with its values row by row in ``data``."""
    metadata = tensor_metadata(name, len(predictions), labels)
    values = [value for prediction in predictions for value in _row(prediction[name])]
    return {
        "name": name,
        "datatype": metadata["datatype"],
        "shape": metadata["shape"],
        "data": values,
    }


def _row(value: str | float | dict[str, float]) -> Sequence[Any]:
    return list(value.values()) if isinstance(value, dict) else [value]


def packed_values(datatype: DataType, values: Sequence[Any]) -> bytes:
    """The values as bytes, in the form of the binary tensor data extension."""
    return pack(values) if datatype == "BYTES" else np.array(values, dtype="<f4").tobytes()
