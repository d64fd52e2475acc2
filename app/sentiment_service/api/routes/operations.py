"""Routes for operators: health, the served models, versions and hardware."""

import platform

import onnxruntime
from fastapi import APIRouter

from sentiment_service.api.http_exchange import HttpRequest, Route
from sentiment_service.api.openapi.document import NAME_IN_PATH, documented, example
from sentiment_service.api.openapi.examples import DIGEST
from sentiment_service.api.openapi.schemas import Info, ModelInfo, Models, Reloaded, Status
from sentiment_service.engine.machine.cpu import cpu_name, vector_flags
from sentiment_service.errors import (
    InvalidBundle,
    ModelNotFound,
    NotReady,
    OutOfMemory,
    RateLimited,
    ShuttingDown,
    Unauthorized,
)

router = APIRouter(tags=["operations"], route_class=Route)


_READY = {**example({"status": "ready"}), **documented(NotReady, ShuttingDown)}


@router.get(
    "/health/live",
    operation_id="checkLive",
    responses={**example({"status": "live"}), **documented(NotReady)},
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
    responses=documented(Unauthorized, RateLimited, NotReady),
)
async def info(request: HttpRequest) -> Info:
    """Versions, the device that is really in use, and the limits."""
    service = request.exchange.service
    service.show_status()
    settings = service.settings
    default = service.models.classifier(None)
    return {
        "version": service.version,
        "python": platform.python_version(),
        "onnxruntime": onnxruntime.__version__,
        "digest": default.model.digest,
        "device": str(default.model.device),
        "provider": default.model.provider,
        "provider_options": default.model.provider_options,
        "cpus": service.cpus,
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
            "max_texts": settings.max_texts,
            "max_text_chars": settings.max_text_chars,
            "max_body_bytes": settings.max_body_bytes,
            "max_inflight_bytes": service.inflight.limit,
            "max_header_bytes": settings.max_header_bytes,
            "deadline_ms": settings.deadline_ms,
        },
        "workers": [
            {
                "number": worker.number,
                "pid": worker.pid,
                "stage": worker.phase.name.lower(),
                "restarts": worker.restarts,
                "connections": worker.connections,
                "in_flight": worker.in_flight,
            }
            for worker in service.workers
        ],
    }


@router.get(
    "/models",
    operation_id="listModels",
    responses=documented(Unauthorized, RateLimited),
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


@router.post(
    "/models/{name}/reload",
    operation_id="reloadModel",
    responses={
        **example({"status": "reloaded", "digest": DIGEST}),
        **documented(
            Unauthorized, ModelNotFound, InvalidBundle, OutOfMemory, NotReady, ShuttingDown
        ),
    },
    openapi_extra=NAME_IN_PATH,
)
async def reload(request: HttpRequest) -> Reloaded:
    """Load a model's bundle again. Needs an admin key.

    The old model answers until the new one is loaded.
    """
    service, name = request.exchange.service, request.path_params["name"]
    await service.reload(name)
    digest = service.models.classifier(name).model.digest
    return {"status": "reloaded", "digest": digest}
