"""Sends the share of a load of one process: connections that stay open, and when each sends.

The client is written by hand to save CPU time, because it may share its CPUs with the server:
requests are made beforehand, and httptools parses the answers. Times are those of
``time.monotonic``, because the event loop's clock is a millisecond coarse.
"""

import asyncio
import json
import math
import os
import random
import ssl
import sys
import time
from collections import defaultdict, deque
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import cycle
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

import httptools
import uvloop

from sentiment_service.cli.bench.load import Load, Outcome
from sentiment_service.server.process import raise_file_limit

# At this many connections, a new arrival waits for a free one. The wait is part of its latency.
MAX_CONNECTIONS = 4_000
TICK_S = 0.001  # between checks for due arrivals; the event loop's timers are no finer
HURRY = -15  # its priority, if it may have one
GRACE_S = 15  # for requests without an answer when the arrivals end


class Driver(Protocol):
    """What a connection calls."""

    def answered(self, connection: "Connection", status: int, *, reusable: bool) -> None:
        """The request that was sent last has its answer."""

    def lost(self, connection: "Connection") -> None:
        """The connection is closed."""


def prebuilt(url: str, bodies: Sequence[str], headers: Sequence[str] = ()) -> Iterator[bytes]:
    """The requests that send the bodies to this URL, again and again."""
    to = urlsplit(url)
    lines = (f"POST {to.path} HTTP/1.1", f"host: {to.netloc}", "content-type: application/json")
    head = "\r\n".join((*lines, *headers, "content-length: "))
    encoded = [body.encode() for body in bodies]
    return cycle([f"{head}{len(body)}\r\n\r\n".encode() + body for body in encoded])


class Connection(asyncio.Protocol):
    """One keep-alive connection; its answers go to the driver."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._parser = httptools.HttpResponseParser(self)
        self.due = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The types of uvloop's transports are not subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # the answer is still to come
            return
        reusable = self._parser.should_keep_alive()
        self._driver.answered(self, status, reusable=reusable)

    def connection_lost(self, error: Exception | None) -> None:
        self._driver.lost(self)

    def send(self, request: bytes, due: float) -> None:
        """Send a request that was due at this time."""
        self.due = due
        self._transport.write(request)

    def close(self) -> None:
        """Close at once."""
        self._transport.abort()


class _Driver:
    def __init__(self, load: Load) -> None:
        self._load = load
        self._requests = prebuilt(load.url, load.bodies, load.headers)
        self._to = urlsplit(load.url)
        self._tls = ssl.create_default_context() if self._to.scheme == "https" else None
        self._loop = asyncio.get_running_loop()
        self._free: list[Connection] = []
        self._waiting: deque[float] = deque()  # due times of arrivals that wait for a connection
        self._open = 0
        self._busy: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()  # the event loop keeps weak references only
        self._latencies: dict[str, list[float]] = defaultdict(list)
        self._delays: list[float] = []
        self._closed = load.rate is None
        self._begin = self._end = math.inf

    async def run(self) -> Outcome:
        await asyncio.gather(*(self._connect() for _ in range(self._load.connections)))
        if not self._free:
            raise ConnectionError
        print(flush=True)
        self._begin = time.monotonic() + self._load.warm_up_seconds
        self._end = self._begin + self._load.seconds
        if self._load.rate is None:
            free, self._free = self._free, []
            for connection in free:
                self._send(connection, time.monotonic())
            await asyncio.sleep(self._end - time.monotonic())
        else:
            await self._arrivals(self._load.rate)
        return Outcome(self._load.seconds, dict(self._latencies), self._delays)

    async def _arrivals(self, rate: float) -> None:
        """Poisson arrivals until the end, then some time for the last answers."""
        for due in arrivals(rate, time.monotonic(), self._end, self._load.seed):
            if (now := time.monotonic()) < due:
                await asyncio.sleep(max(due - now, TICK_S))
                now = time.monotonic()
            if due >= self._begin:
                self._delays.append(now - due)
            # The first tick is not counted: no answer could have begun earlier.
            due = min(now, due + TICK_S)
            if self._free:
                self._send(self._free.pop(), due)
            else:
                self._waiting.append(due)
                if self._open < MAX_CONNECTIONS:
                    self._start(self._connect())
        for _ in range(GRACE_S * 20):
            if self._busy or self._waiting:
                await asyncio.sleep(0.05)
        for due in (*self._waiting, *(connection.due for connection in self._busy)):
            self._note("none", due)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self) -> None:
        self._open += 1
        try:
            port = self._to.port or (443 if self._tls else 80)
            _, connection = await self._loop.create_connection(
                lambda: Connection(self), self._to.hostname or "", port, ssl=self._tls
            )
        except OSError:
            self._open -= 1
            if self._waiting:
                self._note("unreachable", self._waiting.popleft())
            return
        self._release(connection)

    def _release(self, connection: Connection) -> None:
        if self._waiting:
            self._send(connection, self._waiting.popleft())
        elif self._closed and self._begin < math.inf:
            self._send(connection, time.monotonic())
        else:
            self._free.append(connection)

    def _send(self, connection: Connection, due: float) -> None:
        self._busy.add(connection)
        connection.send(next(self._requests), due)

    def _note(self, status: str, due: float) -> None:
        now = time.monotonic()
        # Open arrivals count by the time they were due, others by the time of the answer.
        if self._begin <= (now if self._closed else due) < self._end:
            self._latencies[status].append(now - due)

    def answered(self, connection: Connection, status: int, *, reusable: bool) -> None:
        self._busy.discard(connection)
        self._note(str(status), connection.due)
        if reusable:
            self._release(connection)
        else:
            connection.close()

    def lost(self, connection: Connection) -> None:
        self._open -= 1
        if connection in self._busy:
            self._busy.discard(connection)
            self._note("lost", connection.due)
        elif connection in self._free:
            self._free.remove(connection)
        # Without this one, a closed loop has a connection too few, and arrivals may wait for it.
        if (self._closed or self._waiting) and time.monotonic() < self._end:
            self._start(self._connect())


def arrivals(rate: float, start: float, end: float, seed: int) -> Iterator[float]:
    """The times of Poisson arrivals with this rate per second, from ``start`` until ``end``."""
    gaps = random.Random(seed)
    while start < end:
        yield start
        start += gaps.expovariate(rate)


async def _run(load: Load) -> Outcome:
    return await _Driver(load).run()


def main() -> int:
    """Read a load from standard input, run it, write the outcome to standard output."""
    load = Load(**json.load(sys.stdin))
    raise_file_limit()
    with suppress(PermissionError):  # as if it ran on a machine of its own
        os.nice(HURRY)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            outcome = runner.run(_run(load))
        except ConnectionError:
            sys.exit(f"{load.url} cannot be reached")
    json.dump(asdict(outcome), sys.stdout)
    return 0
