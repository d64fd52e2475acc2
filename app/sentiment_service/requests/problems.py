"""The only place where errors become answers of HTTP: application/problem+json, RFC 9457."""

import json
import math
from typing import Annotated, Any

from fastapi import Response
from pydantic import Field
from typing_extensions import TypedDict

from sentiment_service.errors import MethodNotAllowed, ServiceError, Unauthorized

MEDIA_TYPE = "application/problem+json"


class Problem(TypedDict):
    """An error, in the format of RFC 9457."""

    type: Annotated[str, Field(description="the code as a URN")]
    title: Annotated[str, Field(description="the kind of error, for people")]
    status: Annotated[int, Field(description="the status of the answer")]
    detail: Annotated[str, Field(description="what was wrong, and what is accepted")]
    code: Annotated[str, Field(description="the kind of error, for programs")]
    error: Annotated[str, Field(description="the detail again, for Hugging Face clients")]
    request_id: Annotated[str, Field(description="the answer's `x-request-id`")]


def problem(error: ServiceError, request_id: str, /, **members: Any) -> Response:
    """The answer to a request that failed. ``members`` are the fields that its protocol adds."""
    headers = {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    if isinstance(error, Unauthorized):
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, MethodNotAllowed):
        headers["allow"] = ", ".join(error.allowed)
    content = json.dumps({**error.document(error.detail, request_id), **members})
    return Response(content, error.status, headers, media_type=MEDIA_TYPE)
