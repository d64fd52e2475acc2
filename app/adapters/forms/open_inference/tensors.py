"""Models and tensors in the terms of the Open Inference Protocol, over HTTP and gRPC."""

import struct
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, NotRequired, get_args

import numpy as np
from pydantic import Field
from typing_extensions import TypedDict

from app.adapters.forms.open_inference.request import InferRequest, OutputName, RequestedOutput
from app.engine.classifier import Classifier
from app.engine.model.model import Model
from app.engine.predictions import Prediction
from app.errors import InvalidRequest, ModelNotFound, TooManyTexts
from app.service import Service

SERVER = "sentiment-service"
PLATFORM = "onnxruntime_onnx"
VERSION = "1"  # the same for every model; not the model's revision
DataType = Literal["BYTES", "FP32"]
_LENGTH = struct.Struct("<I")  # of an element of BYTES, before its UTF-8
_ALL_OUTPUTS = [RequestedOutput(name=name) for name in get_args(OutputName)]


class TensorMetadata(TypedDict):
    """Name, type and shape of a tensor. In a model's metadata, -1 means the number of texts."""

    name: Annotated[str, Field(description="the tensor's name")]
    datatype: Annotated[DataType, Field(description="type of its values")]
    shape: Annotated[list[int], Field(description="its dimensions; -1: the number of texts")]


class Tensor(TensorMetadata):
    """An output: its values row by row, or the number of bytes that follow the JSON for it."""

    data: NotRequired[list[str] | list[float]]
    parameters: NotRequired[dict[str, int]]


class ModelParameters(TypedDict):
    """Metadata for which the protocol has no field."""

    labels: Annotated[list[str], Field(description="in the order of the logits and scores")]


class ModelMetadata(TypedDict):
    """A served model."""

    name: Annotated[str, Field(description="the model's name")]
    versions: Annotated[list[str], Field(description="always 1")]
    platform: Annotated[str, Field(description="what computes it")]
    inputs: Annotated[list[TensorMetadata], Field(description="the tensor of texts")]
    outputs: Annotated[list[TensorMetadata], Field(description="what may be asked for")]
    parameters: Annotated[ModelParameters, Field(description="what the protocol has no field for")]


def of_version(service: Service, name: str, version: str) -> Classifier:
    """The classifier of a model and a version of it.

    Raises:
        ModelNotFound: no model has that name, or the model does not have that version.
    """
    classifier = service.models.classifier(name)
    if version != VERSION:
        raise ModelNotFound(f"{classifier.model.name} is served in version {VERSION} only")
    return classifier


def metadata_of(model: Model) -> ModelMetadata:
    """The model's tensors and labels."""
    return {
        "name": model.name,
        "versions": [VERSION],
        "platform": PLATFORM,
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1]}],
        "outputs": [
            tensor_metadata(output.name, -1, model.labels) for output in _outputs_of(model)
        ],
        "parameters": {"labels": model.labels},
    }


def asked_outputs(body: InferRequest, model: Model) -> list[RequestedOutput]:
    """The outputs that the request names, or all that the model has.

    Raises:
        InvalidRequest: the model has no such output.
    """
    known = _outputs_of(model)
    if {output.name for output in body.outputs} - {output.name for output in known}:
        raise InvalidRequest("outputs: only a model of sentiment has polarity")
    return body.outputs or known


def _outputs_of(model: Model) -> list[RequestedOutput]:
    return [one for one in _ALL_OUTPUTS if one.name != "polarity" or model.is_sentiment]


def tensor_metadata(name: OutputName, texts: int, labels: Sequence[str]) -> TensorMetadata:
    """Name, type and shape of an output."""
    return {
        "name": name,
        "datatype": "BYTES" if name == "label" else "FP32",
        "shape": [texts, len(labels)] if name in ("logits", "scores") else [texts],
    }


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


def pack(texts: Iterable[str]) -> bytes:
    """The bytes of a tensor of texts, in the form of the binary tensor data extension."""
    encoded = [text.encode() for text in texts]
    return b"".join(_LENGTH.pack(len(element)) + element for element in encoded)


def unpack(data: bytes, max_texts: int) -> list[str]:
    """The texts of a tensor.

    Raises:
        TooManyTexts: there are more than ``max_texts``. The rest is not looked at.
        InvalidRequest: a length points beyond the end of the data, or an element is not UTF-8.
    """
    texts: list[str] = []
    start = 0
    while start < len(data):
        if len(texts) == max_texts:
            raise TooManyTexts(f"there are more than the {max_texts} texts that are accepted")
        begin = start + _LENGTH.size
        if begin > len(data):
            raise InvalidRequest("the binary data ends in the middle of an element's length field")
        (length,) = _LENGTH.unpack_from(data, start)
        start = begin + length
        if start > len(data):
            raise InvalidRequest(
                f"element {len(texts)} of the binary data, counted from 0, should have {length} "
                f"bytes, but only {len(data) - begin} are left"
            )
        try:
            texts.append(data[begin:start].decode())
        except UnicodeDecodeError:
            raise InvalidRequest(
                f"element {len(texts)} of the binary data, counted from 0, is not UTF-8"
            ) from None
    return texts
