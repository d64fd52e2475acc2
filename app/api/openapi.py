"""OpenAPI descriptions for routes that read their request and build their answer by hand."""

from typing import Any

from pydantic import BaseModel, TypeAdapter

from app.api.problems import MEDIA_TYPE, document
from app.api.schemas import Problem
from app.errors import (
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


def documented_body(schema: type[BaseModel], *others: type[BaseModel]) -> dict[str, Any]:
    """The ``openapi_extra`` of a route that reads a body with one of these schemas."""
    schemas = [_inlined(one.model_json_schema()) for one in (schema, *others)]
    content = {
        "schema": {"anyOf": schemas} if others else schemas[0],
        "example": schemas[0]["examples"][0],
    }
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


def path_parameters(*names: str) -> dict[str, Any]:
    """The ``openapi_extra`` of a route whose path has these parameters."""
    return {
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    }


def example(value: Any) -> dict[int | str, Any]:
    """The ``responses`` of a route, with ``value`` as an example of its answer."""
    return {200: {"content": {"application/json": {"example": value}}}}


def documented(*errors: type[ServiceError], form: type = Problem) -> dict[int | str, Any]:
    """The ``responses`` of a route that may fail with these errors.

    ``form`` is the type of the JSON document that describes an error.
    """
    schema = _inlined(TypeAdapter(form).json_schema())
    by_status: dict[int, list[type[ServiceError]]] = {}
    for error in errors:
        by_status.setdefault(error.status, []).append(error)
    responses: dict[int | str, Any] = {}
    for status, kinds in by_status.items():
        examples = {"examples": _examples(kinds)} if form is Problem else {}
        responses[status] = {
            "description": ", ".join(error.code for error in kinds),
            "content": {MEDIA_TYPE: {"schema": schema, **examples}},
        }
    return responses


def _examples(errors: list[type[ServiceError]]) -> dict[str, Any]:
    detail, request_id = "what was wrong, and what is accepted", "0a1b2c3d4e5f60718293a4b5c6d7e8f9"
    return {error.code: {"value": document(error, detail, request_id)} for error in errors}


def _inlined(schema: dict[str, Any]) -> Any:
    """The schema with each ``$ref`` replaced by its definition.

    OpenAPI has no ``#/$defs`` at its root.
    """
    definitions = schema.pop("$defs", {})

    def inlined(part: Any) -> Any:
        if isinstance(part, list):
            return [inlined(item) for item in part]
        if not isinstance(part, dict):
            return part
        whole = dict(part)
        if reference := whole.pop("$ref", None):
            whole = definitions[reference.rpartition("/")[2]] | whole
        return {name: inlined(value) for name, value in whole.items()}

    return inlined(schema)
