"""Routes for operators: health, the served models, versions and hardware, metrics."""

import asyncio
import gzip
import platform
import time
from collections.abc import Callable
from typing import Annotated, Any

import onnxruntime
from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CollectorRegistry, exposition
from prometheus_client.openmetrics import exposition as openmetrics
from pydantic import Field
from typing_extensions import TypedDict

from sentiment_service import errors
from sentiment_service.engine.host import cpu_name, vector_flags
from sentiment_service.engine.model.bundle import Calibration, Parity
from sentiment_service.engine.model.model import ModelVersion
from sentiment_service.engine.options import Preprocessing
from sentiment_service.http.openapi import DIGEST, MODEL, documented, example, text_example
from sentiment_service.http.routes import HttpRequest, Route, packed_answer
from sentiment_service.observability.metrics import Metrics
from sentiment_service.requests.service import Service

router = APIRouter(tags=["operations"], route_class=Route)
metrics_router = APIRouter(tags=["operations"], route_class=Route)  # it may have a port of its own


class Status(TypedDict):
    """The answer when all is well; otherwise the answer is a problem."""

    status: Annotated[str, Field(description="one word: live, ready, reloaded or promoted")]


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


class Shadowed(TypedDict):
    """A candidate beside the default model (--shadow), and how often both gave the same label."""

    digest: Annotated[str, Field(description="SHA-256 of the candidate's manifest.json")]
    texts: Annotated[int, Field(description="answered texts that both have classified")]
    agreed: Annotated[int, Field(description="of them, those with the same label")]
    skipped: Annotated[int, Field(description="texts that the candidate did not classify")]
    summary: Annotated[str, Field(description="the same in words")]


class WorkerInfo(TypedDict):
    """A worker: a process that serves. With --workers 1 there is one."""

    number: Annotated[int, Field(description="from 0; log lines name it")]
    pid: Annotated[int, Field(description="of its process; 0 if it has none")]
    stage: Annotated[
        str,
        Field(
            description="starting, ready, not_ready (inference fails), silent (it hangs), "
            "stopping, hopeless (only a new process helps) or ended"
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
    shadow: Annotated[
        Shadowed | None,
        Field(description="the candidate that is tried beside the default model; null without"),
    ]
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
    languages: Annotated[
        list[str],
        Field(description="those it was trained on, as BCP 47 tags; empty if they are not known"),
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


_READY = {**example({"status": "ready"}), **documented(errors.NotReady, errors.ShuttingDown)}


@router.get(
    "/health/live",
    operation_id="checkLive",
    responses={**example({"status": "live"}), **documented(errors.NotReady)},
)
async def live(request: HttpRequest) -> Status:
    """Succeeds if the service works or can recover by itself; otherwise restart it.

    Of several workers, one is enough.
    """
    request.exchange.service.check_live()
    return {"status": "live"}


@router.get("/health", operation_id="checkHealth", responses=_READY)
@router.get("/health/ready", operation_id="checkReady", responses=_READY)
async def ready(request: HttpRequest) -> Status:
    """Succeeds while you can send traffic.

    This means that the models are warm, inference works, and shutdown has not begun. Of several
    workers, one is enough.
    """
    await request.exchange.service.check_ready()
    return {"status": "ready"}


@router.get(
    "/info",
    operation_id="getInfo",
    responses=documented(errors.Unauthorized, errors.RateLimited, errors.NotReady),
)
async def info(request: HttpRequest) -> Info:
    """Versions, the device that is really in use, and the limits."""
    service = request.exchange.service
    service.show_status()
    settings = service.settings
    default = service.models.classifiers.of(None)
    return {
        "version": service.version,
        "python": platform.python_version(),
        "onnxruntime": onnxruntime.__version__,
        "digest": default.model.digest,
        "device": str(default.model.device),
        "provider": default.model.provider,
        "provider_options": default.model.provider_options,
        "cpus": service.worker.cpus,
        "cpu": cpu_name(),
        "cpu_flags": vector_flags(),
        "batch_invariant": default.model.batch_invariant,
        "runners": default.plan.runners,
        "threads": default.plan.threads,
        "tuning": default.plan.summary(),
        "calibration": default.model.calibration,
        "limits": {
            "max_batch_tokens": default.plan.budget.tokens,
            "max_queue_tokens": default.plan.max_queue_tokens,
            "cache_mb": settings.cache_mb,
            "max_texts": min(settings.max_texts, default.answer_texts),
            "max_text_chars": settings.max_text_chars,
            "max_body_bytes": settings.max_body_bytes,
            "max_inflight_bytes": service.inflight.limit,
            "max_header_bytes": settings.max_header_bytes,
            "deadline_ms": settings.deadline_ms,
        },
        "shadow": _shadowed(service),
        "workers": [
            {
                "number": worker.number,
                "pid": worker.pid,
                "stage": worker.stage,
                "restarts": worker.restarts,
                "connections": worker.connections,
                "in_flight": worker.in_flight,
            }
            for worker in service.workers
        ],
    }


def _shadowed(service: Service) -> Shadowed | None:
    if (shadow := service.models.shadow) is None:
        return None
    model = service.models.classifiers.of(None).model
    tried = (model.name, model.digest, shadow.digest)
    totals = service.metrics.shadow_texts.totals()
    counts = {names[-1]: int(one.value) for names, one in totals.items() if names[:-1] == tried}
    agreed, texts = counts["agreed"], counts["agreed"] + counts["differed"]
    skipped = sum(counts.values()) - texts
    if shadow.failed:
        state = "is not tried any more; the service's log says why"
    elif shadow.loaded is None:
        state = "is being loaded"
    else:
        state = f"({shadow.loaded.name}) is tried beside {model.name}"
    share = f" ({agreed / texts:.1%})" if texts else ""
    same = f"the same label for {agreed} of {texts} texts{share}, and {skipped} skipped"
    return {
        "digest": shadow.digest,
        "texts": texts,
        "agreed": agreed,
        "skipped": skipped,
        "summary": f"the candidate {shadow.digest[:12]} {state}: {same}",
    }


@router.get(
    "/models",
    operation_id="listModels",
    responses=documented(errors.Unauthorized, errors.RateLimited),
)
async def models(request: HttpRequest) -> Models:
    """The served models."""
    classifiers = request.exchange.service.models.classifiers.values()
    return {
        "models": [
            ModelInfo(
                **model.version,
                labels=model.labels,
                max_tokens=model.max_tokens,
                multi_label=model.multi_label,
                thresholds=model.thresholds if model.multi_label else None,
                text_pairs=model.text_pairs,
                language=model.language,
                languages=model.languages,
                preprocessing=model.preprocessing,
                device=str(model.device),
                provider=model.provider,
                provider_options=model.provider_options,
                parity=model.parity,
                calibration=model.calibration,
                tuning=plan.summary(),
            )
            for model, plan in [(c.model, c.plan) for c in classifiers]
        ]
    }


def _loads(status: str, *others: type[errors.ServiceError]) -> dict[int | str, Any]:
    """The answers of a route that loads a model; ``others`` are errors of this one alone."""
    return {
        **example({"status": status, "digest": DIGEST}),
        **documented(
            errors.Unauthorized,
            errors.RateLimited,
            *others,
            errors.ModelNotFound,
            errors.InvalidBundle,
            errors.OutOfMemory,
            errors.NotReady,
            errors.ShuttingDown,
        ),
    }


async def _loaded(request: HttpRequest, status: str, *, promote: bool) -> Reloaded:
    service, name = request.exchange.service, request.path_params["name"]
    await service.worker.reload(service.models, name, promote=promote)
    return {"status": status, "digest": service.models.classifiers.of(name).model.digest}


@router.post(
    "/models/{name}/reload",
    operation_id="reloadModel",
    responses=_loads("reloaded"),
)
async def reload(request: HttpRequest) -> Reloaded:
    """Load a model's bundle again. Needs an admin key.

    The old model answers until the new one is loaded.
    """
    return await _loaded(request, "reloaded", promote=False)


@router.post(
    "/models/{name}/promote",
    operation_id="promoteCandidate",
    responses=_loads("promoted", errors.NotFound),
)
async def promote(request: HttpRequest) -> Reloaded:
    """Make the candidate (--shadow) the model, under the model's name. Needs an admin key.

    The old model answers until the new one is loaded. The next start serves what --model says.
    """
    return await _loaded(request, "promoted", promote=True)


EXAMPLE = (
    "# HELP sentiment_model_ready 1 while the model answers.\n"
    "# TYPE sentiment_model_ready gauge\n"
    f'sentiment_model_ready{{model="{MODEL}"}} 1.0\n'
)
# Metrics are not rendered again for so many times as long as it took, and at most so many seconds.
REST, MAX_REST_S = 10, 0.05
LEVEL = 4  # higher ones of gzip take longer and save little
TEXT = "text/plain"
FORMS: dict[str, tuple[Callable[[CollectorRegistry], bytes], str]] = {
    TEXT: (exposition.generate_latest, exposition.CONTENT_TYPE_PLAIN_0_0_4),
    "application/openmetrics-text": (openmetrics.generate_latest, openmetrics.CONTENT_TYPE_LATEST),
}


class Scrapes:
    """Renders and compresses the metrics, which takes milliseconds.

    Scrapes that come too often wait, and share one rendering of the metrics as they are then.
    """

    def __init__(self, metrics: Metrics, cpu_time: Callable[[], float] = time.thread_time) -> None:
        self._metrics = metrics
        self._cpu_time = cpu_time
        self._next: dict[str, asyncio.Task[bytes]] = {}  # the latest renderings, by their forms
        self._rests_until = 0.0  # on the event loop's clock

    async def answer(self, request: HttpRequest) -> Response:
        """The metrics in the first of FORMS that the request accepts, or as text."""
        accepted = request.headers.get("accept", "").lower().split(",")
        kinds = (kind.partition(";")[0].strip() for kind in accepted)
        form = next((kind for kind in kinds if kind in FORMS), TEXT)
        rendering = self._next.get(form)
        if rendering is None or rendering.done():
            rendering = self._next[form] = asyncio.create_task(self._rendered(form))
        packed = await asyncio.shield(rendering)  # others wait for it, too
        return packed_answer(request, packed, {"content-type": FORMS[form][1]})

    async def _rendered(self, form: str) -> bytes:
        now = asyncio.get_running_loop().time
        await asyncio.sleep(self._rests_until - now())
        await self._metrics.gpus.refresh()
        started = self._cpu_time()  # on a busy machine, the time that others take would count
        encode, _ = FORMS[form]
        # With the time, gzip would fail on a clock beyond 2106.
        packed = gzip.compress(encode(self._metrics.registry), LEVEL, mtime=0)
        rest_s = min(REST * (self._cpu_time() - started), MAX_REST_S)
        self._rests_until = max(now(), self._rests_until) + rest_s
        return packed


@metrics_router.get(
    "/metrics",
    operation_id="getMetrics",
    response_class=PlainTextResponse,
    responses={**text_example(EXAMPLE, "text/plain"), **documented(errors.RateLimited)},
)
async def metrics(request: HttpRequest) -> Response:
    """Metrics as Prometheus text, or as OpenMetrics if the request asks for it."""
    scrapes: Scrapes = request.app.state.scrapes
    return await scrapes.answer(request)
