"""OpenAPI descriptions for routes that read their request and build their answer by hand.

Schemas and errors are written where they belong. ``with_components`` moves them to the document's
components.
"""

from typing import Any

from pydantic import BaseModel, TypeAdapter

from sentiment_service.api.openapi import examples
from sentiment_service.api.openapi.components import JSON, REFERENCE, encoded
from sentiment_service.errors import (
    DeadlineExceeded,
    EmptyText,
    InferenceFailed,
    InvalidRequest,
    ModelNotFound,
    NotReady,
    OutOfMemory,
    Overloaded,
    PayloadTooLarge,
    RateLimited,
    ServiceError,
    ShuttingDown,
    TextTooLong,
    TooManyTexts,
    Unauthorized,
    UnsupportedMediaType,
)
from sentiment_service.problems import MEDIA_TYPE, Problem

# The errors of a route that classifies.
ERRORS = (
    Unauthorized,
    ModelNotFound,
    PayloadTooLarge,
    UnsupportedMediaType,
    InvalidRequest,
    EmptyText,
    TextTooLong,
    TooManyTexts,
    Overloaded,
    RateLimited,
    InferenceFailed,
    OutOfMemory,
    NotReady,
    ShuttingDown,
    DeadlineExceeded,
)
# The ``openapi_extra`` of a route with a model's name in its path.
NAME_IN_PATH: dict[str, Any] = {
    "parameters": [
        {
            "name": "name",
            "in": "path",
            "required": True,
            "description": "name of a served model",
            "schema": {"type": "string"},
            "example": examples.MODEL,
        }
    ]
}


# The ``openapi_extra`` of a route of another server's protocol, which has its own description.
FOREIGN_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {JSON: {"schema": {"type": "object"}}}}
}


def documented_body(schema: type[BaseModel]) -> dict[str, Any]:
    """The ``openapi_extra`` of a route that reads a body with this schema."""
    body = schema.model_json_schema(ref_template=REFERENCE)
    content = {"schema": body, "example": encoded(body.pop("examples")[0])}
    return {"requestBody": {"required": True, "content": {JSON: content}}}


def example(value: Any) -> dict[int | str, Any]:
    """The ``responses`` of a route, with ``value`` as an example of its answer."""
    return {200: {"content": {JSON: {"example": encoded(value)}}}}


def text_example(text: str, media_type: str) -> dict[int | str, Any]:
    """The ``responses`` of a route that answers with text."""
    schema = {"type": "string"}
    return {200: {"content": {media_type: {"schema": schema, "example": text}}}}


def documented(*errors: type[ServiceError]) -> dict[int | str, Any]:
    """The ``responses`` of a route that may fail with these errors."""
    schema = TypeAdapter(Problem).json_schema(mode="serialization", ref_template=REFERENCE)
    by_status: dict[int, list[type[ServiceError]]] = {}
    for error in errors:
        by_status.setdefault(error.status, []).append(error)
    responses: dict[int | str, Any] = {}
    for status, kinds in by_status.items():
        examples = {kind.code: {"value": encoded(kind.document(_DETAIL, _ID))} for kind in kinds}
        responses[status] = {
            "description": ", ".join(kind.code for kind in kinds),
            "content": {MEDIA_TYPE: {"schema": schema, "examples": examples}},
        }
    return responses


_DETAIL = "what was wrong, and what is accepted"
_ID = "0a1b2c3d4e5f60718293a4b5c6d7e8f9"
