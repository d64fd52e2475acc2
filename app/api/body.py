"""A request's JSON body, read and validated with errors that say what was wrong.

FastAPI would do it from the route's signature, but the event loop's time counts beside a small
model, and its errors would have to be taken apart again to be clear.
"""

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from app.errors import ClientDisconnected, InvalidRequest, UnsupportedMediaType

Body = TypeVar("Body", bound=BaseModel)


async def read_body(request: Request, schema: type[Body]) -> Body:
    """The body as ``schema``.

    Raises:
        UnsupportedMediaType: it is not declared as JSON.
        InvalidRequest: it is not JSON, or not what the schema says.
        ClientDisconnected: the client left before it was complete.
    """
    body = await _receive(request)
    if not body:
        raise InvalidRequest("the body must be a JSON object")
    if not _is_json(request.headers.get("content-type", "")):
        raise UnsupportedMediaType("send JSON, with content-type: application/json")
    try:
        return schema.model_validate(_parse(body))
    except ValidationError as error:
        raise InvalidRequest(_first_fault(error)) from None


async def _receive(request: Request) -> bytes:
    chunks = []
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected("while sending the body")
        chunks.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(chunks)


def documented_body(schema: type[BaseModel]) -> dict[str, Any]:
    """The ``openapi_extra`` of a route that reads such a body."""
    content: Mapping[str, Any] = {"application/json": {"schema": schema.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


def _is_json(content_type: str) -> bool:
    media_type = content_type.partition(";")[0].strip().lower()
    main, _, sub = media_type.partition("/")
    return main == "application" and (sub == "json" or sub.endswith("+json"))


def _parse(body: bytes) -> Any:
    try:
        # Not pydantic's parser: it refuses the whole body for half of a surrogate pair in one
        # text, which should fail alone.
        return json.loads(body)
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"the body is not valid JSON: {error.msg} at character {error.pos}"
        ) from None
    except (ValueError, RecursionError):  # what is no UTF-8 is a ValueError as well
        raise InvalidRequest(
            "the body is not JSON in UTF-8, or too deeply nested, or has a huge number"
        ) from None


def _first_fault(error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    if place:
        return f"{place}: {first['msg']}"
    return first["msg"] if first["type"] == "unknown_field" else "the body must be a JSON object"
