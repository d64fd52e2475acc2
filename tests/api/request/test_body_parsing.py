"""Bodies, read and parsed without a server: their pieces, their encodings, and what is no JSON."""

import asyncio
import gzip
import math
import random
import zlib
from collections.abc import Coroutine, Iterable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import brotli
import pytest
from sentiment_service.engine.step_thread import StepThread
from sentiment_service.errors import (
    ClientDisconnected,
    DeadlineExceeded,
    InvalidRequest,
    PayloadTooLarge,
)
from sentiment_service.http.decoding import (
    FIRST_BYTES,
    FREE_MEMBERS,
    MEMBER_BYTES,
    UNSUSPICIOUS_BYTES,
    decoder,
)
from sentiment_service.http.routes import HttpRequest, read_body, read_bytes
from sentiment_service.requests.exchange import Arrival, Exchange
from sentiment_service.requests.limits import InflightBytes
from sentiment_service.requests.validation import INLINE_BYTES, RequestBody

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

    parsed = None

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
        self.exchange.in_steps = partial(cast(Any, Exchange).in_steps, self.exchange)
        self.scope = {"headers": list(headers), "query_string": b""}

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


def test_a_body_that_ends_early_or_is_empty_is_told_apart() -> None:
    """A client that leaves is no fault of the body; an empty body has the error of the caller."""
    with pytest.raises(ClientDisconnected):
        _run(read_bytes(Body(b"{", ends=False).request))
    with pytest.raises(InvalidRequest, match="the body is empty"):
        _run(read_bytes(Body(b"").request))
    with pytest.raises(InvalidRequest, match="send lines"):
        _run(read_bytes(Body(b"").request, empty="send lines"))


def test_a_long_body_has_the_time_of_its_request(worker: StepThread) -> None:
    """After the deadline, it is not parsed."""
    content = b'{"numbers": [1]}' + b" " * INLINE_BYTES
    with pytest.raises(DeadlineExceeded):
        _run(read_body(Body(content, worker=worker, deadline=0.0).request, Sum))


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br"])
def test_a_bomb_is_refused_before_it_has_expanded(encoding: str) -> None:
    """No more than what is never suspicious is decompressed of it, and a piece."""
    compress = {"gzip": gzip.compress, "deflate": zlib.compress, "br": brotli.compress}[encoding]
    pieces: list[bytes] = []
    content = decoder(encoding).decode(compress(b"\0" * 4 * UNSUSPICIOUS_BYTES))
    with pytest.raises(PayloadTooLarge, match="times as long"):
        pieces.extend(content)
    assert sum(map(len, pieces)) <= UNSUSPICIOUS_BYTES


def test_gzip_may_have_several_members(worker: StepThread) -> None:
    """All of them are the body, as in RFC 1952, 2.2; what follows them must be one, too."""
    headers = (JSON, (b"content-encoding", b"gzip"))
    packed = gzip.compress(b"lo") + gzip.compress(b"") + gzip.compress(b"ve")
    assert _run(read_bytes(Body(packed, headers=headers, worker=worker).request)) == b"love"
    for more, says in ((b"more", "is not valid gzip"), (packed[:15], "its gzip data has no end")):
        with pytest.raises(InvalidRequest, match=says):
            _run(read_bytes(Body(packed + more, headers=headers, worker=worker).request))
    packed = zlib.compress(b"lo") + zlib.compress(b"ve")
    with pytest.raises(InvalidRequest, match="more bytes after the end of its deflate data"):
        _run(read_bytes(Body(packed, headers=(JSON, (b"content-encoding", b"deflate"))).request))


@pytest.mark.parametrize("content", [b"", b"x"])
@pytest.mark.parametrize("step", [1, 2**21])
def test_short_gzip_members_are_limited(content: bytes, step: int) -> None:
    """Each takes time, but hardly any bytes: so their number is limited, by the body's length."""
    member = gzip.compress(content)
    packed = member * (2**21 // len(member))
    stream = decoder("gzip")
    parts = (packed[start : start + step] for start in range(0, len(packed), step))
    pieces: list[bytes] = []
    with pytest.raises(InvalidRequest, match="compress it in one piece"):
        pieces.extend(piece for part in parts for piece in stream.decode(part))
    assert len(pieces) <= (1 if step > 1 else len(member)) * 1.1 * FREE_MEMBERS
    fitting = decoder("gzip")
    assert b"".join(fitting.decode(member * FREE_MEMBERS)) == content * FREE_MEMBERS
    fitting.end()
    long = gzip.compress(random.Random(1).randbytes(MEMBER_BYTES)) * 4 * FREE_MEMBERS
    assert sum(map(len, decoder("gzip").decode(long))) == 4 * FREE_MEMBERS * MEMBER_BYTES


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
