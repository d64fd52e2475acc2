"""The pages at / and /docs and their files: HTML, CSS and JavaScript, all from this service."""

from pathlib import Path

from fastapi import APIRouter, HTTPException, Response
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles

from sentiment_service.http.exchange import HttpRequest, Route, packed_answer
from sentiment_service.http.openapi import text_example

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
