"""Sends one slice of load, between two readings of a server's CPU time."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import numpy as np
from sentiment_service.cli.load_generator import Connection, prebuilt

WARM_UP = '{"inputs": "good"}'  # the first request of each connection, which is not measured


# What was read of a server: CPU times in nanoseconds.
Times = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True)
class Slice:
    """The requests that were sent and answered, and what they took.

    ``cpu_us`` has CPU times for each answer, in microseconds: some parts, and then the whole.
    """

    answers: int
    seconds: float
    cpu_us: np.ndarray[tuple[int], np.dtype[np.float64]]

    @property
    def per_second(self) -> float:
        return self.answers / self.seconds


async def send_slice(
    url: str,
    bodies: Sequence[str],
    *,
    connections: int,
    seconds: float,
    cpu_ns: Callable[[], Times],
) -> Slice:
    """Keep every connection busy for ``seconds``, then wait for the answers that are missing.

    ``cpu_ns`` reads the server's CPU times. It is called while the server has no request, so all
    requests between two readings are complete.
    """
    loop, to = asyncio.get_running_loop(), urlsplit(url)
    client = _Client(loop)
    try:
        for _ in range(connections):
            await loop.create_connection(client.connection, to.hostname or "", to.port or 80)
        await client.run(prebuilt(url, [WARM_UP]), until=loop.time())
        before, started = cpu_ns(), loop.time()
        answers = await client.run(prebuilt(url, bodies), until=started + seconds)
        took, used = loop.time() - started, cpu_ns() - before
    finally:
        client.close()
    return Slice(answers, took, used / 1000 / answers)


class _Client:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._connections: list[Connection] = []
        self._answers = self._waiting = 0
        self._requests: Iterator[bytes]
        self._until: float
        self._done: asyncio.Future[None] = loop.create_future()

    def connection(self) -> Connection:
        self._connections.append(Connection(self))
        return self._connections[-1]

    async def run(self, requests: Iterator[bytes], *, until: float) -> int:
        """Send a request on each connection, and others until this time. Returns the answers."""
        self._requests, self._until, self._done = requests, until, self._loop.create_future()
        self._answers, self._waiting = 0, len(self._connections)
        for connection in self._connections:
            connection.send(next(requests), 0.0)
        await self._done
        return self._answers

    def answered(self, connection: Connection, status: int, *, reusable: bool) -> None:
        if status != 200:
            self._fail(f"an answer has status {status}")
            return
        self._answers += 1
        if self._loop.time() < self._until:
            connection.send(next(self._requests), 0.0)
            return
        self._waiting -= 1
        if not self._waiting:
            self._done.set_result(None)

    def lost(self, connection: Connection) -> None:
        self._fail("the server closed a connection")

    def _fail(self, why: str) -> None:
        if not self._done.done():
            self._done.set_exception(RuntimeError(why))

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
