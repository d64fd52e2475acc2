"""Build the FastAPI application from the settings."""

import gzip
import json
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Any

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.routing import APIRoute
from fastapi.telemetry import TelemetryConfig
from starlette.types import ASGIApp

from app.api.http_exchange import application
from app.api.openapi.components import with_components
from app.api.protocols import huggingface, tei, vllm
from app.api.protocols.hosting import kserve, sagemaker, vertex
from app.api.protocols.open_inference import repository
from app.api.protocols.open_inference import routes as open_inference
from app.api.routes import classify, metrics, operations, page, stream, tokenize
from app.api.routing import no_route
from app.arrival import OTHER_METHOD
from app.config import platforms
from app.config.platforms import VertexRoutes
from app.config.settings import Settings
from app.engine.loading import load_all
from app.engine.model.bundle import bundles_to_use
from app.errors import (
    BadRequest,
    ClientDisconnected,
    DeadlineExceeded,
    HeadersTooLarge,
    UnsupportedTransferCoding,
)
from app.exchange import UNMATCHED
from app.observability.metrics import Metrics
from app.observability.traces import require_sdk
from app.service import Service
from app.shared_memory.board import Board

DESCRIPTION = """
Errors are `application/problem+json` with a stable `code`. Each answer has the request's
`x-request-id`, or a new one. With `x-request-timeout-ms`, a request sets a deadline of its own, if
it is shorter than `deadline_ms` of `/info`. Bodies may be compressed (gzip, br, deflate), and so
are long answers for clients that accept it. `POST /v2/models/{name}/infer` is not listed: the Open
Inference Protocol describes it.
"""
TAGS = [
    {"name": "classification", "description": "The service's own formats."},
    {"name": "compatibility", "description": "The formats of other servers."},
    {"name": "operations", "description": "For operators: health, limits, models, metrics."},
    {"name": "page", "description": "A page to try the service."},
]
# FastAPI's telemetry is off. The service has its own, without the paths and queries of clients.
NO_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False}
# The names in paths of ``open_inference`` would also match those of ``repository``.
ROUTES_OF = (
    *(classify, stream, tokenize, huggingface, tei, vllm, sagemaker, kserve),
    *(repository, open_inference, operations, page),
)


def create_app(settings: Settings, board: Board | None = None, cpus: float = 0.0) -> FastAPI:
    """Load and warm up the models, and return the application that serves them.

    It answers requests only while its lifespan is active. A worker of a service has its ``board``,
    and ``cpus`` as its share of the CPUs.

    Raises:
        UserError: a bundle cannot be served.
    """
    chosen = platforms.vertex_routes(os.environ)
    service = Service(settings, health_route=chosen.health, board=board, cpus=cpus)
    if settings.otlp_endpoint:
        require_sdk()
    paths = bundles_to_use(settings.model)
    loaded = load_all(paths, settings, service.cpus)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # The first start uses the models that are loaded already. A restart loads them again.
        models = loaded.copy() or load_all(paths, settings, service.cpus)
        loaded.clear()  # a reference here would keep a model in memory after its reload
        async with service.running(models):
            models.clear()
            yield

    app = Application(
        service,
        title="Sentiment service",
        description=DESCRIPTION,
        version=service.version,
        lifespan=lifespan,
        redirect_slashes=False,
        openapi_tags=TAGS,
        openapi_url=None,  # app/api/routes/page.py has it, and Swagger UI
    )
    _add_routes(app, service, chosen)
    return app


class Application(FastAPI):
    """FastAPI's router and OpenAPI document, with our envelope in the place of its own layers."""

    def __init__(self, service: Service, **options: Any) -> None:
        super().__init__(telemetry=NO_TELEMETRY, **options)
        self.state.service = service
        self.state.scrapes = metrics.Scrapes(service.metrics)
        self.router.default = no_route

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document, which is made when it is first asked for."""
        if self.openapi_schema is None:
            self.openapi_schema = with_components(
                super().openapi(), keys=bool(self.state.service.settings.api_keys)
            )
        return self.openapi_schema

    @cached_property
    def packed_openapi(self) -> bytes:
        """The document as JSON in gzip."""
        return gzip.compress(json.dumps(self.openapi()).encode())

    def build_middleware_stack(self) -> ASGIApp:
        """What each request passes before it reaches its route."""
        service: Service = self.state.service
        app = application(service, self.router)
        if not service.settings.cors_origins:
            return app
        return CORSMiddleware(
            app,
            allow_origins=service.settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "server-timing", "retry-after"],
        )


def _add_routes(app: FastAPI, service: Service, chosen: VertexRoutes) -> None:
    routers = [module.router for module in ROUTES_OF]
    if not service.settings.metrics_port:
        routers.append(metrics.router)
    if service.settings.docs == "on":
        routers.append(page.docs_router)
    routes = [route for router in routers for route in router.routes]
    routes += vertex.router(chosen, routes).routes
    routes.sort(key=_classifies, reverse=True)  # the first that matches answers: the usual one
    app.router.routes.extend(routes)
    _expect_requests(service.metrics, filter(_classifies, routes))
    for refusal in (BadRequest, HeadersTooLarge, UnsupportedTransferCoding):
        service.metrics.expect_request(UNMATCHED, OTHER_METHOD, refusal.status)


def create_metrics_app(service: Service) -> FastAPI:
    """An application that serves only the service's metrics, for a separate port."""
    app = Application(service, openapi_url=None)
    app.router.routes.extend(metrics.router.routes)
    return app


def _classifies(route: APIRoute) -> bool:
    """Whether a deadline can pass, as only routes that compute document it."""
    return DeadlineExceeded.status in route.responses


def _expect_requests(metrics: Metrics, routes: Iterable[APIRoute]) -> None:
    """Create the metric series of requests for answers at 0, before the first request.

    Alerts and dashboard read them, and a rate misses the first increase of a series that did not
    exist before. Each route that classifies has a series for each documented status, and one for
    clients that disconnect. The series of other routes appear with their first request.
    """
    for route in routes:
        for status in (200, ClientDisconnected.status, *route.responses):
            metrics.expect_request(route.path, "POST", int(status))
