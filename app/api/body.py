"""Reads a request's body: its bytes, decompressed, and what they hold as JSON.

FastAPI could do this from the route's signature. But with a small model, time on the event loop
matters, and FastAPI's errors would have to be rewritten to be clear.
"""

from collections.abc import Callable, Iterator

from app.api.decoding import decoder
from app.api.http_exchange import HttpRequest
from app.api.json_document import INLINE_BYTES, MAX_VALUES, parse, parse_steps
from app.api.validation import NO_OBJECT, Body, Schema, checked
from app.engine.worker import Steps, finish
from app.errors import (
    ClientDisconnected,
    InvalidRequest,
    PayloadTooLarge,
    UnsupportedMediaType,
)

VALUES_PER_TEXT = 5  # the most in any of the protocols: a pair in an object, with two names
# What is decompressed in one step on the worker's thread, in 1 to 5 ms.
STEP_BYTES = 1_048_576

Check = Callable[[bytes], None]


async def read_body(request: HttpRequest, schema: Schema[Body]) -> Body:
    """The body, decompressed and validated as ``schema``.

    Raises:
        UnsupportedMediaType: its content-type is not JSON, or its content-encoding is unknown.
        PayloadTooLarge: decompressed, it has more bytes than a body may have.
        InvalidRequest: it is not JSON, or does not match the schema.
        ClientDisconnected: the client disconnected before the body was complete.
        DeadlineExceeded, ShuttingDown: there was no time to decompress or parse it.
    """
    body = await read_bytes(request)
    if not _is_json(media_type(request, b"content-type")):
        raise UnsupportedMediaType("send JSON, with content-type: application/json")
    return await validated(request, body, schema)


async def validated(request: HttpRequest, body: bytes, schema: Schema[Body]) -> Body:
    """A decompressed body, parsed as JSON and validated as ``schema``.

    Raises:
        InvalidRequest: it is not JSON, or does not match the schema.
        DeadlineExceeded, ShuttingDown: there was no time to parse it.
    """
    service = request.exchange.service
    max_values = MAX_VALUES + VALUES_PER_TEXT * service.settings.max_texts
    if len(body) <= INLINE_BYTES:
        return checked(parse(body, "the body", max_values=max_values), schema)
    steps = _validating(body, schema, max_values)
    return await service.worker.run(steps, deadline=request.exchange.deadline)


def _validating(body: bytes, schema: Schema[Body], max_values: int) -> Steps[Body]:
    value = yield from parse_steps(body, "the body", max_values=max_values)
    yield
    return checked(value, schema)


async def read_bytes(
    request: HttpRequest, *, empty: str = NO_OBJECT, check: Check = lambda piece: None
) -> bytes:
    """The body, decompressed. ``empty`` is the error of an empty body.

    ``check`` is called with each piece of it, and may raise an error before the rest is read.

    Raises:
        InvalidRequest: it is empty, or its compressed data is not valid.
        UnsupportedMediaType, PayloadTooLarge, ClientDisconnected: as ``read_body``.
    """
    encoding = _header(request, b"content-encoding")
    pieces = []
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected("while sending the body")
        piece = message.get("body", b"")
        if not encoding:
            check(piece)
        pieces.append(piece)
        more = message.get("more_body", False)
    body = b"".join(pieces)
    if encoding:
        body = await _decompressed(request, body, encoding, check)
    if not body:
        raise InvalidRequest(empty)
    return body


async def _decompressed(request: HttpRequest, body: bytes, encoding: str, check: Check) -> bytes:
    service = request.exchange.service
    max_bytes = service.settings.max_body_bytes
    stream = decoder(encoding)
    content = stream.decode(body)
    pieces: list[bytes] = []
    size = 0
    wanted, piece = INLINE_BYTES, finish(_read_some(content, INLINE_BYTES))
    while piece:
        size += len(piece)
        if size > max_bytes:
            raise PayloadTooLarge(f"the decompressed body has more than {max_bytes} bytes")
        request.exchange.hold(len(piece))
        check(piece)
        pieces.append(piece)
        if len(piece) < wanted:  # this was the last one, nearly always the first as well
            break
        wanted, steps = STEP_BYTES, _read_some(content, STEP_BYTES)
        piece = await service.worker.run(steps, deadline=request.exchange.deadline)
    stream.end()
    return b"".join(pieces)


def _read_some(content: Iterator[bytes], size: int) -> Steps[bytes]:
    """The next ``size`` bytes or a few more; at the end, what is left."""
    pieces = []
    for piece in content:
        pieces.append(piece)
        size -= len(piece)
        if size <= 0:
            break
    yield
    return b"".join(pieces)


def _header(request: HttpRequest, name: bytes) -> str:
    """The value of the first header with this name, or "". Faster than ``request.headers``."""
    values = (value for known, value in request.scope["headers"] if known == name)
    return next(values, b"").decode("latin-1")


def media_type(request: HttpRequest, name: bytes) -> str:
    """The media type in the header ``name``, without its parameters; empty if there is none."""
    return _header(request, name).partition(";")[0].strip().lower()


def _is_json(media_type: str) -> bool:
    main, _, sub = media_type.partition("/")
    return main == "application" and (sub == "json" or sub.endswith("+json"))
