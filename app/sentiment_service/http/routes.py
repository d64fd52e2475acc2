"""Our own routes but those for operators: POST /classify, and the pages at / and /docs.

Their HTML, CSS and JavaScript are all from this service.
"""

from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, HTTPException, Response
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles
from pydantic import Field
from typing_extensions import TypedDict

from sentiment_service.engine.model.model import ModelVersion
from sentiment_service.http.body import read_body
from sentiment_service.http.exchange import HttpRequest, JsonAnswer, Route, TextRoute, packed_answer
from sentiment_service.http.openapi import (
    EMPTY,
    ERRORS,
    VERSION,
    documented,
    documented_body,
    example,
    text_example,
)
from sentiment_service.requests.limits import Paths, PathSet
from sentiment_service.requests.validation import ClassifyRequest
from sentiment_service.results import FailedItem, Prediction

# Those of all our own routes.
OWN_PATHS = Paths(
    probes=PathSet({"/health", "/health/live", "/health/ready"}),
    open=PathSet({"/", "/docs", "/docs/*", "/openapi.json", "/metrics", "/web/*"}),
    admin=PathSet({"/models/*/reload"}),
    quiet=PathSet({"/metrics", "/web/*"}),
)

router = APIRouter(tags=["classification"], route_class=TextRoute)

PREDICTION = {
    "label": "positive",
    "score": 0.899,
    "scores": {"negative": 0.061, "neutral": 0.04, "positive": 0.899},
    "logits": {"negative": -0.946, "neutral": -1.47, "positive": 2.464},
    "tokens": 6,
    "truncated": False,
    "polarity": 0.838,
}
CLASSIFIED = {
    "model": VERSION,
    "labels": ["negative", "neutral", "positive"],
    "results": [PREDICTION, EMPTY],
}

Answered = Annotated[ModelVersion, Field(description="the model that answered")]


class ClassifyResponse(TypedDict):
    """The results of the texts, and the model that they are from."""

    model: Answered
    labels: Annotated[
        list[str], Field(description="the model's labels, in the order of its logits")
    ]
    results: Annotated[
        list[Prediction | FailedItem],
        Field(description="one item for each text, in the order of the texts"),
    ]


@router.post(
    "/classify",
    operation_id="classify",
    response_model=ClassifyResponse,
    responses={**example(CLASSIFIED), **documented(*ERRORS)},
    openapi_extra=documented_body(ClassifyRequest),
)
async def classify(request: HttpRequest) -> Response:
    """Classify one text or several: label, scores and logits.

    `results` is always a list, in the order of the texts. If one text of a list is bad, its place
    in `results` has its error, and the other texts are still classified. If you send a single
    text and it is bad, the request fails with its error.
    """
    return await answer(request, await read_body(request, ClassifyRequest))


async def answer(request: HttpRequest, body: ClassifyRequest) -> Response:
    """The answer to a request in our own format."""
    single = not isinstance(body.inputs, list)
    texts = body.inputs if isinstance(body.inputs, list) else [body.inputs]
    done = await request.exchange.classify(texts, model=body.model, options=body.options)
    response: ClassifyResponse = {
        "model": done.model.version,
        "labels": done.model.labels,
        "results": done.items(single=single),
    }
    return JsonAnswer(response, done.server_timing)


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
    """A web page for trying the service. Who accepts no HTML gets the status in JSON."""
    name = request.path_params.get("name", "index.html")
    if name == "index.html" and "html" not in request.headers.get("accept", "html"):
        request.exchange.service.check_live()
        return JsonAnswer({"status": "alive"})  # as KServe's protocol V1 has it
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
