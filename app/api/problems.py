"""Errors become answers here, and nowhere else: application/problem+json, RFC 9457."""

import json
import math
from collections.abc import Callable
from typing import Any

from fastapi import Request, Response
from pydantic import TypeAdapter
from starlette.exceptions import HTTPException

from app.api.schemas import Problem
from app.errors import MethodNotAllowed, NotFound, ServiceError

MEDIA_TYPE = "application/problem+json"
_SCHEMA = TypeAdapter(Problem).json_schema()


def problem(error: ServiceError, request_id: str) -> Response:
    """The answer to a request that failed."""
    document: Problem = {
        "type": f"urn:sentiment:{error.code}",
        "title": error.title,
        "status": error.status,
        "detail": error.detail,
        "code": error.code,
        "error": error.detail,
        "request_id": request_id,
    }
    headers = {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    return Response(json.dumps(document), error.status, headers, media_type=MEDIA_TYPE)


def documented(*errors: type[ServiceError]) -> dict[int | str, dict[str, Any]]:
    """The ``responses`` of a route that may fail with these, for OpenAPI."""
    codes: dict[int | str, list[str]] = {}
    for error in errors:
        codes.setdefault(error.status, []).append(error.code)
    return {
        status: {"description": ", ".join(names), "content": {MEDIA_TYPE: {"schema": _SCHEMA}}}
        for status, names in codes.items()
    }


async def _on_service_error(request: Request, error: ServiceError) -> Response:
    return problem(error, request.state.request_id)


async def _on_http_exception(request: Request, error: HTTPException) -> Response:
    if error.status_code == MethodNotAllowed.status:
        allowed = (error.headers or {})["Allow"]
        answer = problem(MethodNotAllowed(f"allowed here: {allowed}"), request.state.request_id)
        answer.headers["allow"] = allowed
        return answer
    return await _on_service_error(request, NotFound("nothing is here; /docs lists the routes"))


HANDLERS: dict[int | type[Exception], Callable[[Request, Any], Any]] = {
    ServiceError: _on_service_error,
    HTTPException: _on_http_exception,
}
