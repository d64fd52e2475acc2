"""Requests, models and tensors in the terms of the Open Inference Protocol, over HTTP and gRPC."""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

import numpy as np
from pydantic import BaseModel, Field, PlainValidator, StrictBool
from pydantic_core import PydanticCustomError

from sentiment_service.engine.classifier import Classification, Classifier
from sentiment_service.engine.model.model import Model
from sentiment_service.errors import InvalidRequest, ModelNotFound, TooManyTexts
from sentiment_service.requests.service import Service
from sentiment_service.requests.validation import OverflowOption, whole
from sentiment_service.results import every_prediction

SERVER = "sentiment-service"
PLATFORM = "onnxruntime_onnx"
VERSION = "1"  # the same for every model; not the model's revision
OutputName = Literal["label", "score", "logits", "scores", "polarity"]
DataType = Literal["BYTES", "FP32"]
_LENGTH = struct.Struct("<I")  # of an element of BYTES, before its UTF-8


def _shape(value: Any) -> int:
    """The number of texts in a tensor of this shape."""
    sizes = [whole(size) for size in value] if isinstance(value, list) else []
    if all(type(size) is int for size in sizes):  # False for a bool
        match sizes:
            case [int(texts)] | [int(texts), 1] if texts >= 1:
                return texts
    raise PydanticCustomError("shape", "must be [n] or [n, 1] with n texts, at least one")


def _data(value: Any) -> list[str]:
    """The texts, from a flat list or from rows of one text each."""
    if isinstance(value, list):
        rows = bool(value) and all(isinstance(row, list) and len(row) == 1 for row in value)
        texts = [row[0] for row in value] if rows else value
        if all(isinstance(text, str) for text in texts):
            return texts
    raise PydanticCustomError("data", "must be a list of strings, or of lists of one string each")


class TensorParameters(BaseModel):
    """Parameters of the input. What a client stored in shared memory cannot be read here."""

    binary_data_size: Annotated[int, Field(strict=True, ge=0)] | None = None
    shared_memory_region: None = None


class TextTensor(BaseModel):
    """The input tensor of ``shape`` texts, which are in ``data`` or follow the JSON as bytes."""

    name: Literal["text"]
    datatype: Literal["BYTES"]
    shape: Annotated[int, PlainValidator(_shape)]
    parameters: TensorParameters = TensorParameters()
    data: Annotated[list[str], PlainValidator(_data)] | None = None

    def texts(self, binary: bytes, max_texts: int) -> list[str]:
        """The texts; ``binary`` is what follows the JSON."""
        size = self.parameters.binary_data_size
        if (size is None) == (self.data is None):
            raise InvalidRequest(
                "inputs.0: send the texts in data, or behind the JSON with binary_data_size"
            )
        if len(binary) != (size or 0):
            raise InvalidRequest(
                f"inputs.0: binary_data_size is {size or 0}, but {len(binary)} bytes follow the "
                "JSON; inference-header-content-length gives the length of the JSON"
            )
        texts = unpack(binary, max_texts) if self.data is None else self.data
        if len(texts) != self.shape:
            raise InvalidRequest(f"inputs.0: shape says {self.shape} texts; there are {len(texts)}")
        return texts


class OutputParameters(BaseModel):
    """Parameters of one output. ``binary_data`` sends it as bytes; the others are not supported."""

    binary_data: StrictBool | None = None
    classification: None = None
    shared_memory_region: None = None


class RequestedOutput(BaseModel):
    name: OutputName
    parameters: OutputParameters = OutputParameters()


class RequestParameters(BaseModel):
    """Parameters of the whole request. ``binary_data_output`` is for outputs that say nothing."""

    overflow: OverflowOption = "truncate"
    binary_data_output: StrictBool = False


class InferRequest(BaseModel):
    """A request with one tensor of texts; fields and parameters of other names are ignored."""

    id: str | None = None  # comes back in the answer
    parameters: RequestParameters = RequestParameters()
    inputs: Annotated[list[TextTensor], Field(min_length=1, max_length=1)]
    outputs: Annotated[list[RequestedOutput], Field(max_length=len(get_args(OutputName)))] = []


@dataclass(frozen=True, slots=True)
class Output:
    """An output with its values, row by row. Over HTTP, they are sent as bytes if ``binary``."""

    name: OutputName
    datatype: DataType
    shape: list[int]
    values: Sequence[Any]
    binary: bool

    @property
    def packed(self) -> bytes:
        if self.datatype == "BYTES":
            return pack(self.values)
        return np.array(self.values, dtype="<f4").tobytes()


def of_version(service: Service, name: str, version: str | None) -> Classifier:
    classifier = service.models.classifiers.of(name)
    if version and version != VERSION:
        raise ModelNotFound(f"{classifier.model.name} is served in version {VERSION} only")
    return classifier


def metadata_of(model: Model) -> dict[str, Any]:
    """The model's name, version, platform and tensors. In a shape, -1 is the number of texts."""
    return {
        "name": model.name,
        "versions": [VERSION],
        "platform": PLATFORM,
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1]}],
        "outputs": [
            {"name": name, "datatype": _datatype(name), "shape": _dims(name, -1, model)}
            for name in _outputs_of(model)
        ],
    }


_EACH = {name: RequestedOutput(name=name) for name in get_args(OutputName)}


def outputs(body: InferRequest, done: Classification) -> list[Output]:
    """The outputs that the request names, or all that the model has. A bad text is an error."""
    model, predictions = done.model, every_prediction(done.outcomes)
    known = _outputs_of(model)
    if {output.name for output in body.outputs} - {*known}:
        raise InvalidRequest("outputs: only a model of sentiment has polarity")
    found = []
    for asked in body.outputs or [_EACH[name] for name in known]:
        rows = [prediction[asked.name] for prediction in predictions]
        lists = [[*row.values()] if isinstance(row, dict) else [row] for row in rows]
        values = [value for one in lists for value in one]
        binary = asked.parameters.binary_data
        if binary is None:
            binary = body.parameters.binary_data_output
        shape = _dims(asked.name, len(rows), model)
        found.append(Output(asked.name, _datatype(asked.name), shape, values, binary))
    return found


def _outputs_of(model: Model) -> list[OutputName]:
    return [name for name in get_args(OutputName) if name != "polarity" or model.is_sentiment]


def _datatype(name: OutputName) -> DataType:
    return "BYTES" if name == "label" else "FP32"


def _dims(name: OutputName, texts: int, model: Model) -> list[int]:
    return [texts, len(model.labels)] if name in ("logits", "scores") else [texts]


def pack(texts: Iterable[str]) -> bytes:
    """The bytes of a tensor of texts, in the form of the binary tensor data extension."""
    encoded = [text.encode() for text in texts]
    return b"".join(_LENGTH.pack(len(element)) + element for element in encoded)


def unpack(data: bytes, max_texts: int) -> list[str]:
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
