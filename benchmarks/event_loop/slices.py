"""Starts servers and sends load to them in turns."""

import asyncio
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import uvloop

from benchmarks.event_loop.client import Slice, Times, send_slice
from benchmarks.service import Server
from benchmarks.subject import Subject
from benchmarks.tables import Row

# By path and with -P, so that the service is imported from PYTHONPATH and not from here.
SERVERS = (sys.executable, "-P", str(Path(__file__).with_name("servers.py")))
FLAGS = (
    *("--runners", "2", "--threads", "1", "--max-batch-tokens", "512"),
    *("--deadline-ms", "60000"),  # nothing is refused, however slow the machine is
)
LOGGED = (*FLAGS, "--access-log", "on")


@dataclass(frozen=True)
class Load:
    """How many connections are kept busy, with how many texts in each request."""

    connections: int
    texts: int


LOADS = (Load(64, 1), Load(64, 16), Load(1, 1))


@dataclass(frozen=True)
class Started:
    """A running server, and the name of the server that it is compared with.

    The path may contain ``{texts}``, the number of texts in a request.
    """

    name: str
    server: Server
    beside: str
    path: str = "/classify"
    parts: Callable[[], Iterable[int]] = tuple  # nanoseconds, if the process has timers

    def cpu_ns(self) -> Times:
        """CPU times until now: the parts, and the whole event loop's thread."""
        return np.array([*self.parts(), self.server.event_loop_ns()])


@dataclass(frozen=True)
class Plan:
    """How long to measure, and with which texts."""

    subject: Subject
    rounds: int
    seconds: float = 1.0  # for each server in a round
    loads: Sequence[Load] = LOADS


def measure(
    plan: Plan, started: Iterable[Started]
) -> Iterator[tuple[Load, dict[Started, list[Slice]]]]:
    """For each load, the slices of each server, one for each round.

    All servers run at once. Those that have no load use no CPU.
    """
    with ExitStack() as stack, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        servers = []
        for one in started:
            stack.enter_context(one.server)
            servers.append(one)
        for load in plan.loads:
            bodies = plan.subject.bodies(load.texts)
            slices: dict[Started, list[Slice]] = {one: [] for one in servers}
            for number in range(plan.rounds):
                # Every other round goes backwards, so that no server always follows the same one.
                for one in servers[:: -1 if number % 2 else 1]:
                    sending = send_slice(
                        one.server.port,
                        one.path.format(texts=load.texts),
                        bodies,
                        connections=load.connections,
                        seconds=plan.seconds,
                        cpu_ns=one.cpu_ns,
                    )
                    slices[one].append(runner.run(sending))
            yield load, slices


def spread(name: str, values: Iterable[float]) -> Row:
    """The median and the quartiles."""
    low, middle, high = np.percentile(list(values), (25, 50, 75))
    return {name: float(middle), f"{name}, quartiles": f"{low:.3g} to {high:.3g}"}
