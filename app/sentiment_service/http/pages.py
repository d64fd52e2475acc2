"""What browsers and Prometheus fetch: the pages at / and /docs, all of whose files are from this
service, and the metrics; and for a path that no route has, the nearest route.
"""

import asyncio
import gzip
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from fastapi import APIRouter, Response
from fastapi.responses import HTMLResponse, PlainTextResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client import CollectorRegistry, exposition
from prometheus_client.openmetrics import exposition as openmetrics
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketClose

from sentiment_service import errors
from sentiment_service.http.openapi import MODEL, text_example
from sentiment_service.http.routes import HttpExchange, HttpRequest, JsonAnswer, Route
from sentiment_service.observability.metrics import Metrics
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


@router.get(
    "/",
    operation_id="getPage",
    response_class=HTMLResponse,
    responses=text_example("<!doctype html>\n", "text/html"),
)
@router.get("/web/{name}", include_in_schema=False)
async def page(request: HttpRequest) -> Response:
    """A web page for trying the service. Who accepts no HTML gets the status in JSON."""
    name = request.path_params.get("name", "index.html")
    if name != "index.html":
        return await _file(request, _FILES, name)
    service = request.exchange.service
    response: Response
    if "html" not in request.headers.get("accept", "html"):
        service.check_live()
        response = JsonAnswer({"status": "alive"})  # as KServe's protocol V1 has it
    elif service.settings.docs == "off":
        text = (_DIRECTORY / name).read_text(encoding="utf-8")
        response = HTMLResponse(text.replace(_DOCS_LINK, ""), headers=_HEADERS)
    else:
        response = await _file(request, _FILES, name)
    response.headers["vary"] = "Accept"
    return response


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
        raise _not_found(request.exchange)
    try:
        response = await files.get_response(name, request.scope)
    except HTTPException:
        raise _not_found(request.exchange) from None
    response.headers.update(_HEADERS)
    return response


def packed_answer(request: HttpRequest, packed: bytes, headers: Mapping[str, str]) -> Response:
    """Answer with the content of a gzip file, unpacked for clients that do not accept gzip.

    What floods may ask for is compressed beforehand.
    """
    headers = {**headers, "vary": "Accept-Encoding"}  # so a Route does not compress it again
    if "gzip" in request.headers.get("accept-encoding", "").lower():
        return Response(packed, headers={**headers, "content-encoding": "gzip"})
    return Response(gzip.decompress(packed), headers=headers)


EXAMPLE = (
    "# HELP sentiment_model_ready 1 while the model answers.\n"
    "# TYPE sentiment_model_ready gauge\n"
    f'sentiment_model_ready{{model="{MODEL}"}} 1.0\n'
)

metrics_router = APIRouter(tags=["operations"], route_class=Route)  # it may have a port of its own

# After the metrics were rendered, they are not rendered again for this many times as long, and for
# no longer than the seconds: a scrape that waits should not look like a service that hangs.
REST, MAX_REST_S = 10, 0.05
LEVEL = 4  # higher ones of gzip take longer and save little
TEXT = "text/plain"
# What a client may choose. Each further form, such as a version that it names, would be rendered
# and kept apart.
FORMS: dict[str, tuple[Callable[[CollectorRegistry], bytes], str]] = {
    TEXT: (exposition.generate_latest, exposition.CONTENT_TYPE_PLAIN_0_0_4),
    "application/openmetrics-text": (openmetrics.generate_latest, openmetrics.CONTENT_TYPE_LATEST),
}


class Scrapes:
    """Renders and compresses the metrics, which takes milliseconds.

    A scrape gets the metrics as they are after it arrived. If scrapes come too often for that, they
    wait, and all that wait share one rendering: so scrapes take a small part of a CPU's time.
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
    responses=text_example(EXAMPLE, "text/plain"),
)
async def metrics(request: HttpRequest) -> Response:
    """Metrics as Prometheus text, or as OpenMetrics if the request asks for it."""
    scrapes: Scrapes = request.app.state.scrapes
    return await scrapes.answer(request)


# A wrong path and the nearest route begin with the same characters, at least so many. Only the
# first ones of a long path are looked at.
LEAST_COMMON, LONGEST_ASKED = 4, 200


async def no_route(scope: Scope, receive: Receive, send: Send) -> None:
    """What answers a path that no route has."""
    if scope["type"] == "websocket":  # under another server than ours
        await WebSocketClose()(scope, receive, send)
        return
    raise _not_found(scope["exchange"])


def _not_found(exchange: HttpExchange) -> errors.NotFound:
    if exchange.path == "/metrics":
        port = exchange.service.settings.metrics_port
        return errors.NotFound(f"the metrics are on port {port} (--metrics-port)")
    known = [(route.path, *sorted(route.methods or ())) for route in exchange.routes]
    paths = {path for path, *_ in known}
    near = nearest(known, exchange.verb, exchange.path)
    if near or "/classify" in paths:
        near = f"; the nearest is {near}" if near else "; POST /classify classifies texts"
    docs = "; /docs lists the routes" if "/docs" in paths else ""
    return errors.NotFound(f"no route has this path{near}{docs}")


def nearest(routes: Iterable[Sequence[str]], method: str, path: str) -> str:
    """The route that a wrong path probably means, with its method; empty if none is like it.

    ``routes`` are paths with their methods. The nearest is the end of the path, as behind a proxy's
    prefix, or begins like it. To compare all letters would take a millisecond, and there are floods
    of wrong paths.
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
