"""The pages at / and /docs and their files: HTML, CSS and JavaScript, all from this service."""

import gzip
from functools import cache
from pathlib import Path

from fastapi import APIRouter, HTTPException, Response
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.staticfiles import StaticFiles

from app.api.http_exchange import HttpRequest
from app.api.kept_answers import KeptAnswers, accepted_encoding
from app.api.openapi.document import text_example
from app.api.routing import Route

router = APIRouter(tags=["page"], route_class=Route)
docs_router = APIRouter(include_in_schema=False, route_class=Route)  # only with --docs on

_DIRECTORY = Path(__file__).parents[2] / "web"
# It serves no file outside its directory, and answers 304 if the client's ETag is still valid.
_FILES = StaticFiles(directory=_DIRECTORY)
_DOCS_FILES = StaticFiles(directory=_DIRECTORY / "docs")
# They lie compressed, because they are large, and nearly all clients accept gzip.
_PACKED = {
    "swagger-ui/swagger-ui-bundle.js": "text/javascript",
    "swagger-ui/swagger-ui.css": "text/css",
}
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
    if not accepted_encoding(request, ["gzip"]):
        return Response(_unpacked(name), media_type=_PACKED[name], headers=_HEADERS)
    response = await _DOCS_FILES.get_response(f"{name}.gz", request.scope)
    response.headers.update({**_HEADERS, "content-encoding": "gzip", "vary": "Accept-Encoding"})
    return response


@cache  # of the two names in _PACKED
def _unpacked(name: str) -> bytes:
    return gzip.decompress((_DIRECTORY / "docs" / f"{name}.gz").read_bytes())


@docs_router.get("/openapi.json")
async def openapi(request: HttpRequest) -> Response:
    """The OpenAPI document of this service."""

    async def document() -> Response:
        return JSONResponse(request.app.openapi())

    kept: KeptAnswers = request.app.state.kept
    return await kept.answer(request, "openapi", document)


async def _file(request: HttpRequest, files: StaticFiles, name: str) -> Response:
    if name.endswith(".gz"):  # a packed file has only the name without this
        raise HTTPException(404)
    response = await files.get_response(name, request.scope)
    response.headers.update(_HEADERS)
    return response
