"""The documents of the native API. Answers are built as plain dicts, hence typed dicts."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from app.api.predictions import FailedItem, Overflow, Prediction
from app.bundle import Parity, Precision
from app.preprocessing import Preprocessing


class RequestBody(BaseModel):
    """A JSON object without unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, body: Any) -> Any:
        # Pydantic's own check reports every unknown field: seconds, in a body made to have
        # a million of them.
        for name in body if isinstance(body, dict) else ():
            if name not in cls.model_fields:
                raise PydanticCustomError(
                    "unknown_field",
                    "unknown field {name}; accepted are {accepted}",
                    {"name": ascii(name[:40]), "accepted": ", ".join(cls.model_fields)},
                )
        return body


def _texts(value: Any) -> str | list[str]:
    """Let strings through as they are: one that is not well-formed fails alone, later."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise PydanticCustomError("texts", "must be a string or a list of strings")
    if not value:
        raise PydanticCustomError("texts", "must hold at least one text")
    return value


class ClassifyRequest(RequestBody):
    """One text, or a list of texts."""

    inputs: Annotated[
        str | list[str], PlainValidator(_texts, json_schema_input_type=str | list[str])
    ] = Field(
        description="one text, or a list, which is always that many documents",
        examples=[["I love this!", "worst service ever", "The meeting is at 3pm."]],
    )
    model: str | None = Field(default=None, description="name of a served model")
    overflow: Overflow = Field(
        default="truncate",
        description="what to do with a text of more tokens than the model takes",
    )


class ModelVersion(TypedDict):
    """What answered."""

    name: str
    revision: Annotated[str | None, Field(description="resolved commit of the checkpoint")]
    precision: Precision


class ClassifyResponse(TypedDict):
    """``results`` has one item for each text, in their order."""

    model: ModelVersion
    labels: Annotated[list[str], Field(description="in the order of the logits")]
    results: list[Prediction | FailedItem]


class Problem(TypedDict):
    """An error, as RFC 9457 describes it."""

    type: str
    title: str
    status: int
    detail: Annotated[str, Field(description="what was wrong, and what is accepted")]
    code: Annotated[str, Field(description="for programs")]
    error: Annotated[str, Field(description="the detail again, for Hugging Face clients")]
    request_id: str


class Status(TypedDict):
    """The answer of a health route when all is well; otherwise it is a problem."""

    status: str


class Limits(TypedDict):
    """What a request may be, and when it is turned away."""

    max_batch_tokens: int
    max_queue_tokens: int
    max_texts: int
    max_text_chars: int
    max_body_bytes: int
    deadline_ms: int


class Info(TypedDict):
    """What runs, and on what."""

    version: str
    python: str
    onnxruntime: str
    device: Annotated[str, Field(description="the device really in use")]
    provider: Annotated[str, Field(description="ONNX Runtime's name for it")]
    cpus: Annotated[float, Field(description="CPUs that affinity and cgroup grant")]
    runners: Annotated[int, Field(description="batches of the default model computed at once")]
    threads: Annotated[int, Field(description="threads that compute one of them")]
    tuning: Annotated[str, Field(description="how these were chosen")]
    limits: Limits


class ModelInfo(ModelVersion):
    """A served model."""

    labels: list[str]
    max_tokens: Annotated[int, Field(description="longer texts are truncated")]
    multi_label: bool
    preprocessing: Preprocessing
    provider: str
    parity: Annotated[
        Parity | None, Field(description="distance to the PyTorch checkpoint, where measured")
    ]
    tuning: Annotated[
        str, Field(description="its runners, threads and batch size, and how they were chosen")
    ]


class Models(TypedDict):
    """The served models; the first answers requests that name none."""

    models: list[ModelInfo]
