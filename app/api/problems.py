"""The only place where errors become answers: application/problem+json, RFC 9457."""

import json
import math
from collections.abc import Callable
from typing import Any

from fastapi import Request, Response
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from app.api.openapi.schemas import Problem
from app.errors import MethodNotAllowed, NotFound, ServiceError, Unauthorized

MEDIA_TYPE = "application/problem+json"


class ProblemResponse(Response):
    """The answer to a request that failed. It leaves its code in the request's state."""

    media_type = MEDIA_TYPE

    def __init__(self, code: str, content: str, status: int, headers: dict[str, str]) -> None:
        super().__init__(content, status, headers)
        self._code = code

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["code"] = self._code
        await super().__call__(scope, receive, send)


def problem(error: ServiceError, request_id: str, /, **members: Any) -> Response:
    """The answer to a request that failed. ``members`` are the fields that its protocol adds."""
    headers = {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    if isinstance(error, Unauthorized):
        headers["www-authenticate"] = "Bearer"
    content = json.dumps({**document(type(error), error.detail, request_id), **members})
    return ProblemResponse(error.code, content, error.status, headers)


def document(kind: type[ServiceError], detail: str, request_id: str) -> Problem:
    """The JSON document of an answer to this kind of error."""
    return {
        "type": f"urn:sentiment:{kind.code}",
        "title": kind.title,
        "status": kind.status,
        "detail": detail,
        "code": kind.code,
        "error": detail,
        "request_id": request_id,
    }


async def _on_service_error(request: Request, error: ServiceError) -> Response:
    return problem(error, request.state.request_id)


async def _on_http_exception(request: Request, error: HTTPException) -> Response:
    if error.status_code == MethodNotAllowed.status:
        # The methods of all routes of this path: Starlette names only those of the first.
        # FastAPI's own pages are only in ``app.routes``.
        methods = {
            method
            for route in (*request.app.routes, *request.app.state.routes)
            if isinstance(route, Route) and route.matches(request.scope)[0] != Match.NONE
            for method in route.methods or ()
        }
        allowed = ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))
        answer = problem(MethodNotAllowed(f"allowed here: {allowed}"), request.state.request_id)
        answer.headers["allow"] = allowed
        return answer
    docs = "; /docs lists the routes" if request.app.state.service.settings.docs == "on" else ""
    return await _on_service_error(request, NotFound(f"no route has this path{docs}"))


HANDLERS: dict[int | type[Exception], Callable[[Request, Any], Any]] = {
    ServiceError: _on_service_error,
    HTTPException: _on_http_exception,
}
