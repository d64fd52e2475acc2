"""Reads a request's JSON body and validates it, with errors that say what was wrong.

FastAPI could do this from the route's signature. But with a small model, time on the event loop
matters, and FastAPI's errors would have to be rewritten to be clear.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np
from pydantic import BaseModel, ValidationError

from app.api.decoding import decoder
from app.api.garbage_collection import collector_paused
from app.api.http_exchange import HttpRequest
from app.engine.worker import Steps
from app.errors import (
    ClientDisconnected,
    InvalidRequest,
    PayloadTooLarge,
    UnsupportedMediaType,
)

Body = TypeVar("Body", bound=BaseModel)
Validated = TypeVar("Validated", bound=BaseModel, covariant=True)

# Bodies of up to this size are parsed on the event loop. They block it for a few milliseconds at
# most.
INLINE_BYTES = 65_536

# The most values, names and brackets of a JSON document. To parse this many takes some 30 ms, in
# which nothing else runs, because Python's parser keeps the global interpreter lock (GIL). Two
# megabytes can hold ten times as many; the texts of a request need a hundredth.
MAX_VALUES = 100_000
VALUES_PER_TEXT = 5  # the most in any of the protocols: a pair in an object, with two names

_BEFORE_A_VALUE = np.zeros(256, dtype=np.bool_)
_BEFORE_A_VALUE[list(b"[{,:")] = True


NO_OBJECT = "the body must be a JSON object"
# By pydantic's types of faults.
FAULTS = {
    "missing": "is required",
    "none_required": "must be left out",
    "model_type": "must be an object",
    "too_short": "must not have fewer items than {min_length}",
    "too_long": "must not have more items than {max_length}",
}


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _finite(digits: str) -> float:
    if not math.isfinite(value := float(digits)):
        raise ValueError(digits)
    return value


FAST_DECODER = msgspec.json.Decoder()
# Like json.loads, but it refuses NaN and Infinity, which are not JSON, and numbers such as 1e999,
# which would become Infinity.
DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


class Schema(Protocol[Validated]):
    """What validates a parsed body: a pydantic model, or ``ByField``."""

    def model_validate(self, obj: Any, /) -> Validated:
        """The body as a model."""


class ByField:
    """A body that may have several forms. The first field of ``forms`` that it has decides.

    A body without any of them has the form ``otherwise``, if given.
    """

    def __init__(
        self, forms: Mapping[str, type[BaseModel]], otherwise: type[BaseModel] | None = None
    ) -> None:
        self._forms = forms
        self._otherwise = otherwise

    def model_validate(self, obj: Any, /) -> BaseModel:
        """The body in its form.

        Raises:
            ValidationError: it does not match the form.
            InvalidRequest: it has no form.
        """
        fields = obj if isinstance(obj, dict) else ()
        known = (form for name, form in self._forms.items() if name in fields)
        form = next(known, self._otherwise)
        if form is None:
            names = ", ".join(self._forms)
            raise InvalidRequest(f"{NO_OBJECT} with at least one of the fields {names}")
        return form.model_validate(obj)


async def read_body(request: HttpRequest, schema: Schema[Body]) -> Body:
    """The body, decompressed and validated as ``schema``.

    Raises:
        UnsupportedMediaType: its content-type is not JSON, or its content-encoding is unknown.
        PayloadTooLarge: decompressed, it has more bytes than a body may have.
        InvalidRequest: it is not JSON, or does not match the schema.
        ClientDisconnected: the client disconnected before the body was complete.
        DeadlineExceeded, ShuttingDown: there was no time to parse it.
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
    value = parse(body, "the body", max_values=max_values)
    yield
    return checked(value, schema)


def checked(value: Any, schema: Schema[Body]) -> Body:
    """A parsed body, validated as ``schema``.

    Raises:
        InvalidRequest: it does not match the schema.
    """
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        raise InvalidRequest(_first_fault(error)) from None


async def read_bytes(request: HttpRequest, *, empty: str = NO_OBJECT) -> bytes:
    """The body, decompressed. ``empty`` is the error of an empty body.

    Raises:
        InvalidRequest: it is empty, or its compressed data is not valid.
        UnsupportedMediaType, PayloadTooLarge, ClientDisconnected: as ``read_body``.
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
    if encoding := _header(request, b"content-encoding"):
        body = _decompressed(request, body, encoding)
    if not body:
        raise InvalidRequest(empty)
    return body


def _decompressed(request: HttpRequest, body: bytes, encoding: str) -> bytes:
    max_bytes = request.exchange.service.settings.max_body_bytes
    pieces = []
    size = 0
    stream = decoder(encoding)
    for piece in stream.decode(body):
        size += len(piece)
        if size > max_bytes:
            raise PayloadTooLarge(f"the decompressed body has more than {max_bytes} bytes")
        request.exchange.hold(len(piece))
        pieces.append(piece)
    stream.end()
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


def parse(content: bytes, what: str, *, max_values: int = MAX_VALUES) -> Any:
    """The value of a JSON document, of any type. ``what`` names the document in errors.

    Raises:
        InvalidRequest: it is not JSON, or has more than ``max_values`` values, names and brackets.
    """
    if len(content) <= INLINE_BYTES:
        try:
            return FAST_DECODER.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass  # the parser below says what is wrong, or accepts it
    try:
        text = content.decode(json.detect_encoding(content), "surrogatepass")
        if len(text) > max_values and _values(text) > max_values:
            raise InvalidRequest(f"{what} has more than {max_values} values, names and brackets")
        # A surrogate pair may be halved in one of the texts. Then only this text should fail.
        with collector_paused():
            return DECODER.decode(text)
    except json.JSONDecodeError as error:
        fault = error.msg.removesuffix(" at")
        raise InvalidRequest(
            f"{what} is not valid JSON: {fault} at character {error.pos}"
        ) from None
    except (ValueError, RecursionError):  # invalid UTF-8 raises a ValueError, too
        raise InvalidRequest(
            f"{what} is not JSON in UTF-8, or too deeply nested, or has a huge number or NaN"
        ) from None


def _values(text: str) -> int:
    """The number of values, names and brackets in a JSON document.

    Brackets, commas and colons inside strings do not count. This takes 15 ms for two megabytes,
    half of it without the GIL.
    """
    content = text.encode("utf-8", "surrogatepass")
    unescaped = content.replace(rb"\\", b"").replace(rb"\"", b"")
    signs = np.frombuffer(unescaped, dtype=np.uint8)
    in_string = np.logical_xor.accumulate(signs == ord('"'))
    return int(np.count_nonzero(_BEFORE_A_VALUE[signs] & ~in_string))


def _first_fault(error: ValidationError) -> str:
    """Which field is wrong, and what is accepted."""
    fault = error.errors()[0]
    place = ".".join(str(part) for part in fault["loc"])
    if place and fault["type"] in FAULTS:
        return f"{place} {FAULTS[fault['type']].format_map(fault.get('ctx', {}))}"
    if place:  # "Input should be a valid string"
        words = fault["msg"].replace("Input should be", "must be")
        words = words.replace("a valid integer", "an integer").replace("a valid ", "a ")
        return f"{place} {words}"
    return fault["msg"] if fault["type"] == "unknown_field" else NO_OBJECT
