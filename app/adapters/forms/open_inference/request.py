"""What a request of the Open Inference Protocol may hold, over HTTP and gRPC."""

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, StrictBool
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

from app.engine.text.encoding import Overflow
from app.validation import NonEmpty, SingleText, whole

OutputName = Literal["label", "score", "logits", "scores", "polarity"]
_Count = Annotated[int, Field(ge=1)]
EXAMPLE: JsonDict = {
    "inputs": [
        {
            "name": "text",
            "datatype": "BYTES",
            "shape": [2],
            "data": ["I love this!", "worst service ever"],
        }
    ],
    "outputs": [{"name": "label"}, {"name": "score"}],
}


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


class TextTensor(BaseModel):
    """The input tensor. Fields and parameters that are not listed below are ignored."""

    name: Literal["text"]
    datatype: Literal["BYTES"]
    shape: Annotated[
        int,
        PlainValidator(_shape, json_schema_input_type=tuple[_Count] | tuple[_Count, Literal[1]]),
    ] = Field(description="[n] or [n, 1] for n texts")


def _no_size(value: Any) -> None:
    if value is not None:
        raise PydanticCustomError("no_size", "must be left out, because no bytes follow the JSON")


class JsonParameters(BaseModel):
    """Parameters of texts that are in the JSON."""

    binary_data_size: Annotated[None, PlainValidator(_no_size, json_schema_input_type=None)] = (
        Field(default=None, description="is for texts that follow the JSON")
    )
    shared_memory_region: None = Field(default=None, description="not supported")


class JsonTensor(TextTensor):
    """An input tensor with its texts in the JSON."""

    # This is checked before ``data``: if the texts are said to be elsewhere, ``data`` is missing.
    parameters: JsonParameters = JsonParameters()
    data: Annotated[
        list[str],
        PlainValidator(
            _data, json_schema_input_type=NonEmpty[SingleText] | NonEmpty[tuple[SingleText]]
        ),
    ]


class BinaryParameters(BaseModel):
    """Parameters of texts that follow the JSON as bytes."""

    binary_data_size: Annotated[int, Field(strict=True, ge=0)]


class BinaryTensor(TextTensor):
    """An input tensor whose texts follow the JSON as bytes."""

    data: None = None
    parameters: BinaryParameters


class OutputParameters(BaseModel):
    """Parameters of one output; other parameters are ignored."""

    binary_data: StrictBool | None = Field(default=None, description="answer it as bytes")
    classification: None = Field(default=None, description="not supported")
    shared_memory_region: None = Field(default=None, description="not supported")

    def binary_data_or(self, default: bool) -> bool:
        """Whether this output is answered as bytes: ``binary_data`` if set, else ``default``."""
        return default if self.binary_data is None else self.binary_data


class RequestedOutput(BaseModel):
    """An output that the client requests."""

    name: OutputName
    parameters: OutputParameters = OutputParameters()


class RequestParameters(BaseModel):
    """Parameters of the whole request; other parameters are ignored."""

    overflow: Overflow = Field(default="truncate", description="as in POST /classify")
    binary_data_output: StrictBool = Field(
        default=False,
        description="send outputs as bytes, except those that set binary_data themselves",
    )


class InferRequest(BaseModel):
    """The fields that both forms of a request share; other fields are ignored."""

    id: str | None = Field(default=None, description="comes back in the answer")
    parameters: RequestParameters = RequestParameters()
    outputs: Annotated[list[RequestedOutput], Field(max_length=len(get_args(OutputName)))] = Field(
        default=[], description="all of them unless some are named"
    )


class JsonRequest(InferRequest):
    """A request with one tensor of texts in the JSON; other fields are ignored."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    inputs: Annotated[list[JsonTensor], Field(min_length=1, max_length=1)]


class BinaryRequest(InferRequest):
    """A request with one tensor of texts, which follow the JSON as bytes."""

    inputs: Annotated[list[BinaryTensor], Field(min_length=1, max_length=1)]
