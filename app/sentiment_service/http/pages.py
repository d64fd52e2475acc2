"""The pages at / and /docs, and the error of a path that no route has, with the nearest route."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from fastapi import APIRouter, Response
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from sentiment_service import errors
from sentiment_service.http.openapi import documented, text_example
from sentiment_service.http.routes import (
    HttpExchange,
    HttpRequest,
    JsonAnswer,
    Route,
    packed_answer,
)
from sentiment_service.requests.limits import Paths, PathSet

# Those of all our own routes.
OWN_PATHS = Paths(
    probes=PathSet({"/health", "/health/live", "/health/ready"}),
    files=PathSet({"/docs/*", "/web/*"}),
    open=PathSet({"/", "/docs", "/openapi.json", "/metrics"}),
    admin=PathSet({"/models/*/reload", "/models/*/promote"}),
    quiet=PathSet({"/metrics", "/web/*"}),
)

router = APIRouter(tags=["page"], route_class=Route)
docs_router = APIRouter(include_in_schema=False, route_class=Route)  # only with --docs on

_DIRECTORY = Path(__file__).parents[1] / "web"
# It serves no file outside its directory, and answers 304 if the client's ETag is still valid.
_FILES = StaticFiles(directory=_DIRECTORY)
# They lie compressed, because they are large, and all browsers accept gzip.
_PACKED = ("docs/swagger-ui/swagger-ui-bundle.js", "docs/swagger-ui/swagger-ui.css")
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
# A wrong path and the nearest route begin with so many characters; of a long path, so many count.
LEAST_COMMON, LONGEST_ASKED = 4, 200


@router.get(
    "/",
    operation_id="getPage",
    response_class=HTMLResponse,
    responses={**text_example("<!doctype html>\n", "text/html"), **documented(errors.RateLimited)},
)
@router.get("/web/{name}", include_in_schema=False)
async def page(request: HttpRequest) -> Response:
    """A web page for trying the service. Who accepts no HTML gets the status in JSON."""
    name = request.path_params.get("name", "index.html")
    if name != "index.html":
        return await _file(request, name)
    service = request.exchange.service
    response: Response
    if "html" not in request.headers.get("accept", "html"):
        service.check_live()
        response = JsonAnswer({"status": "alive"})  # as KServe's protocol V1 has it
    elif service.settings.docs == "off":
        text = (_DIRECTORY / name).read_text(encoding="utf-8")
        response = HTMLResponse(text.replace(_DOCS_LINK, ""), headers=_HEADERS)
    else:
        response = await _file(request, name)
    response.headers["vary"] = "Accept"
    return response


@docs_router.get("/docs")
@docs_router.get("/docs/{name:path}")
async def docs(request: HttpRequest) -> Response:
    name = f"docs/{request.path_params.get('name', 'index.html')}"
    if name not in _PACKED:
        return await _file(request, name)
    response = await _FILES.get_response(f"{name}.gz", request.scope)
    response.headers.update({**_HEADERS, "content-encoding": "gzip"})
    return response


@docs_router.get("/openapi.json")
async def openapi(request: HttpRequest) -> Response:
    return packed_answer(request, request.app.packed_openapi, {"content-type": "application/json"})


async def _file(request: HttpRequest, name: str) -> Response:
    # No path with .. or // leads to a file, and that of a packed one has no .gz.
    if ".." in name or "//" in name or name.endswith(".gz"):
        raise not_found(request.exchange)
    try:
        response = await _FILES.get_response(name, request.scope)
    except HTTPException:
        raise not_found(request.exchange) from None
    response.headers.update(_HEADERS)
    return response


async def no_route(scope: Scope, receive: Receive, send: Send) -> None:
    raise not_found(scope["exchange"])


def not_found(exchange: HttpExchange) -> errors.NotFound:
    if exchange.path == "/metrics":
        port = exchange.service.settings.metrics_port
        return errors.NotFound(f"the metrics are on port {port} (--metrics-port)")
    known = [(route.path, *sorted(route.methods or ())) for route in exchange.routes]
    paths = {path for path, *_ in known}
    if "/classify" not in paths:
        return errors.NotFound("this port has /metrics alone (--metrics-port); use that of --port")
    near = nearest(known, exchange.verb, exchange.path)
    near = f"; the nearest is {near}" if near else "; POST /classify classifies texts"
    docs = "; /docs lists our routes" if "/docs" in paths else ""
    return errors.NotFound(f"no route has this path{near}{docs}")


def nearest(routes: Iterable[Sequence[str]], method: str, path: str) -> str:
    """The route that a wrong path probably means, with its method; empty if none is like it.

    ``routes`` are paths with their methods. The nearest is the end of the path, as behind a proxy's
    prefix, or begins like it. To compare all letters would take a millisecond.
    """
    asked = path[:LONGEST_ASKED].strip("/").lower().split("/")
    whole = f"/{'/'.join(asked)}/"
    best, found = (LEAST_COMMON - 1, True, 0), ""
    for route, *methods in routes:
        known = f"{route}/"
        same = len(known) if whole.endswith(known) else 1
        if same > 1 or known[:LEAST_COMMON] == whole[:LEAST_COMMON]:
            same = max(same, _same_begin(known.strip("/").split("/"), asked))
        if (score := (same, method in methods, -len(known))) > best:
            best, found = score, f"{methods[0]} {route}"
    return found


def _same_begin(known: Sequence[str], asked: Sequence[str]) -> int:
    """With how many characters both paths begin. A name in braces stands for any other."""
    same = 1
    for part, word in zip(known, asked, strict=False):
        if "{" not in part and part != word:
            pairs = enumerate(zip(part, word, strict=False))
            shorter = min(len(part), len(word))
            return same + next((n for n, (one, other) in pairs if one != other), shorter)
        same += len(word) + 1
    return same
