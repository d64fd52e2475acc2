"""The composition root: settings in, an application or a running server out."""

import asyncio
import gc
import importlib.metadata
import logging
import math
import os
import signal
import socket
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import Depends, FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from prometheus_client import start_http_server
from starlette_compress import CompressMiddleware, add_compress_type

from app import logs
from app.api import native, operations, page, stream
from app.api.classifier import Classifier
from app.api.middleware import RequestMiddleware
from app.api.problems import HANDLERS
from app.api.protocols import huggingface, open_inference, tei, vllm
from app.api.service import Service
from app.bundle import EMBEDDED_BUNDLE, Bundle
from app.cpu import available_cpus
from app.errors import ClientDisconnected, ServiceError, UserError
from app.http_protocol import HttpProtocol
from app.metrics import Metrics, ModelMetrics
from app.model import Model
from app.settings import Settings
from app.traces import Tracer
from app.tuning import Plan, tune

# Longer than load balancers keep theirs (60 s mostly): the side that sends must close first.
KEEP_ALIVE_S = 75
FAREWELL_S = 0.2
WARM_UP_TEXTS = (1, 8)
# Smaller answers go out as they are: the event loop has other work.
COMPRESS_BYTES = 8_192
DESCRIPTION = """
Errors are `application/problem+json` with a stable `code`. `x-request-id` is echoed, or made.
`x-request-timeout-ms` asks for an answer within fewer milliseconds than `/info` says.
Bodies may be compressed (gzip, br, deflate), and so are long answers for clients that accept it.
The Open Inference Protocol's `POST /v2/models/{name}/infer` is described by that protocol.
"""
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
        # One thread: large requests take turns there, and the event loop competes with one.
        tokenizer = ThreadPoolExecutor(1, "tokenizer")

        def classifier(model: Model, plan: Plan) -> Classifier:
            metrics = ModelMetrics(service.metrics, model, version=service.version)
            return Classifier(model, plan, settings, metrics, tokenizer=tokenizer, tracer=tracer)

        async def load(old: Classifier) -> Classifier:
            model, plan = await asyncio.to_thread(
                _load, old.model.path, settings, cpus, plan=old.plan
            )
            if model.name != old.model.name:
                raise UserError(f"{model.path} now holds a model named {model.name}")
            return classifier(model, plan)

        service.classifiers = {name: classifier(*pair) for name, pair in models.items()}
        models.clear()  # those that are replaced should be freed
        service.load = load
        yield
        await service.drain()
        tokenizer.shutdown(wait=False, cancel_futures=True)
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
        # Ours have no paths and queries of clients in them.
        telemetry={"tracing": False, "metrics": False, "logs": False},
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


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then finish what was begun.

    Raises:
        UserError: the address or a bundle cannot be used.
    """
    logs.configure(settings.log_level, settings.log_format)
    with _bind(settings.host, settings.port) as listener:
        app = create_app(settings)
        config = uvicorn.Config(
            app,
            # uvicorn asks for a class, and calls it.
            http=partial(HttpProtocol, max_header_bytes=settings.max_header_bytes),  # type: ignore[arg-type]
            lifespan="on",
            ws="none",
            log_config=None,
            log_level="warning",  # of uvicorn's own messages
            access_log=False,
            server_header=False,
            # Otherwise whoever asks from this host could say that he is somebody else.
            proxy_headers="FORWARDED_ALLOW_IPS" in os.environ,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=math.ceil(settings.drain_ms / 1000),
        )
        # The models stay: the garbage collector need not look at all that again and again.
        gc.freeze()
        service = app.state.service
        if settings.metrics_port:
            _serve_metrics(settings, service.metrics)
        Server(config, service).run([listener])
    if service.abandoned:
        # Its thread cannot be interrupted, and the interpreter would abort at its end.
        logger.warning("a batch was still running when drain-ms was over; its answer is lost")
        logging.shutdown()
        os._exit(0)


class Server(uvicorn.Server):
    """uvicorn's server, but the service knows of a shutdown before it begins."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload)
        for listener in sockets or []:
            host, port = listener.getsockname()[:2]
            where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            logger.info("serving %s at http://%s", self._service.summary(), where)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop at the first signal; a second Ctrl-C ends the process as it is."""
        if self.should_exit and sig == signal.SIGINT:
            # A runner inside a native call cannot be interrupted, only left behind.
            os._exit(128 + sig)
        self._service.stop()
        # Not uvicorn's own handler: it raises the signal again after a graceful end, and the
        # exit code would tell of a failure.
        self.should_exit = True

    def _reload(self) -> None:
        """Load all models again."""

        async def reload(name: str) -> None:
            try:
                await self._service.reload(name)
            except ServiceError:
                pass  # the log says why, or the service shuts down
            except Exception:
                logger.exception("%s was not loaded again", name)

        self._reloading = asyncio.gather(*map(reload, self._service.classifiers))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        logger.info("shutting down")
        self._service.closing.set()
        # uvicorn closes what is between two requests, and would lose the next if it is on its
        # way. In this time clients get an answer that tells them to close.
        await asyncio.sleep(FAREWELL_S)
        await super().shutdown(sockets)
        logger.info("stopped")


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


def _expect_requests(metrics: Metrics, route: APIRoute) -> None:
    """Have the series of all answers that the route documents, and of clients that leave."""
    for method in route.methods or ():
        for status in (200, ClientDisconnected.status, *route.responses):
            metrics.expect_request(route.path, method, int(status))


def _serve_metrics(settings: Settings, metrics: Metrics) -> None:
    try:
        start_http_server(settings.metrics_port, settings.host, metrics.registry)
    except OSError as error:
        where = f"{settings.host} port {settings.metrics_port}"
        raise UserError(f"cannot listen on {where} for metrics: {error.strerror}") from error


def _bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen: nobody connects before the models are warm."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise UserError(f"cannot listen on {host} port {port}: {error.strerror}") from error
    return listener
