"""Puts the service together: its settings, models, adapters, and the HTTP application with all
routes within one envelope.
"""

import gzip
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import cached_property, reduce
from importlib import import_module
from operator import or_
from typing import Any, cast

from fastapi import FastAPI, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.telemetry import TelemetryConfig
from starlette.responses import RedirectResponse
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from sentiment_service import errors
from sentiment_service.engine.loading import load_all
from sentiment_service.engine.model.bundle import bundles_to_use
from sentiment_service.http import operations, pages
from sentiment_service.http import routes as own_routes
from sentiment_service.http.openapi import with_components
from sentiment_service.http.routes import HttpRequest, Route, TextRoute, application
from sentiment_service.observability.metrics import Metrics
from sentiment_service.requests.exchange import OTHER_METHOD, UNMATCHED
from sentiment_service.requests.limits import Paths, PathSet
from sentiment_service.requests.service import Adapter, Service, Worker
from sentiment_service.settings.credentials import Credentials
from sentiment_service.settings.settings import Settings

# The modules whose ``ADAPTER`` is served. Without its line here, an adapter is not served, and
# nothing else names it.
ADAPTERS = (
    "sentiment_service.adapters.azure_language",
    "sentiment_service.adapters.comprehend",  # before the other adapter of POST /
    "sentiment_service.adapters.explain",
    "sentiment_service.adapters.google_language",
    "sentiment_service.adapters.huggingface",
    "sentiment_service.adapters.open_inference",
    "sentiment_service.adapters.stream",
    "sentiment_service.adapters.tokenize",
    "sentiment_service.adapters.vllm",
    # The last: some of its paths are the user's, who gets an error if one is taken.
    "sentiment_service.adapters.platforms",
    "sentiment_service.adapters.grpc",
)

DESCRIPTION = """
Errors are `application/problem+json` with a stable `code`. Each answer has the request's
`x-request-id`, or a new one. With `x-request-timeout-ms`, a request sets a deadline of its own, if
it is shorter than `deadline_ms` of `/info`. Bodies may be compressed (gzip, br, deflate), and so
are long answers for clients that accept it. Routes of other servers' protocols are listed with the
name of the protocol, which has a description of its own.
"""
TAGS = [
    {"name": "classification", "description": "The service's own formats."},
    {"name": "compatibility", "description": "The protocols of other servers."},
    {"name": "operations", "description": "For operators: health, limits, models, metrics."},
    {"name": "page", "description": "A page to try the service."},
]
# FastAPI's telemetry is off. The service has its own, without the paths and queries of clients.
NO_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False}


def create_app(
    settings: Settings, credentials: Credentials | None = None, *, worker: Worker | None = None
) -> FastAPI:
    """Load and warm up the models, and return the application that serves them.

    It answers requests only while its lifespan is active, which can be once. ``credentials`` are
    read unless given.
    """
    known: list[Adapter] = [import_module(name).ADAPTER for name in ADAPTERS]
    adapters = [one.configured(settings, known) if one.configured else one for one in known]
    own = pages.OWN_PATHS | Paths(open=PathSet({settings.root_path}))
    paths = reduce(or_, [adapter.paths for adapter in adapters], own)
    service = Service(settings, paths, credentials=credentials, worker=worker)
    routes = all_routes(service, adapters)
    models = load_all(bundles_to_use(settings.model), service.config, service.worker.cpus)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with service.running(models):
            models.clear()  # a reference here would keep a model in memory after its reload
            yield

    app = Application(service, routes, lifespan=lifespan)
    app.state.side_servers = [adapter.server for adapter in adapters if adapter.server]
    return app


def create_metrics_app(service: Service) -> FastAPI:
    """An application that serves only the service's metrics, for a separate port."""
    return Application(service, operations.metrics_router.routes)


class Application(FastAPI):
    """FastAPI's router and OpenAPI document, with our envelope in the place of its own layers."""

    def __init__(self, service: Service, routes: Sequence[BaseRoute], **options: Any) -> None:
        super().__init__(
            telemetry=NO_TELEMETRY,
            title="Sentiment service",
            description=DESCRIPTION,
            version=service.version,
            redirect_slashes=False,
            openapi_tags=TAGS,
            servers=[{"url": "./"}],  # beside the document, whatever a proxy puts in front
            openapi_url=None,  # ``openapi`` below has it, and Swagger UI
            **options,
        )
        self.state.service = service
        self.state.scrapes = operations.Scrapes(service.metrics)
        self.router.routes.extend(routes)
        self.router.default = pages.no_route

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document, which is made at the first request for it."""
        if self.openapi_schema is None:
            self.openapi_schema = with_components(
                super().openapi(), keys=self.state.service.settings.has_keys
            )
        return self.openapi_schema

    @cached_property
    def packed_openapi(self) -> bytes:
        document = json.dumps(self.openapi(), separators=(",", ":"))
        return gzip.compress(document.encode(), mtime=0)

    def build_middleware_stack(self) -> ASGIApp:
        """What each request passes before it reaches its route."""
        service: Service = self.state.service
        app = application(service, self.router)
        if service.settings.root_path:
            app = below(service.settings.root_path, app)
        if not service.settings.cors_origins:
            return app
        return CORSMiddleware(
            app,
            allow_origins=service.settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "server-timing", "retry-after", "x-model-digest"],
        )


def below(prefix: str, app: ASGIApp) -> ASGIApp:
    """The application, also at the paths below ``prefix``: a proxy may pass them on as they are.

    ``prefix`` itself is the path ``/``, unless a browser asks for the page there: see ``_to_page``.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        reads = scope.get("method") in ("GET", "HEAD")
        if path.startswith(f"{prefix}/") or (path == prefix and not reads):
            scope = {**scope, "path": path.removeprefix(prefix) or "/"}
        await app(scope, receive, send)

    return answer


def all_routes(service: Service, adapters: Iterable[Adapter]) -> list[BaseRoute]:
    """Our own routes and those of the adapters, with those that take texts first.

    The first route that matches a path answers: one with this very path before one with a name in
    it. Each route that takes texts gets its metric series.
    """
    own = [*own_routes.router.routes, *operations.router.routes, *pages.router.routes]
    if not service.settings.metrics_port:
        own += operations.metrics_router.routes
    if service.settings.docs == "on":
        own += pages.docs_router.routes
    routes = [*own, *(route for adapter in adapters for route in adapter.routes)]
    if prefix := service.settings.root_path:
        paths = [route.path for route in routes if isinstance(route, Route)]
        if hidden := [path for path in paths if f"{path}/".startswith(f"{prefix}/")]:
            raise errors.UserError(
                f"--root-path: {hidden[0]} is a path of this service; choose another than {prefix}"
            )
        routes.append(_to_page(prefix))
    forms: dict[str, dict[str, Route]] = {}
    for adapter in adapters:
        for (path, field), form in adapter.forms.items():
            forms.setdefault(path, {})[field] = cast(Route, form)
    taken = set()
    for route in routes:
        if isinstance(route, Route):
            kind = (route.path, *sorted(route.methods or ()))
            if kind in taken:
                raise errors.UserError(
                    f"{route.name}: {route.path} is another route; choose another path"
                )
            taken.add(kind)
            route.forms = forms.get(route.path, {})
    expect_requests(service.metrics, routes)
    return sorted(routes, key=_order)


def _to_page(prefix: str) -> Route:
    """What leads from the prefix to the page: its links are relative to its directory."""

    async def to_page(request: HttpRequest) -> Response:
        return RedirectResponse(f"{prefix.rpartition('/')[2]}/")

    return Route(prefix, to_page, methods=["GET"], include_in_schema=False)


def _order(route: BaseRoute) -> tuple[bool, bool]:
    return not isinstance(route, TextRoute), isinstance(route, Route) and "{" in route.path


def expect_requests(series: Metrics, routes: Iterable[BaseRoute]) -> None:
    """Create the metric series of requests for answers at 0, before the first request.

    A rate misses the first increase of a series that did not exist before. The series of routes
    that take no texts appear with their first request.
    """
    for route in routes:
        if isinstance(route, TextRoute):
            for status, outcome in errors.ANSWERS:
                series.expect_request(route.path, "POST", status, outcome, route.operation)
    for refusal in (errors.BadRequest, errors.HeadersTooLarge):
        series.expect_request(UNMATCHED, OTHER_METHOD, refusal.status, refusal.code)
