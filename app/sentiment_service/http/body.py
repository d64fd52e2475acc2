"""Reads a request's body: its bytes, and what they must be.

FastAPI could do this from the route's signature. But with a small model, time on the event loop
matters, and FastAPI's errors would have to be rewritten to be clear.
"""

import asyncio
from collections.abc import Mapping

from starlette.types import Message

from sentiment_service import errors
from sentiment_service.engine.step_thread import Steps
from sentiment_service.http.decoding import decompressed
from sentiment_service.http.exchange import HttpExchange, HttpRequest, OtherForm, Route
from sentiment_service.requests.validation import (
    EMPTY_BODY,
    INLINE_BYTES,
    MOST_SIGNS,
    SIGNS_PER_TEXT,
    Body,
    Schema,
    checked,
    parse,
    text_body,
)

# If a body's content-length is above this, the body is read only if the queue has room. Otherwise
# it would be read and parsed in vain. A shorter body has usually arrived with the headers.
LONG_BYTES = 65_536


async def read_body(request: HttpRequest, schema: Schema[Body]) -> Body:
    """The body, decompressed and validated as ``schema``.

    Raises:
        OtherForm: it has a field of another server's form that the route knows, too.
    """
    body = await read_bytes(request)
    if not _is_json(media_type(request, b"content-type")):
        kind = _header(request, b"content-type")
        return checked(text_body(kind, body, schema), schema)
    try:
        return await validated(request, body, schema)
    except errors.UnknownField as error:
        forms: Mapping[str, Route] = request.scope["route"].forms
        known = [route for field, route in forms.items() if field in error.fields]
        if not known:
            raise
    raise OtherForm(known[0], body)


async def validated(request: HttpRequest, body: bytes, schema: Schema[Body]) -> Body:
    """A decompressed body, parsed as JSON and validated as ``schema``."""
    if len(body) <= INLINE_BYTES:
        return checked(parse(body, "the body"), schema)
    exchange = request.exchange
    most = max(MOST_SIGNS, SIGNS_PER_TEXT * exchange.service.settings.max_texts)
    return await exchange.service.step_thread.run(
        _validating(body, schema, most), deadline=exchange.deadline
    )


def _validating(body: bytes, schema: Schema[Body], most_signs: int) -> Steps[Body]:
    """One step: a document of very many values is held no longer than it takes to refuse it."""
    yield
    return checked(parse(body, "the body", most_signs), schema)


async def read_bytes(request: HttpRequest, *, empty: str = EMPTY_BODY) -> bytes:
    """The body, decompressed. ``empty`` is the error of an empty body."""
    if request.content:
        body, request.content = request.content, b""
        return body
    exchange = request.exchange
    max_bytes = exchange.service.settings.max_body_bytes
    _check_announced(exchange, max_bytes)
    encoding = _header(request, b"content-encoding")
    # One block: the pieces of many long bodies would leave gaps in the heap, which keeps them.
    received = bytearray()
    more = True
    while more:
        # If the whole body has come, no timer is needed. It costs as much as all the rest here.
        arrived = exchange.arrival.complete
        message = await (request.receive() if arrived else _receive_in_time(request))
        if message["type"] == "http.disconnect":
            raise errors.ClientDisconnected("while sending the body")
        piece = message.get("body", b"")
        if len(received) + len(piece) > max_bytes:
            raise errors.PayloadTooLarge(
                f"the body has more than {max_bytes} bytes, the most that is accepted"
            )
        exchange.hold(len(piece))
        received += piece
        more = message.get("more_body", False)
    body = bytes(received)
    if encoding:
        body = await decompressed(exchange, body, encoding)
    if not body:
        raise errors.InvalidRequest(empty)
    return body


def _check_announced(exchange: HttpExchange, max_bytes: int) -> None:
    """Refuse a body by its content-length, before it is read."""
    announced = int(exchange.headers.get(b"content-length", 0))
    if announced > max_bytes:
        raise errors.PayloadTooLarge(
            f"the body has {announced} bytes; at most {max_bytes} are accepted"
        )
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
        raise errors.DeadlineExceeded("the body did not arrive within the time allowed") from None


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
