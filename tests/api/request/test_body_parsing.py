"""Bodies, read and parsed without a server: their pieces, their encodings, and what is no JSON."""

import asyncio
import gzip
import json
import math
import threading
import zlib
from collections.abc import Coroutine, Iterable, Iterator
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import brotli
import pytest
from pydantic import TypeAdapter
from sentiment_service.engine.step_thread import StepThread
from sentiment_service.errors import (
    ClientDisconnected,
    DeadlineExceeded,
    InvalidRequest,
    PayloadTooLarge,
    UnsupportedMediaType,
)
from sentiment_service.http.body import (
    FIRST_BYTES,
    INLINE_BYTES,
    UNSUSPICIOUS_BYTES,
    Decoder,
    decoder,
    media_type,
    parse,
    read_body,
    read_bytes,
)
from sentiment_service.http.exchange import HttpRequest
from sentiment_service.requests.exchange import Arrival
from sentiment_service.requests.limits import InflightBytes
from sentiment_service.requests.validation import RequestBody, SingleText

T = TypeVar("T")
JSON = (b"content-type", b"application/json")


class Sum(RequestBody):
    """A body with a list."""

    numbers: list[int]


@pytest.fixture
def worker() -> Iterator[StepThread]:
    """The thread of long bodies."""
    worker = StepThread("tokenizer")
    yield worker
    worker.close()


class Body:
    """A request whose body arrives in these pieces; ``held`` counts the bytes that it holds."""

    def __init__(
        self,
        *pieces: bytes,
        headers: Iterable[tuple[bytes, bytes]] = (JSON,),
        ends: bool = True,
        worker: StepThread | None = None,
        max_body_bytes: int = 2**21,
        deadline: float = math.inf,
    ) -> None:
        self.messages: list[dict[str, Any]] = [
            {"type": "http.request", "body": piece, "more_body": True} for piece in pieces
        ]
        if ends:
            self.messages[-1]["more_body"] = False
        else:
            self.messages.append({"type": "http.disconnect"})
        self.held = 0
        settings = SimpleNamespace(max_body_bytes=max_body_bytes, max_texts=1000)
        inflight = InflightBytes(2**28, [memoryview(bytearray(8))])
        service = SimpleNamespace(settings=settings, step_thread=worker, inflight=inflight)
        self.exchange = SimpleNamespace(
            service=service,
            deadline=deadline,
            hold=self._hold,
            headers=dict(headers),
            arrival=Arrival(0.0, complete=True),
        )
        self.scope = {"headers": list(headers)}

    def _hold(self, size: int) -> None:
        self.held += size

    async def receive(self) -> dict[str, Any]:
        """The next piece, as ASGI gives it."""
        return self.messages.pop(0)

    @property
    def request(self) -> HttpRequest:
        """It, as far as bodies are read."""
        return cast(HttpRequest, self)


def _run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def test_the_pieces_of_a_body_are_joined() -> None:
    """An empty piece may stand between them, and one in the end may be all that ends the body."""
    assert _run(read_bytes(Body(b"ab", b"", b"c", b"").request)) == b"abc"


def test_a_body_that_ends_early_or_is_empty_is_told_apart() -> None:
    """A client that leaves is no fault of the body; an empty body has the error of the caller."""
    with pytest.raises(ClientDisconnected):
        _run(read_bytes(Body(b"{", ends=False).request))
    with pytest.raises(InvalidRequest, match="must be a JSON object"):
        _run(read_bytes(Body(b"").request))
    with pytest.raises(InvalidRequest, match="send lines"):
        _run(read_bytes(Body(b"").request, empty="send lines"))


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (b"application/json", "application/json"),
        (b" Application/JSON ; charset=utf-8", "application/json"),
        (b"application/problem+json", "application/problem+json"),
        (b"", ""),
    ],
)
def test_the_media_type_is_without_parameters(value: bytes, found: str) -> None:
    """It is in lower case. Of several headers, the first counts."""
    headers = ((b"content-type", value), (b"content-type", b"text/plain"))
    assert media_type(Body(b"", headers=headers).request, b"content-type") == found


@pytest.mark.parametrize(
    "kind", [b"text/json", b"application/jsonl", b"json", b"", b"application/"]
)
def test_only_json_is_read_as_json(kind: bytes) -> None:
    """Another media type is refused, whatever the body holds; a form of JSON is none of these."""
    form = Body(b'{"numbers": [1]}', headers=((b"content-type", b"application/x+json"),))
    assert _run(read_body(form.request, Sum)).numbers == [1]
    body = Body(b'{"numbers": [1]}', headers=((b"content-type", kind),))
    with pytest.raises(UnsupportedMediaType):
        _run(read_body(body.request, Sum))


def test_long_bodies_are_parsed_on_the_workers_thread(
    worker: StepThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short ones are parsed on the event loop. Both are validated in the same way."""
    threads: list[str] = []
    decode = json.JSONDecoder.decode

    class Noting:
        def decode(self, content: bytes) -> Any:
            threads.append(threading.current_thread().name)
            return decode(json.JSONDecoder(), content.decode())

    monkeypatch.setattr("sentiment_service.http.body.FAST_DECODER", Noting())
    for spaces in (0, INLINE_BYTES):
        content = b'{"numbers": [1, 2]}' + b" " * spaces
        assert _run(read_body(Body(content, worker=worker).request, Sum)).numbers == [1, 2]
        wrong = b'{"numbers": 1}' + b" " * spaces
        with pytest.raises(InvalidRequest, match="numbers"):
            _run(read_body(Body(wrong, worker=worker).request, Sum))
    assert threads == [threading.current_thread().name] * 2 + ["tokenizer"] * 2


def test_a_long_body_has_the_time_of_its_request(worker: StepThread) -> None:
    """After the deadline, it is not parsed."""
    content = b'{"numbers": [1]}' + b" " * INLINE_BYTES
    with pytest.raises(DeadlineExceeded):
        _run(read_body(Body(content, worker=worker, deadline=0.0).request, Sum))


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"null", None),
        (b' {"a": [1, 2.5, "x", true]} ', {"a": [1, 2.5, "x", True]}),
        # Half a surrogate pair: its text fails, later and alone.
        (b'"\\ud83d"', "\ud83d"),
        (b'"\xed\xa0\xbd"', "\ud83d"),
        ('{"a": "é"}'.encode("utf-16"), {"a": "é"}),
        ('{"a": "é"}'.encode("utf-8-sig"), {"a": "é"}),
    ],
)
def test_documents_of_any_type_and_encoding(content: bytes, value: object) -> None:
    """What JSON allows is parsed, in each encoding of Unicode."""
    assert parse(content, "the body") == value


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": }', "line 3 is not valid JSON: Expecting value at character 6"),
        (b'{"a": 1} x', "line 3 is not valid JSON: Extra data at character 9"),
        (b"NaN", "not JSON"),
        (b"[-Infinity]", "not JSON"),
        (b"1e999", "not JSON"),
        (b'"\xff"', "not JSON in UTF-8"),
        (b"[" * 100_000, "deeply nested|Expecting value"),
    ],
)
def test_the_error_names_the_document_and_the_fault(content: bytes, message: str) -> None:
    """What is no JSON is refused, without a word of the content."""
    with pytest.raises(InvalidRequest, match=message):
        parse(content, "line 3")


def _all(stream: Decoder, data: bytes) -> bytes:
    content = b"".join(stream.decode(data))
    stream.end()
    return content


PACKED = {
    "gzip": gzip.compress(b"love it"),
    " X-GZIP ": gzip.compress(b"love it"),
    "deflate": zlib.compress(b"love it"),
    "br": brotli.compress(b"love it"),
}


@pytest.mark.parametrize("encoding", PACKED)
def test_damaged_bodies_are_refused(encoding: str) -> None:
    """A body without its end, with bytes after it, or of another encoding is not valid."""
    packed = PACKED[encoding]
    assert _all(decoder(encoding), packed) == b"love it"
    assert _all(decoder(encoding), b"") == b""
    for wrong in (packed[:-1], packed + b"x", b"love it, which is not compressed"):
        with pytest.raises(InvalidRequest):
            _all(decoder(encoding), wrong)
    headers = (JSON, (b"content-encoding", encoding.encode()))
    with pytest.raises(InvalidRequest, match="incomplete"):
        _run(read_bytes(Body(packed[:-1], headers=headers).request))


def test_unknown_encodings_are_refused() -> None:
    """The error lists those that are known. No encoding is none."""
    with pytest.raises(UnsupportedMediaType, match="gzip, br or deflate"):
        decoder("zstd")
    assert _all(decoder(""), b"love") == _all(decoder("identity"), b"love") == b"love"


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br"])
def test_a_bomb_is_refused_before_it_has_expanded(encoding: str) -> None:
    """No more than what is never suspicious is decompressed of it, and a piece."""
    compress = {"gzip": gzip.compress, "deflate": zlib.compress, "br": brotli.compress}[encoding]
    pieces: list[bytes] = []
    content = decoder(encoding).decode(compress(b"\0" * 4 * UNSUSPICIOUS_BYTES))
    with pytest.raises(PayloadTooLarge, match="times as long"):
        pieces.extend(content)
    assert sum(map(len, pieces)) <= UNSUSPICIOUS_BYTES


@pytest.mark.parametrize("size", [FIRST_BYTES - 1, FIRST_BYTES, FIRST_BYTES + 1, 300_000])
def test_a_decompressed_body_is_held_and_limited(worker: StepThread, size: int) -> None:
    """The request holds its bytes and the compressed ones. One byte above the limit is refused."""
    content = b"love it, " * (size // 9) + b"x" * (size % 9)
    headers = (JSON, (b"content-encoding", b"gzip"))
    packed = gzip.compress(content)
    body = Body(packed, headers=headers, worker=worker, max_body_bytes=size)
    assert _run(read_bytes(body.request)) == content
    assert body.held == len(packed) + size
    body = Body(packed, headers=headers, worker=worker, max_body_bytes=size - 1)
    with pytest.raises(PayloadTooLarge, match=f"more than {size - 1} bytes"):
        _run(read_bytes(body.request))


def test_the_pattern_of_a_text_is_only_for_openapi() -> None:
    """A field for a text takes a blank one, which then gets the error of blank texts."""
    text = TypeAdapter(SingleText)
    assert text.validate_python(" ") == " "
    assert "pattern" in text.json_schema()
