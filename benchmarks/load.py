"""Sends HTTP requests from a separate process over loopback, on connections that stay open.

The loop is closed (a request follows each answer) or open (requests arrive at random times). The
client is written by hand to save CPU time, because it shares two cores with the server: requests
are made beforehand, and httptools parses the answers.

    echo '{"port": 8000, ...}' | python -m benchmarks.load
"""

import asyncio
import json
import random
import subprocess
import sys
import time
from collections import defaultdict, deque
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import cycle
from typing import Any, Protocol, Self, cast

import httptools
import numpy as np
import uvloop

from benchmarks.service import Service

# At this many connections, a new arrival waits for a free one. The wait is part of its latency.
MAX_CONNECTIONS = 4_000
TICK_SECONDS = 0.002  # between checks for due arrivals; waking up for each would cost CPU time
GRACE_SECONDS = 15  # for requests without an answer when the arrivals end


@dataclass(frozen=True)
class Load:
    """What to send. ``rate`` is in requests per second; without it, the loop is closed."""

    port: int
    path: str
    bodies: Sequence[str]
    connections: int
    seconds: float
    warm_up_seconds: float = 1.0
    rate: float | None = None


@dataclass
class Outcome:
    """The answers in ``seconds`` after the warm-up: latencies in seconds, by status.

    In an open loop, a latency begins when the request was due.
    """

    seconds: float = 0.0
    latencies: dict[str, list[float]] = field(default_factory=dict)

    def ok(self) -> int:
        """The number of answers with 200."""
        return len(self.latencies.get("200", ()))

    def ok_per_second(self) -> float:
        """Answers with 200 per second."""
        return self.ok() / self.seconds

    def percentile_ms(self, percent: float, status: str = "200") -> float:
        """A percentile of the latencies with this status; NaN without any."""
        latencies = self.latencies.get(status)
        return float(np.percentile(latencies, percent)) * 1000 if latencies else float("nan")


class Generator:
    """A running load process, from the beginning of its warm-up; leaving the block kills it."""

    def __init__(self, load: Load) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.load"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(load)))
        self._process.stdin.close()
        self._process.stdin = None
        assert self._process.stdout is not None
        self._process.stdout.readline()  # it is connected; or it has failed, which outcome() says

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.wait()

    def outcome(self) -> Outcome:
        """Wait for the end and return the outcome."""
        output, _ = self._process.communicate()
        if self._process.returncode:
            raise RuntimeError("the load generator failed")
        return Outcome(**json.loads(output))


def run(load: Load) -> Outcome:
    """Send the load and wait for its end."""
    with Generator(load) as generator:
        return generator.outcome()


@dataclass(frozen=True)
class Seen:
    """What the service's metrics said before and after ``seconds`` of a load.

    Metrics are summed over their labels.
    """

    seconds: float
    before: Mapping[str, float]
    after: Mapping[str, float]
    cpu_seconds: float  # of the server meanwhile
    outcome: Outcome  # what the client saw

    def grown(self, name: str) -> float:
        """How much a counter grew."""
        return self.after[name] - self.before[name]

    def mean(self, name: str) -> float:
        """The mean of what a histogram observed."""
        return self.grown(f"{name}_sum") / max(1, self.grown(f"{name}_count"))


def watched(service: Service, *loads: Load) -> Seen:
    """Send loads of equal length, and read metrics and CPU time after the warm-up and at the end.

    The clients' count of answers says less: requests of many texts take turns and end together, so
    their answers come in waves.
    """
    load = loads[0]
    with ExitStack() as stack:
        generators = [stack.enter_context(Generator(one)) for one in loads]
        time.sleep(load.warm_up_seconds)
        before, cpu, started = service.metrics(), service.cpu_seconds(), time.perf_counter()
        time.sleep(load.seconds * 0.9)
        after, used = service.metrics(), service.cpu_seconds() - cpu
        seconds = time.perf_counter() - started
        whole = Outcome(load.seconds, defaultdict(list))
        for generator in generators:
            for status, latencies in generator.outcome().latencies.items():
                whole.latencies[status] += latencies
        return Seen(seconds, before, after, used, whole)


class Driver(Protocol):
    """What a connection calls."""

    def answered(self, connection: "Connection", status: int, *, reusable: bool) -> None:
        """The request that was sent last has its answer."""

    def lost(self, connection: "Connection") -> None:
        """The connection is closed."""


def prebuilt(port: int, path: str, bodies: Sequence[str]) -> Iterator[bytes]:
    """The requests that send the bodies to this path, again and again."""
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n"
    head += "content-type: application/json\r\ncontent-length: "
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
        self._requests = prebuilt(load.port, load.path, load.bodies)
        self._free: list[Connection] = []
        self._waiting: deque[float] = deque()  # due times of arrivals that wait for a connection
        self._open = 0
        self._busy: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()  # the event loop keeps weak references only
        self._latencies: dict[int | str, list[float]] = defaultdict(list)
        self._closed = load.rate is None
        self._time = time.monotonic  # the clock of the event loop

    async def run(self) -> Outcome:
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(self._connect() for _ in range(self._load.connections)))
        print(flush=True)
        self._begin = loop.time() + self._load.warm_up_seconds
        self._end = self._begin + self._load.seconds
        if self._load.rate is None:
            for connection in list(self._free):
                self._send(connection, loop.time())
            self._free.clear()
            await asyncio.sleep(self._end - loop.time())
        else:
            await self._arrivals(self._load.rate)
        latencies = {str(status): found for status, found in self._latencies.items()}
        return Outcome(self._load.seconds, latencies)

    async def _arrivals(self, rate: float) -> None:
        """Poisson arrivals until the end, then some time for the last answers."""
        loop = asyncio.get_running_loop()
        gaps = random.Random(0)
        due = loop.time()
        while due < self._end:
            await asyncio.sleep(max(due - loop.time(), TICK_SECONDS))
            while due <= loop.time():
                if self._free:
                    self._send(self._free.pop(), due)
                else:
                    self._waiting.append(due)
                    if self._open < MAX_CONNECTIONS:
                        self._start(self._connect())
                due += gaps.expovariate(rate)
        for _ in range(GRACE_SECONDS * 20):
            if self._busy or self._waiting:
                await asyncio.sleep(0.05)
        for connection in self._busy:
            self._note("none", connection.due)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self) -> None:
        self._open += 1
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: Connection(self), "127.0.0.1", self._load.port
        )
        self._release(connection)

    def _release(self, connection: Connection) -> None:
        if self._waiting:
            self._send(connection, self._waiting.popleft())
        else:
            self._free.append(connection)

    def _send(self, connection: Connection, due: float) -> None:
        self._busy.add(connection)
        connection.send(next(self._requests), due)

    def _note(self, status: int | str, due: float) -> float:
        now = self._time()
        # Open arrivals count by the time they were due, others by the time of the answer.
        if self._begin <= (now if self._closed else due) < self._end:
            self._latencies[status].append(now - due)
        return now

    def answered(self, connection: Connection, status: int, *, reusable: bool) -> None:
        now = self._note(status, connection.due)
        if not reusable:
            connection.close()
        elif self._closed:
            connection.send(next(self._requests), now)
        else:
            self._busy.discard(connection)
            self._release(connection)

    def lost(self, connection: Connection) -> None:
        self._open -= 1
        if connection in self._busy:
            self._busy.discard(connection)
            self._note("lost", connection.due)
        elif connection in self._free:
            self._free.remove(connection)
        if self._load.rate is None and asyncio.get_running_loop().time() < self._end:
            self._start(self._reconnect())

    async def _reconnect(self) -> None:
        await self._connect()
        self._send(self._free.pop(), asyncio.get_running_loop().time())


def main() -> None:
    """Read a load from standard input, run it, write the outcome to standard output."""
    load = Load(**json.load(sys.stdin))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        outcome = runner.run(_Driver(load).run())
    json.dump(asdict(outcome), sys.stdout)


if __name__ == "__main__":
    main()
