"""Schemas of the native API. Answers are typed dicts, because they are built as plain dicts."""

from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

from sentiment_service.engine.model.bundle import Calibration, Parity
from sentiment_service.engine.model.model import ModelVersion
from sentiment_service.engine.text.encoding import Preprocessing
from sentiment_service.results import FailedItem, Prediction

Answered = Annotated[ModelVersion, Field(description="the model that answered")]


class ClassifyResponse(TypedDict):
    """The results of the texts, and the model that they are from."""

    model: Answered
    labels: Annotated[
        list[str], Field(description="the model's labels, in the order of its logits")
    ]
    results: Annotated[
        list[Prediction | FailedItem],
        Field(description="one item for each text, in the order of the texts"),
    ]


class Status(TypedDict):
    """The answer when all is well; otherwise the answer is a problem."""

    status: Annotated[str, Field(description="one word: live, ready or reloaded")]


class Reloaded(Status):
    """The answer when a model was loaded again."""

    digest: Annotated[str, Field(description="SHA-256 of the manifest.json that is served now")]


class Limits(TypedDict):
    """How large a request may be, and when it is refused."""

    max_batch_tokens: Annotated[int, Field(description="tokens of a batch")]
    max_queue_tokens: Annotated[
        int, Field(description="tokens that may wait; a request may have half")
    ]
    cache_mb: Annotated[int, Field(description="megabytes for results that are kept; 0: none")]
    max_texts: Annotated[int, Field(description="texts of a request")]
    max_text_chars: Annotated[int, Field(description="characters of a text")]
    max_body_bytes: Annotated[int, Field(description="bytes of a body, also when decompressed")]
    max_inflight_bytes: Annotated[int, Field(description="bytes of all bodies at one time")]
    max_header_bytes: Annotated[int, Field(description="bytes of the headers of a request")]
    deadline_ms: Annotated[int, Field(description="milliseconds in which a request is answered")]


UsedDevice = Annotated[
    str, Field(description="the device really in use: cpu, or cuda with the numbers of the GPUs")
]
ProviderOptions = Annotated[
    dict[str, str],
    Field(description="ONNX Runtime's options for it that differ from its defaults; none on a CPU"),
]


class WorkerInfo(TypedDict):
    """A worker: a process that serves. With --workers 1 there is one."""

    number: Annotated[int, Field(description="from 0; log lines name it")]
    pid: Annotated[int, Field(description="of its process; 0 if it has none")]
    stage: Annotated[
        str,
        Field(
            description="starting, ready, not_ready (inference fails), stopping, hopeless (only a "
            "new process helps) or ended"
        ),
    ]
    restarts: Annotated[int, Field(description="how often a new process took its place")]
    connections: Annotated[int, Field(description="open connections over HTTP")]
    in_flight: Annotated[int, Field(description="requests that are being answered")]


class Info(TypedDict):
    """Versions, hardware and limits of the running service."""

    version: Annotated[str, Field(description="of the service")]
    python: Annotated[str, Field(description="its version of Python")]
    onnxruntime: Annotated[str, Field(description="its version of ONNX Runtime")]
    digest: Annotated[str, Field(description="SHA-256 of the default model's manifest.json")]
    device: UsedDevice
    provider: Annotated[str, Field(description="ONNX Runtime's name for it")]
    provider_options: ProviderOptions
    cpus: Annotated[
        float, Field(description="CPUs that affinity and cgroup grant, divided by the workers")
    ]
    cpu: Annotated[str, Field(description="the processor, as the system names it")]
    cpu_flags: Annotated[
        str, Field(description="its instruction sets that matter for speed, as Linux lists them")
    ]
    batch_invariant: Annotated[
        bool | None,
        Field(
            description="true if a text has the same logits to the last bit in every batch of the "
            "default model, as measured on x86 CPUs in fp32 and int8; null elsewhere"
        ),
    ]
    runners: Annotated[int, Field(description="batches of the default model computed at once")]
    threads: Annotated[int, Field(description="threads that compute one of them")]
    tuning: Annotated[str, Field(description="how these were chosen")]
    calibration: Annotated[
        Calibration | None,
        Field(description="how the default model's scores were calibrated; null if they were not"),
    ]
    limits: Annotated[Limits, Field(description="how large a request may be")]
    workers: Annotated[list[WorkerInfo], Field(description="the processes that serve")]


class ModelInfo(ModelVersion):
    """A served model."""

    labels: Annotated[list[str], Field(description="in the order of the logits")]
    max_tokens: Annotated[int, Field(description="longer texts are truncated")]
    multi_label: Annotated[bool, Field(description="whether each label has a score of its own")]
    thresholds: Annotated[
        dict[str, float] | None,
        Field(description="the score from which on each label applies; null if only one does"),
    ]
    text_pairs: Annotated[bool, Field(description="whether it was trained on pairs of texts")]
    language: Annotated[
        str | None, Field(description="the only language it was trained on, if it is known")
    ]
    preprocessing: Annotated[Preprocessing, Field(description="how texts are normalised first")]
    device: UsedDevice
    provider: Annotated[str, Field(description="ONNX Runtime's name for it")]
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

    models: Annotated[list[ModelInfo], Field(description="the default model first")]
