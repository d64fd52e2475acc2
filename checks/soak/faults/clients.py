"""Clients that misbehave over HTTP."""

import asyncio
import gzip
import json
import random
import re
import zlib
from collections.abc import Awaitable, Callable, Set
from contextlib import AsyncExitStack, suppress
from functools import partial

import brotli

from checks.soak.calls.call import Call
from checks.soak.calls.http import COMPRESS, JSON, NDJSON
from checks.soak.faults.outcomes import CLOSED, CORRECT, DISCONNECTED, DONE, WRONG, Fault
from checks.soak.grpc_wire import STATUSES
from checks.soak.traffic import Traffic
from checks.soak.wire import Connection, Kept, Lost, request

CROWD = 100
READERS, PAGES = 50, 6  # clients, and pages that each reads
IDLE = 20
STREAMS = 20
FLOODS = 8
# A body of 50 MB in each encoding, above the limit of 2 MB.
BOMBS = {encoding: compress(bytes(50_000_000)) for encoding, compress in COMPRESS.items()}
# 1.8 MB that decompress to nothing: each member is empty.
MEMBERS = gzip.compress(b"") * 90_000
TEXTS = json.dumps({"inputs": ["love, " * 50] * 20}).encode()
# Lines of a stream: 4 MB that are long to look back to, and short ones whose ids are long.
WIDE = brotli.compress(
    b"".join(b'{"id":%d,"text":"love %d"}\n' % (n, n * n) for n in range(100_000)),
    quality=5,
    lgwin=24,
)
LONG_IDS = b'{"id":"%b","text":"love"}\n' % (b"\\u00e9" * 150_000) * 5
COMPRESSED_ROUTES = (("/classify", JSON), ("/classify/stream", NDJSON), ("/invocations", JSON))
INVALID = (b'{"inputs": "love"', b"[" * 100_000, b'{"inputs": NaN}', b"{}")
NOT_UNICODE = (b'{"inputs": "\xff\xfe"}', rb'{"inputs": "\ud800"}')


def faults(traffic: Traffic, order: random.Random) -> dict[str, Fault]:
    """What each client does."""
    clients = _Clients(traffic, order)
    answered = {CORRECT, "429"}
    kinds: dict[str, tuple[float, Callable[[], Awaitable[str]], Set[str]]] = {
        "disconnects before its answer": (5, clients.disconnects, {DISCONNECTED}),
        "disconnects in the middle of its body": (5, clients.half_a_body, {DISCONNECTED}),
        "never reads its answers": (2, clients.never_reads, {DISCONNECTED, CLOSED}),
        "closes its sending side": (3, clients.half_closes, {*answered, CLOSED}),
        "pipelines several requests": (5, clients.pipelines, answered),
        "sends a body above the limit": (3, clients.large_body, {"413"}),
        "sends its body slowly": (5, clients.slow_body, answered),
        "sends its body in chunks of one byte": (3, clients.tiny_chunks, {*answered, "431"}),
        "never finishes its body": (2, clients.unfinished_body, {"504"}),
        "sets a timeout of 1 to 30 ms": (5, clients.short_timeout, {*answered, "504"}),
        f"{CROWD} new connections at once": (1, clients.many_connections, {DONE}),
        f"{READERS} clients read the open pages": (1, clients.many_readers, {DONE}),
        f"{IDLE} idle connections": (1, clients.idle_connections, {DONE}),
        "asks for the metrics in 100 versions": (1, clients.many_forms, {DONE}),
        f"{STREAMS} streams with windows of 16 MB": (1, clients.wide_windows, {DONE}),
        f"{STREAMS} unread streams with long ids": (1, clients.unread_streams, {DONE}),
    }
    for name, (share, make, statuses) in _REFUSED.items():
        kinds[name] = (share, partial(clients.refused, make), statuses)
    return {name: Fault(*kind) for name, kind in kinds.items()}


class _Clients:
    def __init__(self, traffic: Traffic, order: random.Random) -> None:
        self._traffic = traffic
        self._order = order

    async def _open(self) -> Connection:
        return await Connection.open(self._traffic.port)

    async def refused(self, make: Callable[[random.Random], bytes]) -> str:
        """Send one request; the status of its answer."""
        async with await self._open() as connection:
            answer = await connection.ask(make(self._order))
        if answer.status != 200:
            return str(answer.status)
        # A stream has begun before its body is read: then its last line says what is wrong.
        last = json.loads(answer.body.splitlines()[-1])
        return str(STATUSES.get(last.get("error", {}).get("code"), WRONG))

    async def disconnects(self) -> str:
        async with await self._open() as connection:
            await connection.send(self._traffic.calls.draw().request)
            await asyncio.sleep(self._order.uniform(0, 0.05))
        return DISCONNECTED

    async def half_a_body(self) -> str:
        sent = self._traffic.calls.several().request
        async with await self._open() as connection:
            await connection.send(sent[: -self._order.randint(1, 100)])
            await asyncio.sleep(self._order.uniform(0, 1))
        return DISCONNECTED

    async def never_reads(self) -> str:
        """Ask for more answers than the buffers of the sockets can hold."""
        async with await self._open() as connection:
            try:
                async with asyncio.timeout(self._order.uniform(1, 5)):
                    for _ in range(200):
                        await connection.send(request("GET", "/openapi.json") * 10)
            except TimeoutError:
                return DISCONNECTED
            except Lost:
                return CLOSED  # allowed, because it read nothing
        return DISCONNECTED

    async def half_closes(self) -> str:
        call = self._traffic.calls.one()
        async with await self._open() as connection:
            await connection.send(call.request)
            connection.end_sending()
            try:
                return self._traffic.tally.outcome(call, await connection.answer())
            except Lost:
                return CLOSED  # the server takes it for a client that has left

    async def pipelines(self) -> str:
        calls = [self._traffic.calls.one() for _ in range(self._order.randint(2, 8))]
        async with await self._open() as connection:
            await connection.send(b"".join(call.request for call in calls))
            seen = {self._traffic.tally.outcome(call, await connection.answer()) for call in calls}
        return max(seen, key=lambda outcome: outcome != CORRECT)

    async def large_body(self) -> str:
        """Many clients send the whole body before they read."""
        size = self._order.randint(2_200_000, 8_000_000)
        sent = request("POST", "/classify", bytes(size), connection="close", content_type=JSON)
        async with await self._open() as connection:
            await connection.send(sent)
            return str((await connection.answer()).status)

    async def slow_body(self) -> str:
        call = self._traffic.calls.several()
        async with await self._open() as connection:
            step = len(call.request) // 10 + 1
            for start in range(0, len(call.request), step):
                await connection.send(call.request[start : start + step])
                await asyncio.sleep(self._order.uniform(0, 0.5))
            return self._traffic.tally.outcome(call, await connection.answer())

    async def unfinished_body(self) -> str:
        headers = {"content_type": JSON, "x_request_timeout_ms": "300"}
        sent = request("POST", "/classify", b'{"inputs": "love"}', **headers)
        async with await self._open() as connection:
            await connection.send(sent[:-5])
            return str((await connection.answer()).status)

    async def short_timeout(self) -> str:
        call = self._traffic.calls.several()
        wanted = f"POST /classify HTTP/1.1\r\nx-request-timeout-ms: {self._order.randint(1, 30)}"
        sent = call.request.replace(b"POST /classify HTTP/1.1", wanted.encode(), 1)
        return await self._outcome(call, sent)

    async def tiny_chunks(self) -> str:
        """One body may be valid. Beside it come endless ones, and clients that read pages."""
        call = self._traffic.calls.several()
        reading = asyncio.create_task(self._one_reader())
        outcome, *floods = await asyncio.gather(
            self._outcome(call, _in_chunks(call.request)),
            *(self.refused(lambda order: _FLOOD) for _ in range(FLOODS)),
        )
        await reading
        return next((seen for seen in floods if seen not in {"431", "429"}), outcome)

    async def _outcome(self, call: Call, sent: bytes) -> str:
        async with await self._open() as connection:
            return self._traffic.tally.outcome(call, await connection.ask(sent))

    async def many_connections(self) -> str:
        self._traffic.may_be_late()
        await asyncio.gather(*(self._one_connection() for _ in range(CROWD)))
        return DONE

    async def _one_connection(self) -> None:
        call = self._traffic.calls.one()
        try:
            async with await self._open() as connection:
                answer = await connection.ask(call.request)
        except (Lost, OSError) as error:
            self._traffic.lost(call, error)
        else:
            self._traffic.tally.answered(call, answer, {429, 504})

    async def many_readers(self) -> str:
        await asyncio.gather(*(self._one_reader() for _ in range(READERS)))
        return DONE

    async def _one_reader(self) -> None:
        for _ in range(PAGES):
            await self._traffic.ask(self._traffic.calls.read())

    async def many_forms(self) -> str:
        """Ask for ever new versions of a format."""
        async with Kept(self._open) as kept:
            for number in range(100):
                accept = f"application/openmetrics-text; version={number}.0"
                if (await kept.ask(request("GET", "/metrics", accept=accept))).status != 200:
                    return WRONG
        return DONE

    async def wide_windows(self) -> str:
        return await self._half_streams(WIDE, content_encoding="br")

    async def unread_streams(self) -> str:
        return await self._half_streams(LONG_IDS)

    async def _half_streams(self, content: bytes, **headers: str) -> str:
        """Streams at once that neither end nor read, for a few seconds."""
        sent = request("POST", "/classify/stream", content, content_type=NDJSON, **headers)
        async with AsyncExitStack() as stack:
            for _ in range(STREAMS):
                connection = await stack.enter_async_context(await self._open())
                with suppress(TimeoutError, Lost):
                    async with asyncio.timeout(0.2):
                        await connection.send(sent[:-1])
            await asyncio.sleep(self._order.uniform(1, 3))
        return DONE

    async def idle_connections(self) -> str:
        async with AsyncExitStack() as stack:
            for _ in range(IDLE):
                await stack.enter_async_context(await self._open())
            await asyncio.sleep(self._order.uniform(5, 30))
        return DONE


def _posted(body: bytes) -> bytes:
    return request("POST", "/classify", body, content_type=JSON)


def _in_chunks(sent: bytes) -> bytes:
    """The same request, with each byte of its body in a chunk of its own."""
    head, _, body = sent.partition(b"\r\n\r\n")
    head = re.sub(rb"content-length: \d+", b"transfer-encoding: chunked", head)
    return b"%b\r\n\r\n%b0\r\n\r\n" % (head, b"".join(b"1\r\n%c\r\n" % byte for byte in body))


_FLOOD = _in_chunks(_posted(bytes(300_000)))


def _not_http(order: random.Random) -> bytes:
    return order.randbytes(order.randint(20, 2_000)) + b"\r\n\r\n"


def _unknown(order: random.Random) -> bytes:
    unknown = _posted(b'{"inputs": "love", "model": "none"}')
    return order.choice([unknown, request("GET", "/nowhere")])


def _wrong_key(order: random.Random) -> bytes:
    path = order.choice(["/classify", "/models/any/reload"])
    key = f"Bearer {order.randbytes(16).hex()}"
    return request("POST", path, b"{}", content_type=JSON, authorization=key)


def _compressed(order: random.Random, encoding: str, content: bytes) -> bytes:
    """A POST to one of several kinds of routes."""
    path, content_type = order.choice(COMPRESSED_ROUTES)
    headers = {"content_type": content_type, "content_encoding": encoding, "connection": "close"}
    return request("POST", path, content, **headers)


def _half(order: random.Random) -> bytes:
    encoding, compress = order.choice(list(COMPRESS.items()))
    content = compress(TEXTS)
    return _compressed(order, encoding, content[: len(content) // 2])


def _damaged(order: random.Random) -> bytes:
    """What is not compressed at all, or compressed in another way than it says."""
    content = order.choice([TEXTS, zlib.compress(TEXTS)[2:-4], order.randbytes(500)])
    return _compressed(order, order.choice(list(COMPRESS)), content)


# Share, request and the statuses of what is answered at once.
_REFUSED: dict[str, tuple[float, Callable[[random.Random], bytes], Set[str]]] = {
    "sends bytes that are not HTTP": (3, _not_http, {"400"}),
    "sends a header of 100 KB": (
        3,
        lambda order: request("GET", "/health", x_long="a" * 100_000),
        {"431"},
    ),
    "sends an invalid request body": (
        3,
        lambda order: _posted(order.choice(INVALID)),
        {"422", "429"},
    ),
    "sends invalid Unicode": (3, lambda order: _posted(order.choice(NOT_UNICODE)), {"422", "429"}),
    "requests an unknown path or model": (3, _unknown, {"404"}),
    "sends a wrong key": (3, _wrong_key, {"401"}),
    "sends a decompression bomb": (
        3,
        lambda order: _compressed(order, *order.choice(list(BOMBS.items()))),
        {"413", "429"},
    ),
    "sends thousands of empty gzip members": (
        1,
        lambda order: _compressed(order, "gzip", MEMBERS),
        {"422", "429"},
    ),
    "sends half of a compressed body": (3, _half, {"422", "429"}),
    "sends damaged compressed data": (3, _damaged, {"422", "429"}),
    "sends an unknown content-encoding": (
        1,
        lambda order: _compressed(order, order.choice(["zstd", "gzip, gzip", "none"]), TEXTS),
        {"415"},
    ),
}
