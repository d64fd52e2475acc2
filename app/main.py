"""The composition root: settings in, an application out."""

import asyncio
import importlib.metadata
import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from fastapi import Depends, FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from fastapi.telemetry import TelemetryConfig
from starlette_compress import CompressMiddleware, add_compress_type

from app.api import native, operations, page, stream
from app.api.middleware.request import OTHER_METHOD, UNMATCHED, RequestMiddleware
from app.api.problems import HANDLERS
from app.api.protocols import huggingface, open_inference, tei, vllm
from app.api.service import Service
from app.engine.bundle import EMBEDDED_BUNDLE, Bundle
from app.engine.classifier import Classifier
from app.engine.machine.cpu import available_cpus
from app.engine.model import Model
from app.engine.tuning import Plan, tune
from app.engine.worker import Steps, Worker
from app.errors import BadRequest, ClientDisconnected, HeadersTooLarge, ServiceError, UserError
from app.observability.metrics import Metrics
from app.observability.observer import ModelObserver
from app.observability.traces import Tracer
from app.settings import Settings

WARM_UP_TEXTS = (1, 8)
# Smaller answers go out as they are: the event loop has other work.
COMPRESS_BYTES = 8_192
DESCRIPTION = """
Errors are `application/problem+json` with a stable `code`. `x-request-id` is echoed, or made.
`x-request-timeout-ms` asks for an answer within fewer milliseconds than `/info` says.
Bodies may be compressed (gzip, br, deflate), and so are long answers for clients that accept it.
The Open Inference Protocol's `POST /v2/models/{name}/infer` is described by that protocol.
"""
# Ours has no paths and queries of clients in it.
NO_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False}
ROUTERS = [
    module.router
    for module in (native, stream, huggingface, tei, open_inference, vllm, operations, page)
]

logger = logging.getLogger(__name__)


def create_app(settings: Settings) -> FastAPI:
    """The application, its models loaded and warm; it serves within its lifespan.

    Raises:
        UserError: a bundle cannot be served.
    """
    cpus = available_cpus()
    models: dict[str, tuple[Model, Plan]] = {}
    for path in settings.model or (EMBEDDED_BUNDLE,):
        model, plan = _load(path, settings, cpus)
        if model.name in models:
            raise UserError(f"two bundles hold a model named {model.name}; rename one")
        models[model.name] = model, plan
    version = importlib.metadata.version("sentiment-service")
    tracer = Tracer(settings.otlp_endpoint, version=version) if settings.otlp_endpoint else None
    service = Service(settings, version=version, cpus=cpus)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.worker = Worker("tokenizer")

        def classifier(model: Model, plan: Plan) -> Classifier:
            observer = ModelObserver(service.metrics, tracer, model, version=service.version)
            return Classifier(model, plan, settings, observer, worker=service.worker)

        async def load(old: Classifier) -> Classifier:
            # Not a thread of the event loop, which would wait for it at its end.
            loader = Worker("loader")
            try:
                steps = _load_again(old.model.path, settings, cpus, old.plan)
                model, plan = await loader.run(steps, deadline=math.inf)
            finally:
                loader.close()
            if model.name != old.model.name:
                raise UserError(f"{model.path} now holds a model named {model.name}")
            return classifier(model, plan)

        service.classifiers = {name: classifier(*pair) for name, pair in models.items()}
        models.clear()  # those that are replaced should be freed
        service.load = load
        yield
        service.stop()
        await service.drain(service.stop_by)
        service.worker.close()
        if tracer:
            await asyncio.to_thread(tracer.close)

    app = FastAPI(
        title="Sentiment service",
        description=DESCRIPTION,
        version=service.version,
        lifespan=lifespan,
        exception_handlers=HANDLERS,
        redirect_slashes=False,
        openapi_url="/openapi.json" if settings.docs == "on" else None,
        redoc_url=None,
        telemetry=NO_TELEMETRY,
    )
    app.state.service = service
    routers = [*ROUTERS, *([] if settings.metrics_port else [operations.metrics_router])]
    # For OpenAPI; the middleware decides.
    keys = [Depends(HTTPBearer(auto_error=False))] if settings.api_keys else None
    for router in routers:
        app.include_router(router, dependencies=keys)
    routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
    app.state.routes = routes
    for route in routes:
        _expect_requests(service.metrics, route)
    for refusal in (BadRequest, HeadersTooLarge):
        service.metrics.expect_request(UNMATCHED, OTHER_METHOD, refusal.status)
    app.add_middleware(RequestMiddleware, service=service, routes=routes, tracer=tracer)
    add_compress_type("application/problem+json")
    add_compress_type("application/x-ndjson", streaming=True)
    app.add_middleware(CompressMiddleware, minimum_size=COMPRESS_BYTES)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "server-timing", "retry-after"],
        )
    return app


def create_metrics_app(service: Service) -> FastAPI:
    """Its metrics and nothing else, for a port of their own."""
    app = FastAPI(openapi_url=None, exception_handlers=HANDLERS, telemetry=NO_TELEMETRY)
    app.state.service = service
    app.include_router(operations.metrics_router)
    app.state.routes = operations.metrics_router.routes
    app.add_middleware(RequestMiddleware, service=service, routes=app.state.routes, tracer=None)
    return app


def _load(
    path: Path, settings: Settings, cpus: float, plan: Plan | None = None
) -> tuple[Model, Plan]:
    """The bundle's model, tuned and warm: slow or impossible first batches are behind it.

    With a ``plan`` nothing is measured: while others compute, it would measure them, too.
    """
    threads = plan.threads if plan is not None else 1
    model = Model.load(
        Bundle.open(path), device=settings.device, precision=settings.precision, threads=threads
    )
    encoding = model.encode("The first batch pays for memory that the next ones find ready.")
    try:
        results = [r for texts in WARM_UP_TEXTS for r in model.infer([encoding] * texts)]
    except Exception as error:  # onnxruntime's exceptions share no base class
        raise UserError(f"{path}: ONNX Runtime cannot compute the model: {error}") from error
    if any(isinstance(result, ServiceError) for result in results):
        raise UserError(f"{path}: the model gives no finite logits")
    if model.kernels:
        logger.info("%s: int8 with ONNX Runtime's %s kernels", model.name, model.kernels)
    if plan is None:
        plan = tune(model, settings, cpus)
        logger.info("%s: %s", model.name, plan.summary())
    else:
        plan = replace(plan, budget=plan.budget.again())
    return model.with_threads(plan.threads), plan


def _load_again(
    path: Path, settings: Settings, cpus: float, plan: Plan
) -> Steps[tuple[Model, Plan]]:
    """``_load`` as a job of a worker, which takes it in one step."""
    yield
    return _load(path, settings, cpus, plan)


def _expect_requests(metrics: Metrics, route: APIRoute) -> None:
    """Have the series of all answers that the route documents, and of clients that leave."""
    for method in route.methods or ():
        for status in (200, ClientDisconnected.status, *route.responses):
            metrics.expect_request(route.path, method, int(status))
