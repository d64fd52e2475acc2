"""The HTTP application: our own routes and those of the adapters, within one envelope.

Its pages at / and /docs have their HTML, CSS and JavaScript from this service.
"""

import gzip
import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, HTTPException, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles
from fastapi.telemetry import TelemetryConfig
from starlette.responses import RedirectResponse
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from sentiment_service import errors
from sentiment_service.http import classify, operations
from sentiment_service.http.exchange import (
    HttpRequest,
    Route,
    TextRoute,
    application,
    packed_answer,
)
from sentiment_service.http.openapi import ERRORS, text_example, with_components
from sentiment_service.observability.metrics import Metrics
from sentiment_service.requests.exchange import OTHER_METHOD, UNMATCHED
from sentiment_service.requests.limits import Paths, PathSet
from sentiment_service.requests.service import Adapter, Service

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
TEXT_STATUSES = dict.fromkeys(error.status for error in ERRORS)
OWN_PATHS = Paths(
    probes=PathSet({"/health", "/health/live", "/health/ready"}),
    open=PathSet({"/", "/docs", "/docs/*", "/openapi.json", "/metrics", "/web/*"}),
    admin=PathSet({"/models/*/reload"}),
    quiet=PathSet({"/metrics", "/web/*"}),
)


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
    """The application, also at the paths below ``prefix``: a proxy may pass them on as they are."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path.startswith(f"{prefix}/"):
            scope = {**scope, "path": path.removeprefix(prefix)}
        await app(scope, receive, send)

    return answer


def all_routes(service: Service, adapters: Iterable[Adapter]) -> list[BaseRoute]:
    """Our own routes and those of the adapters, with those that take texts first.

    The first route that matches a path answers: one with this very path before one with a name in
    it. Each route that takes texts gets its metric series.
    """
    own = [*classify.router.routes, *operations.router.routes, *page_router.routes]
    if not service.settings.metrics_port:
        own += operations.metrics_router.routes
    if service.settings.docs == "on":
        own += docs_router.routes
    if prefix := service.settings.root_path:
        own.append(_to_page(prefix))
    routes = [*own, *(route for adapter in adapters for route in adapter.routes)]
    taken = set()
    for route in routes:
        if isinstance(route, Route):
            kind = (route.path, *sorted(route.methods or ()))
            if kind in taken:
                raise errors.UserError(
                    f"{route.name}: {route.path} is another route; choose another path"
                )
            taken.add(kind)
    expect_requests(service.metrics, routes)
    return sorted(routes, key=_order)


def _to_page(prefix: str) -> Route:
    """What leads from the prefix to the page: its links are relative to its directory."""

    async def to_page(request: HttpRequest) -> Response:
        return RedirectResponse(f"{prefix.rpartition('/')[2]}/")

    return Route(prefix, to_page, methods=["GET", "POST"], include_in_schema=False)


def _order(route: BaseRoute) -> tuple[bool, bool]:
    return not isinstance(route, TextRoute), isinstance(route, Route) and "{" in route.path


def expect_requests(series: Metrics, routes: Iterable[BaseRoute]) -> None:
    """Create the metric series of requests for answers at 0, before the first request.

    Alerts and dashboard read them, and a rate misses the first increase of a series that did not
    exist before. Each route that takes texts has a series for each status that a text may get, and
    one for clients that disconnect. The series of other routes appear with their first request.
    """
    for route in routes:
        if isinstance(route, TextRoute):
            for status in (200, errors.ClientDisconnected.status, *TEXT_STATUSES):
                series.expect_request(route.path, "POST", status, route.operation)
    for refusal in (errors.BadRequest, errors.HeadersTooLarge):
        series.expect_request(UNMATCHED, OTHER_METHOD, refusal.status)


page_router = APIRouter(tags=["page"], route_class=Route)
docs_router = APIRouter(include_in_schema=False, route_class=Route)  # only with --docs on

_DIRECTORY = Path(__file__).parents[1] / "web"
# It serves no file outside its directory, and answers 304 if the client's ETag is still valid.
_FILES = StaticFiles(directory=_DIRECTORY)
_DOCS_FILES = StaticFiles(directory=_DIRECTORY / "docs")
# They lie compressed, because they are large. All browsers accept gzip; to unpack them for others
# would hold up the event loop.
_PACKED = ("swagger-ui/swagger-ui-bundle.js", "swagger-ui/swagger-ui.css")
_DOCS_LINK = '<a href="docs">API documentation</a>'
# Images may be data: URLs, because the icons in Swagger UI's style sheet are.
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


@page_router.get(
    "/",
    operation_id="getPage",
    response_class=HTMLResponse,
    responses=text_example("<!doctype html>\n", "text/html"),
)
@page_router.get("/web/{name}", include_in_schema=False)
async def page(request: HttpRequest) -> Response:
    """A web page for trying the service."""
    name = request.path_params.get("name", "index.html")
    if name == "index.html" and request.exchange.service.settings.docs == "off":
        text = (_DIRECTORY / name).read_text(encoding="utf-8")
        response: Response = HTMLResponse(text.replace(_DOCS_LINK, ""))
        response.headers.update(_HEADERS)
        return response
    return await _file(request, _FILES, name)


@docs_router.get("/docs")
@docs_router.get("/docs/{name:path}")
async def docs(request: HttpRequest) -> Response:
    """Swagger UI, which shows the OpenAPI document of this service."""
    name = request.path_params.get("name", "index.html")
    if name not in _PACKED:
        return await _file(request, _DOCS_FILES, name)
    response = await _DOCS_FILES.get_response(f"{name}.gz", request.scope)
    response.headers.update({**_HEADERS, "content-encoding": "gzip"})
    return response


@docs_router.get("/openapi.json")
async def openapi(request: HttpRequest) -> Response:
    """The OpenAPI document of this service."""
    return packed_answer(request, request.app.packed_openapi, {"content-type": "application/json"})


async def _file(request: HttpRequest, files: StaticFiles, name: str) -> Response:
    # No path with .. leads to a file, and that of a packed one has no .gz.
    if ".." in name or name.endswith(".gz"):
        raise HTTPException(404)
    response = await files.get_response(name, request.scope)
    response.headers.update(_HEADERS)
    return response
