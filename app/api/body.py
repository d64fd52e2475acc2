"""Reads a request's body: its bytes, the JSON that they hold, and what that must be.

FastAPI could do this from the route's signature. But with a small model, time on the event loop
matters, and FastAPI's errors would have to be rewritten to be clear.

While Python parses, no other thread runs, because the parser keeps the global interpreter lock
(GIL). So the values of a long document are counted first, and a document of too many is refused.
"""

import asyncio
import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from starlette.types import Message

from app.api.decoding import Check, decompressed
from app.api.http_exchange import HttpExchange, HttpRequest
from app.api.strict_json import check_values, parse_slowly
from app.engine.worker import Steps, finish
from app.errors import (
    ClientDisconnected,
    DeadlineExceeded,
    InvalidRequest,
    PayloadTooLarge,
    UnsupportedMediaType,
)
from app.validation import NO_OBJECT, Body, Schema, checked

# If a body's content-length is above this, the body is read only if the queue has room. Otherwise
# it would be read and parsed in vain. A shorter body has usually arrived with the headers.
LONG_BYTES = 65_536
# Documents of up to this size are parsed on the event loop, in a few milliseconds at most.
INLINE_BYTES = 65_536
# The most values, names and brackets of a long document. To parse this many takes up to 30 ms. Two
# megabytes can hold ten times as many; the texts of a request need a hundredth.
MAX_VALUES = 100_000
VALUES_PER_TEXT = 5  # the most in any of the protocols: a pair in an object, with two names

FAST_DECODER = msgspec.json.Decoder()


async def read_body(request: HttpRequest, schema: Schema[Body]) -> Body:
    """The body, decompressed and validated as ``schema``.

    Raises:
        UnsupportedMediaType: its content-type is not JSON, or its content-encoding is unknown.
        PayloadTooLarge, Overloaded: it has too many bytes, see ``read_bytes``.
        InvalidRequest: it is not JSON, or does not match the schema.
        ClientDisconnected: the client disconnected before the body was complete.
        DeadlineExceeded, ShuttingDown: there was no time to receive, decompress or parse it.
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
        PayloadTooLarge: it is longer than allowed, as it is or decompressed.
        DeadlineExceeded: the rest of it did not arrive before the request's deadline.
        Overloaded: the bodies of all requests together would take more bytes than allowed, or it
            is long and the queue has no room for its texts.
        UnsupportedMediaType, ClientDisconnected: as ``read_body``.
    """
    exchange = request.exchange
    max_bytes = exchange.service.settings.max_body_bytes
    _check_announced(exchange, max_bytes)
    encoding = _header(request, b"content-encoding")
    pieces: list[bytes] = []
    size = 0
    more = True
    while more:
        # If the whole body has come, no timer is needed. It costs as much as all the rest here.
        arrived = exchange.arrival.complete
        message = await (request.receive() if arrived else _receive_in_time(request))
        if message["type"] == "http.disconnect":
            raise ClientDisconnected("while sending the body")
        piece = message.get("body", b"")
        size += len(piece)
        if size > max_bytes:
            raise PayloadTooLarge(
                f"the body has more than {max_bytes} bytes, the most that is accepted"
            )
        exchange.hold(len(piece))
        if not encoding:
            check(piece)
        pieces.append(piece)
        more = message.get("more_body", False)
    body = b"".join(pieces)
    if encoding:
        body = await decompressed(exchange, body, encoding, check)
    if not body:
        raise InvalidRequest(empty)
    return body


def _check_announced(exchange: HttpExchange, max_bytes: int) -> None:
    """Refuse a body by its content-length, before it is read."""
    announced = int(exchange.headers.get(b"content-length", 0))
    if announced > max_bytes:
        raise PayloadTooLarge(f"the body has {announced} bytes; at most {max_bytes} are accepted")
    if announced > LONG_BYTES:
        if announced > exchange.service.inflight.remaining:
            raise exchange.refuse_body()
        left_s = max(0.0, exchange.deadline - asyncio.get_running_loop().time())
        exchange.service.models.check_admission(timeout_s=left_s)


async def _receive_in_time(request: HttpRequest) -> Message:
    try:
        async with asyncio.timeout_at(request.exchange.deadline):
            return await request.receive()
    except TimeoutError:
        raise DeadlineExceeded("the body did not arrive within the time allowed") from None


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


def parse(content: bytes, what: str, *, max_values: int = MAX_VALUES) -> Any:
    """The value of a JSON document, of any type. ``what`` names the document in errors.

    Raises:
        InvalidRequest: it is not JSON, or has more than ``max_values`` values, names and brackets.
    """
    if len(content) > max_values:
        finish(check_values(content, what, max_values))
    return _parse(content, what)


def parse_steps(content: bytes, what: str, *, max_values: int = MAX_VALUES) -> Steps[Any]:
    """The same as ``parse`` in steps. Only the last one depends on the length: 1 ms a megabyte."""
    if len(content) > max_values:
        yield from check_values(content, what, max_values)
    return _parse(content, what)


def _parse(content: bytes, what: str) -> Any:
    # While many lists are made, the collector would look at all of them again and again.
    with collector_paused():
        try:
            return FAST_DECODER.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return parse_slowly(content, what)


_pauses_lock = threading.Lock()
_pauses = 0
_was_enabled = False


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause Python's garbage collector inside the context.

    A body may hold a million lists. The collector would visit all lists again and again, which
    takes a second in which no other request is answered. Pauses may overlap: after the last one,
    the collector is on if it was on before the first.
    """
    global _pauses, _was_enabled
    with _pauses_lock:
        if not _pauses:
            _was_enabled = gc.isenabled()
            gc.disable()
        _pauses += 1
    try:
        yield
    finally:
        with _pauses_lock:
            _pauses -= 1
            if not _pauses and _was_enabled:
                gc.enable()
