"""The pages at / and /docs. All of their files are from this service."""

from pathlib import Path

from fastapi import APIRouter, Response
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from sentiment_service.http.not_found import not_found
from sentiment_service.http.openapi import text_example
from sentiment_service.http.routes import HttpRequest, JsonAnswer, Route, packed_answer
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
        raise not_found(request.exchange)
    try:
        response = await files.get_response(name, request.scope)
    except HTTPException:
        raise not_found(request.exchange) from None
    response.headers.update(_HEADERS)
    return response
