"""Reads a request's body: its bytes, the JSON that they hold, and what that must be. Bodies are
decompressed in small pieces, because a few bytes can expand to gigabytes.

FastAPI could do this from the route's signature. But with a small model, time on the event loop
matters, and FastAPI's errors would have to be rewritten to be clear.
"""

import asyncio
import json
import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import brotli
import msgspec
from starlette.types import Message

from sentiment_service import errors
from sentiment_service.engine.step_thread import Steps, finish
from sentiment_service.http.exchange import HttpExchange, HttpRequest, OtherForm, Route
from sentiment_service.requests.exchange import Exchange
from sentiment_service.requests.validation import Body, RequestBody, Schema, checked

# If a body's content-length is above this, the body is read only if the queue has room. Otherwise
# it would be read and parsed in vain. A shorter body has usually arrived with the headers.
LONG_BYTES = 65_536
# Documents of up to this size are parsed on the event loop, in a few milliseconds at most.
INLINE_BYTES = 65_536
# How many brackets, commas and colons a document may have outside its texts. While it is parsed no
# other thread runs: two megabytes of texts take 2 ms, of brackets 0.2 s, and these at most 0.03 s.
# No valid request has nearly as many for each text.
MOST_SIGNS, SIGNS_PER_TEXT = 100_000, 16

FAST_DECODER = msgspec.json.Decoder()


UNICODE = re.compile(r'charset *= *"?(utf-?8|us-ascii)\b')


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _finite(digits: str) -> float:
    if not math.isfinite(value := float(digits)):
        raise ValueError(digits)
    return value


# Like json.loads, but it refuses NaN and Infinity, which are not JSON, and numbers such as 1e999,
# which would become Infinity.
STRICT_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


EMPTY_BODY = "the body is empty; send a JSON object"


async def read_body(request: HttpRequest, schema: Schema[Body]) -> Body:
    """The body, decompressed and validated as ``schema``.

    Raises:
        OtherForm: it has a field of another server's form that the route knows, too.
    """
    body = await read_bytes(request)
    if not _is_json(media_type(request, b"content-type")):
        return checked(_as_text(request, body, schema), schema)
    try:
        return await validated(request, body, schema)
    except errors.UnknownField as error:
        forms: Mapping[str, Route] = request.scope["route"].forms
        known = [route for field, route in forms.items() if field in error.fields]
        if not known:
            raise
    raise OtherForm(known[0], body)


def _as_text(request: HttpRequest, body: bytes, schema: Schema[Body]) -> dict[str, str]:
    """What one of our own routes reads in a body that is not JSON: a text."""
    kind, _, parameters = _header(request, b"content-type").lower().partition(";")
    has_texts = isinstance(schema, type) and issubclass(schema, RequestBody)
    if not has_texts or kind.strip() != "text/plain":
        or_text = ", or one text, with content-type: text/plain" if has_texts else ""
        raise errors.UnsupportedMediaType(
            f"send JSON, with content-type: application/json{or_text}"
        )
    if "charset" in parameters and not UNICODE.search(parameters):
        raise errors.UnsupportedMediaType("text/plain is read in UTF-8 only")
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise errors.InvalidRequest("the body is not a text in UTF-8") from None
    if len(body) <= INLINE_BYTES and text.lstrip()[:1] in ("{", "["):
        with suppress(errors.InvalidRequest):
            parse(text.encode(), "the body")
            raise errors.UnsupportedMediaType("the body is JSON: send it as application/json")
    return {"inputs": text.removesuffix("\n").removesuffix("\r")}


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
    """The body, decompressed. ``empty`` is the error of an empty body.

    Raises:
        InvalidRequest: it is empty, or its compressed data is not valid.
        PayloadTooLarge: it is longer than allowed, as it is or decompressed.
        DeadlineExceeded: the rest of it did not arrive before the request's deadline.
        Overloaded: the bodies of all requests together would take more bytes than allowed, or it
            is long and the queue has no room for its texts.
        UnsupportedMediaType, ClientDisconnected: as ``read_body``.
    """
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


def parse(content: bytes, what: str, most_signs: int = MOST_SIGNS) -> Any:
    """The value of a JSON document, of any type. ``what`` names the document in errors."""
    if len(content) > most_signs and _has_more_signs(content, most_signs):
        raise errors.InvalidRequest(
            f"{what} has more than {most_signs} brackets, commas and colons outside its texts"
        )
    try:
        return FAST_DECODER.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _parse_slowly(content, what)


def _signs(content: bytes) -> int:
    return sum(map(content.count, (b"[", b"{", b",", b":")))


def _has_more_signs(content: bytes, most: int) -> bool:
    """Whether more than ``most`` signs stand between its values, or it has more texts than that."""
    if _signs(content) <= most:
        return False
    if (encoding := json.detect_encoding(content)) != "utf-8":
        content = content.decode(encoding, "replace").encode("utf-8", "replace")
    content = content.replace(rb"\\", b"").replace(rb"\"", b"")
    if content.count(b'"') > 2 * most:
        return True
    return _signs(b"".join(content.split(b'"')[::2])) > most


def _parse_slowly(content: bytes, what: str) -> Any:
    """The value of a document that msgspec refuses, or what is wrong with it.

    A surrogate pair may be halved in one of the texts. Then only this text should fail.
    """
    try:
        return STRICT_DECODER.decode(content.decode(json.detect_encoding(content), "surrogatepass"))
    except json.JSONDecodeError as error:
        fault = error.msg.removesuffix(" at")
        raise errors.InvalidRequest(
            f"{what} is not valid JSON: {fault} at character {error.pos}"
        ) from None
    except (ValueError, RecursionError):  # invalid UTF-8 raises a ValueError, too
        raise errors.InvalidRequest(
            f"{what} is not JSON in UTF-8, or too deeply nested, or has a huge number or NaN"
        ) from None


# Small, because a piece is split into lines at once, and lines of JSON can be a few bytes long.
PIECE_BYTES = 16_384
# Text compresses to a tenth of its size, and seldom to a fiftieth. A body that expands more than
# this was made to do harm. The ratio does not matter for the first UNSUSPICIOUS_BYTES.
MAX_RATIO = 200
UNSUSPICIOUS_BYTES = 1_048_576
# What decompressing takes beside the content: zlib's, and brotli's beside its window.
ZLIB_BYTES, BROTLI_BYTES = 49_152, 3_145_728
# What is decompressed on the event loop, then in each step on the step thread, in 1 to 5 ms.
FIRST_BYTES, STEP_BYTES = 65_536, 1_048_576


class Decoder:
    """Decompresses a body while it arrives. ``name`` is its encoding in errors.

    ``pieces`` returns the content of up to ``PIECE_BYTES`` of data in pieces of that size at most,
    and ``complete`` whether the end of the body has been among them. ``window`` returns the bytes
    of memory that this takes until then, by the first byte of the body.
    """

    def __init__(
        self,
        name: str,
        pieces: Callable[[bytes], Iterator[bytes]],
        complete: Callable[[], bool],
        window: Callable[[int], int] = lambda first: ZLIB_BYTES,
    ) -> None:
        self.window = window
        self._name = name
        self._pieces = pieces
        self._complete = complete
        self._taken = self._given = 0

    def decode(self, data: bytes) -> Iterator[bytes]:
        """The decompressed content of ``data``, in pieces of bounded size."""
        self._taken += len(data)
        # In slices, because zlib and brotli copy all input that is left for each piece they return.
        for start in range(0, len(data), PIECE_BYTES):
            for piece in self._pieces(data[start : start + PIECE_BYTES]):
                self._given += len(piece)
                if self._given > max(UNSUSPICIOUS_BYTES, MAX_RATIO * self._taken):
                    raise errors.PayloadTooLarge(
                        f"the decompressed body is more than {MAX_RATIO} times as long as the "
                        "compressed one"
                    )
                yield piece

    def end(self) -> None:
        if self._taken and not self._complete():
            raise errors.InvalidRequest(f"the body is incomplete: its {self._name} data has no end")


def decoder(content_encoding: str) -> Decoder:
    match content_encoding.strip().lower():
        case "" | "identity":
            return Decoder("identity", lambda data: iter([data]), lambda: True, lambda first: 0)
        case "gzip" | "x-gzip":
            return _zlib_decoder("gzip", zlib.MAX_WBITS | 16)
        case "deflate":
            return _zlib_decoder("deflate", zlib.MAX_WBITS)
        case "br":
            return _brotli_decoder()
    raise errors.UnsupportedMediaType("content-encoding must be gzip, br or deflate")


async def decompressed(exchange: Exchange, body: bytes, encoding: str) -> bytes:
    max_bytes = exchange.service.settings.max_body_bytes
    stream = decoder(encoding)
    content = stream.decode(body)
    pieces: list[bytes] = []
    size = 0
    wanted, piece = FIRST_BYTES, finish(_read_some(content, FIRST_BYTES))
    inflight, window = exchange.service.inflight, 0
    try:
        while piece:
            size += len(piece)
            if size > max_bytes:
                raise errors.PayloadTooLarge(
                    f"the decompressed body has more than {max_bytes} bytes"
                )
            exchange.hold(len(piece))
            pieces.append(piece)
            if len(piece) < wanted:  # this was the last one, nearly always the first as well
                break
            if not window:  # others come while this one waits for the thread
                if not inflight.take(stream.window(body[0])):
                    raise exchange.refuse_body()
                window = stream.window(body[0])
            wanted, steps = STEP_BYTES, _read_some(content, STEP_BYTES)
            piece = await exchange.service.step_thread.run(steps, deadline=exchange.deadline)
    finally:
        inflight.give(window)
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


def _zlib_decoder(name: str, window_bits: int) -> Decoder:
    stream = zlib.decompressobj(window_bits)

    def pieces(data: bytes) -> Iterator[bytes]:
        try:
            while data:
                # Only one member is accepted, because each would need a decompressor of its own.
                if stream.eof:
                    raise errors.InvalidRequest(
                        f"the body has more bytes after the end of its {name} data"
                    )
                yield stream.decompress(data, PIECE_BYTES)
                data = stream.unconsumed_tail or stream.unused_data
        except zlib.error:
            raise errors.InvalidRequest(f"the body is not valid {name}") from None

    return Decoder(name, pieces, lambda: stream.eof)


def _brotli_decoder() -> Decoder:
    stream = brotli.Decompressor()

    def pieces(data: bytes) -> Iterator[bytes]:
        try:
            # The decompressor may still hold output after it has taken all input.
            while piece := stream.process(data, output_buffer_limit=PIECE_BYTES):
                yield piece
                data = b""
        except brotli.error:
            raise errors.InvalidRequest("the body is not valid brotli") from None

    return Decoder("brotli", pieces, lambda: bool(stream.is_finished()), _brotli_bytes)


def _brotli_bytes(first: int) -> int:
    """What a body takes that begins with this byte: RFC 7932, 9.1, has the size of the window."""
    larger, smaller = first >> 1 & 7, first >> 4 & 7
    if not first & 1:
        bits = 16
    elif larger:
        bits = 17 + larger
    else:
        bits = 8 + smaller if smaller else 17
    return (1 << bits) + BROTLI_BYTES
