"""Build the FastAPI application from the settings."""

import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, Depends, FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from fastapi.telemetry import TelemetryConfig
from starlette.types import ASGIApp
from starlette_compress import CompressMiddleware

from app.api.middleware.observation import OTHER_METHOD
from app.api.middleware.request import RequestMiddleware
from app.api.openapi.components import with_components
from app.api.problems import HANDLERS
from app.api.protocols import huggingface, tei, vllm
from app.api.protocols.hosting import kserve, sagemaker, vertex
from app.api.protocols.open_inference import repository
from app.api.protocols.open_inference import routes as open_inference
from app.api.routes import classify, operations, page, stream, tokenize
from app.api.routing import COMPRESS_BYTES, UNMATCHED, DirectRoute
from app.api.service import Service
from app.config import platforms
from app.config.platforms import VertexRoutes
from app.config.settings import Settings
from app.engine.loading import load_all
from app.engine.model.bundle import bundles_to_use
from app.errors import BadRequest, ClientDisconnected, HeadersTooLarge
from app.observability.metrics import Metrics
from app.observability.traces import require_sdk

DESCRIPTION = """
Errors are `application/problem+json` with a stable `code`. `x-request-id` is echoed, or made.
`x-request-timeout-ms` asks for an answer within fewer milliseconds than `/info` says.
Bodies may be compressed (gzip, br, deflate), and so are long answers for clients that accept it.
The Open Inference Protocol's `POST /v2/models/{name}/infer` is described by that protocol.
"""
TAGS = [
    {"name": "classification", "description": "The service's own formats."},
    {"name": "compatibility", "description": "The formats of other servers."},
    {"name": "operations", "description": "For operators: health, limits, models, metrics."},
    {"name": "page", "description": "A page to try the service."},
]
# FastAPI's telemetry is off. The service has its own, without the paths and queries of clients.
NO_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False}
ROUTERS = [
    *(module.router for module in (classify, stream, tokenize, huggingface, tei, vllm)),
    *(module.classifying for module in (sagemaker, kserve, open_inference)),
    repository.router,  # before open_inference, whose models would be named stats
    *(module.router for module in (sagemaker, kserve, open_inference, operations, page)),
]


def create_app(settings: Settings) -> FastAPI:
    """Load and warm up the models, and return the application that serves them.

    It answers requests only while its lifespan is active.

    Raises:
        UserError: a bundle cannot be served.
    """
    chosen = platforms.vertex_routes(os.environ)
    service = Service(settings, health_route=chosen.health)
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
        openapi_url="/openapi.json" if settings.docs == "on" else None,
        docs_url=None,  # FastAPI's page loads Swagger UI from the internet
        redoc_url=None,
    )
    _add_routes(app, service, chosen)
    return app


class Application(FastAPI):
    """FastAPI with the service's middleware outside of FastAPI's own layers.

    So a request of a direct route is answered without those layers, which it does not need.
    """

    def __init__(self, service: Service, **options: Any) -> None:
        super().__init__(exception_handlers=HANDLERS, telemetry=NO_TELEMETRY, **options)
        self.state.service = service
        self.state.routes = []
        self.add_middleware(CompressMiddleware, minimum_size=COMPRESS_BYTES)

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document, which is made when it is first asked for."""
        if self.openapi_schema is None:
            self.openapi_schema = with_components(super().openapi())
        return self.openapi_schema

    def build_middleware_stack(self) -> ASGIApp:
        """The layers that each request passes, from the outside to the inside."""
        service = self.state.service
        stack: ASGIApp = RequestMiddleware(
            super().build_middleware_stack(),
            service=service,
            routes=self.state.routes,
        )
        if service.settings.cors_origins:
            stack = CORSMiddleware(
                stack,
                allow_origins=service.settings.cors_origins,
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=["x-request-id", "server-timing", "retry-after"],
            )
        return stack


def _add_routes(app: FastAPI, service: Service, chosen: VertexRoutes) -> None:
    routers = [*ROUTERS]
    if not service.settings.metrics_port:
        routers.append(operations.metrics_router)
    if service.settings.docs == "on":
        routers.append(page.docs_router)
    routers.append(vertex.router(chosen, _routes(routers)))
    # This only documents the keys in OpenAPI. The middleware checks them.
    keys = [Depends(HTTPBearer(auto_error=False))] if service.settings.api_keys else None
    for router in routers:
        app.include_router(router, dependencies=keys)
    app.state.routes = _routes(routers)
    _expect_requests(service.metrics, app.state.routes)
    for refusal in (BadRequest, HeadersTooLarge):
        service.metrics.expect_request(UNMATCHED, OTHER_METHOD, refusal.status)


def _routes(routers: Iterable[APIRouter]) -> list[APIRoute]:
    return [route for router in routers for route in router.routes if isinstance(route, APIRoute)]


def create_metrics_app(service: Service) -> FastAPI:
    """An application that serves only the service's metrics, for a separate port."""
    app = Application(service, openapi_url=None)
    app.include_router(operations.metrics_router)
    app.state.routes = operations.metrics_router.routes
    return app


def _expect_requests(metrics: Metrics, routes: Iterable[APIRoute]) -> None:
    """Create the metric series of requests for answers at 0, before the first request.

    Alerts and dashboard read them, and a rate misses the first increase of a series that did not
    exist before. Each route has a series for each documented status, and one for clients that
    disconnect. The series of other routes appear with their first request.
    """
    for route in routes:
        if isinstance(route, DirectRoute) and route.methods == {"POST"}:
            for status in (200, ClientDisconnected.status, *route.responses):
                metrics.expect_request(route.path, "POST", int(status))
