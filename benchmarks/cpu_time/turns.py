"""Starts servers and sends load to them in turns."""

import asyncio
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import uvloop

from benchmarks.cpu_time.client import Slice, Times, send_slice
from benchmarks.service import Server
from benchmarks.subject import Subject
from benchmarks.tables import Row

SERVERS = (sys.executable, "-m", "benchmarks.cpu_time.servers")
# The service, whose inference takes no time.
ALONE = (*SERVERS, "alone")
FLAGS = ("--threads", "1", "--max-batch-tokens", "512")
LONG_DEADLINE = ("--deadline-ms", "600000")  # nothing is refused, however slow the machine is


@dataclass(frozen=True)
class Load:
    """How many connections are kept busy, with how many texts in each request."""

    connections: int
    texts: int


@dataclass(frozen=True)
class Started:
    """A running server.

    ``cpu_ns`` reads those of its CPU times that are of interest. The path may contain ``{texts}``,
    the number of texts in a request.
    """

    name: str
    server: Server
    cpu_ns: Callable[[Server], Sequence[int]]
    path: str = "/classify"

    def times(self) -> Times:
        return np.array(self.cpu_ns(self.server))


@dataclass(frozen=True)
class Plan:
    subject: Subject
    rounds: int
    loads: Sequence[Load]
    seconds: float  # for each server in a round


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
                        one.server.url + one.path.format(texts=load.texts),
                        bodies,
                        connections=load.connections,
                        seconds=plan.seconds,
                        cpu_ns=one.times,
                    )
                    slices[one].append(runner.run(sending))
            yield load, slices


def spread(name: str, values: Iterable[float]) -> Row:
    """The median and the quartiles."""
    low, middle, high = np.percentile(list(values), (25, 50, 75))
    return {name: float(middle), f"{name}, quartiles": f"{low:.3g} to {high:.3g}"}
