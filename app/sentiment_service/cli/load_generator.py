"""The load generator: texts as long as tweets, and processes that send them.

The loop is open (requests arrive at random times, however long answers take) or closed (a request
follows each answer). The client is written by hand to save CPU time, because it may share its CPUs
with the server. Times are those of ``time.monotonic``, because the event loop's clock is coarse.
"""

import asyncio
import json
import math
import os
import random
import ssl
import subprocess
import sys
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import cycle
from typing import Any, Protocol, Self, cast
from urllib.parse import urlsplit

import httptools
import numpy as np
import uvloop

from sentiment_service.errors import UserError
from sentiment_service.installation import child_command
from sentiment_service.server.process import raise_file_limit

COMMAND = child_command("from sentiment_service.cli.load_generator import main")
PROCESS_RATE = 3_000.0  # requests a second that one process sends; several share a higher rate
# At this many connections, a new arrival waits for a free one. The wait is part of its latency.
MAX_CONNECTIONS = 4_000
TICK_S = 0.001  # between checks for due arrivals; the event loop's timers are no finer
HURRY = -15  # its priority, if it may have one
GRACE_S = 15  # for requests without an answer when the arrivals end

# Token lengths of tweets (RoBERTa's tokenizer) by percentile; above them is a long tail.
PERCENTILES = (0, 1, 10, 50, 90, 99)
TOKENS = (5, 8, 14, 26, 36, 45)
MAX_TOKENS = 512
SPECIAL_TOKENS = 2

# Each is one token of most tokenizers.
WORDS = (
    "the a to and I you it of in is for on my that this be with have just so me at not but are "
    "was all now what love like good day time today great people new can get out will more know "
    "going really think back see want one got how they don't worst happy tomorrow night morning "
    "game team coffee weather service waiting train phone battery beautiful terrible amazing"
)


def tweet_lengths(count: int, *, seed: int = 0) -> list[int]:
    """Token lengths, special tokens included; one in a hundred is log-uniform from 45 to 512."""
    generator = np.random.default_rng(seed)
    ranks = generator.uniform(0, 100, count)
    body = np.interp(ranks, PERCENTILES, TOKENS)
    tail = TOKENS[-1] * (MAX_TOKENS / TOKENS[-1]) ** (ranks - PERCENTILES[-1]).clip(0, 1)
    lengths = np.where(ranks < PERCENTILES[-1], body, tail)
    return [int(length) for length in lengths.round()]


def tweets(count: int) -> list[str]:
    """Common words in random order, as many as tweets have tokens."""
    words, generator = WORDS.split(), random.Random(0)
    return [
        " ".join(generator.choices(words, k=length - SPECIAL_TOKENS))
        for length in tweet_lengths(count)
    ]


@dataclass(frozen=True)
class Load:
    """What to send. ``rate`` is in requests per second; without it, the loop is closed.

    ``headers`` are whole lines without their ends. ``seed`` decides when requests arrive.
    """

    url: str
    bodies: Sequence[str]
    connections: int
    seconds: float
    warm_up_seconds: float = 1.0
    rate: float | None = None
    headers: Sequence[str] = ()
    seed: int = 0

    def shares(self) -> list["Load"]:
        """What each process sends. The sum of Poisson arrivals is one, too."""
        count = math.ceil((self.rate or 0.0) / PROCESS_RATE) or 1
        rate, begin = self.rate and self.rate / count, len(self.bodies) // count
        return [
            replace(
                self,
                rate=rate,
                connections=max(1, self.connections // count),
                bodies=[*self.bodies[begin * number :], *self.bodies[: begin * number]],
                seed=number,
            )
            for number in range(count)
        ]


@dataclass
class Outcome:
    """The answers in ``seconds`` after the warm-up: latencies in seconds, by status.

    In an open loop, a latency begins when the request was due, and ``delays`` are the seconds by
    which this client, not the service, was late to send. Without an answer, the status is ``lost``,
    ``unreachable`` or ``none``.
    """

    seconds: float = 0.0
    latencies: dict[str, list[float]] = field(default_factory=dict)
    delays: list[float] = field(default_factory=list)

    def ok(self) -> int:
        return len(self.latencies.get("200", ()))

    def ok_per_second(self) -> float:
        return self.ok() / self.seconds

    def percentile_ms(self, percent: float, status: str = "200") -> float:
        """A percentile of the latencies with this status; NaN without any."""
        latencies = self.latencies.get(status)
        return float(np.percentile(latencies, percent)) * 1000 if latencies else float("nan")

    def add(self, other: "Outcome") -> None:
        self.seconds = other.seconds
        self.delays += other.delays
        for status, latencies in other.latencies.items():
            self.latencies.setdefault(status, []).extend(latencies)


class Generator:
    """Running load processes, from the beginning of their warm-up; leaving the block kills them."""

    def __init__(self, load: Load, command: Sequence[str] = COMMAND) -> None:
        self._processes = [_started(share, command) for share in load.shares()]
        for process in self._processes:
            assert process.stdout is not None  # noqa: S101
            # It is connected; or it has failed, which outcome() says. The pipe has no buffer here,
            # so the rest stays in it.
            process.stdout.readline()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()

    def outcome(self) -> Outcome:
        outcome = Outcome()
        for process in self._processes:
            output, errors = process.communicate()
            if process.returncode:
                lines = errors.decode().splitlines() or ["the load generator was killed"]
                raise UserError(lines[-1])
            outcome.add(Outcome(**json.loads(output)))
        return outcome


def _started(load: Load, command: Sequence[str]) -> "subprocess.Popen[bytes]":
    with tempfile.TemporaryFile() as given:
        given.write(json.dumps(asdict(load)).encode())
        given.seek(0)
        pipe = subprocess.PIPE
        return subprocess.Popen(command, bufsize=0, stdin=given, stdout=pipe, stderr=pipe)  # noqa: S603


def run(load: Load, command: Sequence[str] = COMMAND) -> Outcome:
    with Generator(load, command) as generator:
        return generator.outcome()


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
        self.due = due
        self._transport.write(request)

    def close(self) -> None:
        self._transport.abort()


class _Driver:
    def __init__(self, load: Load) -> None:
        self._load = load
        self._requests = prebuilt(load.url, load.bodies, load.headers)
        self._to = urlsplit(load.url)
        self._tls = ssl.create_default_context() if self._to.scheme == "https" else None
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
            _, connection = await asyncio.get_running_loop().create_connection(
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


def main() -> int:
    """Read a load from standard input, run it, write the outcome to standard output."""
    load = Load(**json.load(sys.stdin))
    raise_file_limit()
    with suppress(PermissionError):  # as if it ran on a machine of its own
        os.nice(HURRY)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            outcome = runner.run(_Driver(load).run())
        except ConnectionError:
            sys.exit(f"{load.url} cannot be reached")
    json.dump(asdict(outcome), sys.stdout)
    return 0
