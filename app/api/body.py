"""A request's JSON body, read and validated with errors that say what was wrong.

FastAPI would do it from the route's signature, but the event loop's time counts beside a small
model, and its errors would have to be taken apart again to be clear.
"""

import json
import math
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from app.api.collector import collector_paused
from app.api.decoding import decoder
from app.api.service import Service
from app.errors import (
    ClientDisconnected,
    InvalidRequest,
    PayloadTooLarge,
    UnsupportedMediaType,
)

Body = TypeVar("Body", bound=BaseModel)


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _finite(digits: str) -> float:
    if not math.isfinite(value := float(digits)):
        raise ValueError(digits)
    return value


# As json.loads, but NaN and Infinity are no JSON, nor is 1e999, which would become one.
DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


async def read_body(request: Request, schema: type[Body]) -> Body:
    """The body, decompressed, as ``schema``.

    Raises:
        UnsupportedMediaType: it is not declared as JSON, or compressed in another way than ours.
        PayloadTooLarge: decompressed, it has more bytes than a body may have.
        InvalidRequest: it is not JSON, or not what the schema says.
        ClientDisconnected: the client left before it was complete.
    """
    body = await read_bytes(request)
    if not body:
        raise InvalidRequest("the body must be a JSON object")
    if not _is_json(request.headers.get("content-type", "")):
        raise UnsupportedMediaType("send JSON, with content-type: application/json")
    return validated(body, schema)


def validated(body: bytes, schema: type[Body]) -> Body:
    """JSON as ``schema``.

    Raises:
        InvalidRequest: it is not JSON, or not what the schema says.
    """
    try:
        return schema.model_validate(parse(body, "the body"))
    except ValidationError as error:
        raise InvalidRequest(_first_fault(error)) from None


async def read_bytes(request: Request) -> bytes:
    """The body, decompressed.

    Raises:
        UnsupportedMediaType, PayloadTooLarge, InvalidRequest, ClientDisconnected: as ``read_body``.
    """
    chunks = []
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected("while sending the body")
        chunks.append(message.get("body", b""))
        more = message.get("more_body", False)
    body = b"".join(chunks)
    encoding = request.headers.get("content-encoding")
    return _decompressed(request, body, encoding) if encoding else body


def _decompressed(request: Request, body: bytes, encoding: str) -> bytes:
    max_bytes = Service.of(request).settings.max_body_bytes
    pieces = []
    size = 0
    stream = decoder(encoding)
    for piece in stream.decode(body):
        size += len(piece)
        if size > max_bytes:
            raise PayloadTooLarge(f"decompressed, the body has more than {max_bytes} bytes")
        pieces.append(piece)
    stream.end()
    return b"".join(pieces)


def _is_json(content_type: str) -> bool:
    media_type = content_type.partition(";")[0].strip().lower()
    main, _, sub = media_type.partition("/")
    return main == "application" and (sub == "json" or sub.endswith("+json"))


def parse(content: bytes, what: str) -> Any:
    """JSON, whatever it holds; ``what`` says in an error what it was.

    Raises:
        InvalidRequest: it is not JSON.
    """
    try:
        # Not pydantic's parser: it refuses the whole body for half of a surrogate pair in one
        # text, which should fail alone.
        with collector_paused():
            return DECODER.decode(content.decode(json.detect_encoding(content), "surrogatepass"))
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"{what} is not valid JSON: {error.msg} at character {error.pos}"
        ) from None
    except (ValueError, RecursionError):  # what is no UTF-8 is a ValueError as well
        raise InvalidRequest(
            f"{what} is not JSON in UTF-8, or too deeply nested, or has a huge number or NaN"
        ) from None


def _first_fault(error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    if place:
        return f"{place}: {first['msg']}"
    return first["msg"] if first["type"] == "unknown_field" else "the body must be a JSON object"
