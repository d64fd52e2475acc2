"""Schemas of the native API. Answers are typed dicts, because they are built as plain dicts."""

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    TypeAdapter,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from app.api.inputs import Text, Texts
from app.engine.bundle import Calibration, Parity, Precision
from app.engine.predictions import Overflow, Split
from app.engine.preprocessing import Preprocessing
from app.engine.results import FailedItem, Prediction, Word
from app.engine.session import Int8Kernels
from app.engine.tokens import Tokens

LANGUAGE_TAG = re.compile("[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8}){0,3}")  # BCP 47


class RequestBody(BaseModel):
    """A JSON object without unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, body: Any) -> Any:
        # Pydantic's own check reports every unknown field. A hostile body can have a million of
        # them, and the check would take seconds.
        known = cls.__pydantic_fields__
        if isinstance(body, dict) and not known.keys() >= body.keys():
            unknown = next(name for name in body if name not in known)
            raise PydanticCustomError(
                "unknown_field",
                "unknown field {name}; the accepted fields are {accepted}",
                {"name": ascii(unknown[:40]), "accepted": ", ".join(known)},
            )
        return body


def _language_tag(value: str) -> str:
    if not LANGUAGE_TAG.fullmatch(value):
        raise PydanticCustomError("language", "must be a language tag such as 'en' or 'pt-BR'")
    return value


class ClassifyRequest(RequestBody):
    """One text, or a list of texts."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"inputs": ["I love this!", "worst service ever"]}]}
    )

    inputs: Texts = Field(
        description="one text, or a list of texts; a list of two strings is two separate texts",
        examples=[["I love this!", "worst service ever", "The meeting is at 3pm."]],
    )
    model: str | None = Field(default=None, description="name of a served model")
    overflow: Overflow = Field(
        default="truncate",
        description="what to do with a text of more tokens than the model takes: cut off its end, "
        "refuse it, or classify overlapping windows, whose logits are averaged, weighted by tokens",
    )
    split: Split | None = Field(
        default=None, description="sentences: classify each sentence as well, by itself"
    )
    language: Annotated[str, AfterValidator(_language_tag)] = Field(
        default="en",
        json_schema_extra={"pattern": f"^{LANGUAGE_TAG.pattern}$"},
        description="language of the text, as a BCP 47 tag; its abbreviations end no sentence",
        examples=["en", "pt-BR"],
    )


class ExplainRequest(RequestBody):
    """One text."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"inputs": "I love this, but it is expensive"}]}
    )

    inputs: Annotated[str, WithJsonSchema(TypeAdapter(Text).json_schema())] = Field(
        description="the text", examples=["I love this, but it is expensive"]
    )
    model: str | None = Field(default=None, description="name of a served model")


class TokenizeRequest(RequestBody):
    """One text, or a list of texts."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"inputs": "I love this!"}]})

    inputs: Texts = Field(
        description="one text, or a list of texts", examples=["I love this!", ["good", "bad"]]
    )
    model: str | None = Field(default=None, description="name of a served model")
    add_special_tokens: StrictBool = Field(
        default=True, description="false: leave out the special tokens, which the model also gets"
    )


class ModelVersion(TypedDict):
    """The model that answered."""

    name: str
    revision: Annotated[str | None, Field(description="resolved commit of the checkpoint")]
    precision: Precision


class ClassifyResponse(TypedDict):
    """``results`` has one item for each text, in the order of the texts."""

    model: ModelVersion
    labels: Annotated[list[str], Field(description="in the order of the logits")]
    results: list[Prediction | FailedItem]


class TokenizeResponse(TypedDict):
    """``results`` has one item for each text, in the order of the texts."""

    model: ModelVersion
    results: list[Tokens | FailedItem]


class ExplainResponse(TypedDict):
    """``words`` has one item for each word, in the order of the text."""

    model: ModelVersion
    label: str
    score: float
    tokens: int
    truncated: bool
    words: list[Word]


class Problem(TypedDict):
    """An error, in the format of RFC 9457."""

    type: str
    title: str
    status: int
    detail: Annotated[str, Field(description="what was wrong, and what is accepted")]
    code: Annotated[str, Field(description="for programs")]
    error: Annotated[str, Field(description="the detail again, for Hugging Face clients")]
    request_id: str


class Status(TypedDict):
    """The answer when all is well; otherwise the answer is a problem."""

    status: str


class Limits(TypedDict):
    """How large a request may be, and when it is refused."""

    max_batch_tokens: int
    max_queue_tokens: int
    cache_mb: int
    max_texts: int
    max_text_chars: int
    max_body_bytes: int
    max_inflight_bytes: int
    max_header_bytes: int
    deadline_ms: int


UsedDevice = Annotated[
    str, Field(description="the device really in use: cpu, or cuda with the numbers of the GPUs")
]
ProviderOptions = Annotated[
    dict[str, str],
    Field(description="ONNX Runtime's options for it that differ from its defaults; none on a CPU"),
]


class Info(TypedDict):
    """Versions, hardware and limits of the running service."""

    version: str
    python: str
    onnxruntime: str
    device: UsedDevice
    provider: Annotated[str, Field(description="ONNX Runtime's name for it")]
    provider_options: ProviderOptions
    cpus: Annotated[float, Field(description="CPUs that affinity and cgroup grant")]
    cpu: Annotated[str, Field(description="the processor, as the system names it")]
    cpu_flags: Annotated[
        str, Field(description="its instruction sets that matter for speed, as Linux lists them")
    ]
    int8_kernels: Annotated[
        Int8Kernels | None,
        Field(
            description="ONNX Runtime's kernels of the default model: U8U8 if a test at start "
            "shows that the faster U8S8 saturates; null if the model is not int8 on a CPU"
        ),
    ]
    batch_invariant: Annotated[
        Literal[True] | None,
        Field(
            description="true if a text has the same logits to the last bit in every batch of the "
            "default model, as measured on CPUs in fp32 and int8; null where it was not measured"
        ),
    ]
    runners: Annotated[int, Field(description="batches of the default model computed at once")]
    threads: Annotated[int, Field(description="threads that compute one of them")]
    tuning: Annotated[str, Field(description="how these were chosen")]
    calibration: Annotated[
        Calibration | None,
        Field(description="how the default model's scores were calibrated; null if they were not"),
    ]
    limits: Limits


class ModelInfo(ModelVersion):
    """A served model."""

    labels: list[str]
    max_tokens: Annotated[int, Field(description="longer texts are truncated")]
    multi_label: bool
    text_pairs: Annotated[bool, Field(description="whether it was trained on pairs of texts")]
    preprocessing: Preprocessing
    device: UsedDevice
    provider: str
    provider_options: ProviderOptions
    parity: Annotated[
        Parity | None, Field(description="distance to the PyTorch checkpoint, where measured")
    ]
    calibration: Annotated[
        Calibration | None,
        Field(description="how its scores were calibrated; null if they were not"),
    ]
    tuning: Annotated[
        str, Field(description="its runners, threads and batch size, and how they were chosen")
    ]


class Models(TypedDict):
    """The served models. The first one answers requests that name no model."""

    models: list[ModelInfo]
