"""Loads: texts as long as tweets, and processes that send them on connections that stay open.

The loop is open (requests arrive at random times, however long answers take) or closed (a request
follows each answer).
"""

import json
import math
import random
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Self

import numpy as np

from sentiment_service.children import child_command
from sentiment_service.errors import UserError

COMMAND = child_command("from sentiment_service.cli.bench.sender import main")
PROCESS_RATE = 3_000.0  # requests a second that one process sends; several share a higher rate

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
        """The number of answers with 200."""
        return len(self.latencies.get("200", ()))

    def ok_per_second(self) -> float:
        """Answers with 200 per second."""
        return self.ok() / self.seconds

    def percentile_ms(self, percent: float, status: str = "200") -> float:
        """A percentile of the latencies with this status; NaN without any."""
        latencies = self.latencies.get(status)
        return float(np.percentile(latencies, percent)) * 1000 if latencies else float("nan")

    def add(self, other: "Outcome") -> None:
        """Add what another process saw at the same time."""
        self.seconds = other.seconds
        self.delays += other.delays
        for status, latencies in other.latencies.items():
            self.latencies.setdefault(status, []).extend(latencies)


class Generator:
    """Running load processes, from the beginning of their warm-up; leaving the block kills them."""

    def __init__(self, load: Load) -> None:
        self._processes = [_started(share) for share in load.shares()]
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
        """Wait for the end and return the outcome.

        Raises:
            UserError: no connection could be opened.
        """
        outcome = Outcome()
        for process in self._processes:
            output, errors = process.communicate()
            if process.returncode:
                lines = errors.decode().splitlines() or ["the load generator was killed"]
                raise UserError(lines[-1])
            outcome.add(Outcome(**json.loads(output)))
        return outcome


def _started(load: Load) -> "subprocess.Popen[bytes]":
    with tempfile.TemporaryFile() as given:
        given.write(json.dumps(asdict(load)).encode())
        given.seek(0)
        pipe = subprocess.PIPE
        return subprocess.Popen(COMMAND, bufsize=0, stdin=given, stdout=pipe, stderr=pipe)  # noqa: S603


def run(load: Load) -> Outcome:
    """Send the load and wait for its end."""
    with Generator(load) as generator:
        return generator.outcome()
