"""The only place where errors become answers of HTTP: application/problem+json, RFC 9457."""

import json
import math
from typing import Any

from fastapi import Response

from app.api.openapi.schemas import Problem
from app.errors import MethodNotAllowed, ServiceError, Unauthorized

MEDIA_TYPE = "application/problem+json"


def problem(error: ServiceError, request_id: str, /, **members: Any) -> Response:
    """The answer to a request that failed. ``members`` are the fields that its protocol adds."""
    headers = {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    if isinstance(error, Unauthorized):
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, MethodNotAllowed):
        headers["allow"] = ", ".join(error.allowed)
    content = json.dumps({**document(type(error), error.detail, request_id), **members})
    return Response(content, error.status, headers, media_type=MEDIA_TYPE)


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
