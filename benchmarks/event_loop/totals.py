"""Measures the CPU time of the event loop's thread for each request, beside bare servers."""

import asyncio
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import uvloop

from benchmarks.event_loop.client import Slice, send_slice
from benchmarks.service import Server
from benchmarks.serving import Row, Subject

# By path and with -P, so that the service is imported from PYTHONPATH and not from here.
SERVERS = (sys.executable, "-P", str(Path(__file__).with_name("servers.py")))
FLAGS = ("--runners", "2", "--threads", "1", "--max-batch-tokens", "512")
LOGGED = ("--access-log", "on")
LOADS = ((64, 1), (64, 16), (1, 1))  # connections, texts in a request
BARE, RAW = "bare FastAPI route", "raw ASGI"
OURS, ALONE = "ours", "ours, fixed logits"
SLICE_SECONDS = 1.0

Started = Iterator[tuple[str, Server]]


def totals(
    subject: Subject,
    rounds: int,
    seconds: float = SLICE_SECONDS,
    loads: Sequence[tuple[int, int]] = LOADS,
) -> Iterator[Row]:
    """CPU time of the event loop for each request of the service and of bare servers, by load."""
    yield from _compare(_ours_and_bare(subject), subject, rounds, seconds, loads)


def against(
    path: str,
    subject: Subject,
    rounds: int,
    seconds: float = SLICE_SECONDS,
    loads: Sequence[tuple[int, int]] = LOADS,
) -> Iterator[Row]:
    """The service beside the service of another tree, whose PYTHONPATH is ``path``."""
    yield from _compare(_ours_and_other(subject, path), subject, rounds, seconds, loads)


def _ours_and_bare(subject: Subject) -> Started:
    alone = (*SERVERS, "alone")
    yield BARE, Server(*SERVERS, "bare", "fastapi")
    yield RAW, Server(*SERVERS, "bare", "raw")
    yield OURS, subject.serve(*FLAGS)
    yield f"{OURS}, access log", subject.serve(*FLAGS, *LOGGED)
    yield ALONE, subject.serve(*FLAGS, program=alone)
    yield f"{ALONE}, access log", subject.serve(*FLAGS, *LOGGED, program=alone)


def _ours_and_other(subject: Subject, path: str) -> Started:
    alone = (*SERVERS, "alone")
    yield f"{OURS}, other tree", subject.serve(*FLAGS, python_path=path)
    yield OURS, subject.serve(*FLAGS)
    yield f"{ALONE}, other tree", subject.serve(*FLAGS, program=alone, python_path=path)
    yield ALONE, subject.serve(*FLAGS, program=alone)


def _compare(
    started: Started,
    subject: Subject,
    rounds: int,
    seconds: float,
    loads: Sequence[tuple[int, int]],
) -> Iterator[Row]:
    """A row for each load and server.

    All servers run at once, and get slices of the load in turn: without requests, a server uses no
    CPU.
    """
    with ExitStack() as stack, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        servers = {name: stack.enter_context(server) for name, server in started}
        for connections, texts in loads:
            slices: dict[str, list[Slice]] = {name: [] for name in servers}
            for number in range(rounds):
                # Every other round goes backwards, so that no server always follows the same one.
                for name in list(servers)[:: -1 if number % 2 else 1]:
                    slices[name].append(
                        runner.run(
                            send_slice(
                                servers[name].port,
                                f"/{texts}" if name == RAW else "/classify",
                                subject.bodies(texts),
                                connections=connections,
                                seconds=seconds,
                                cpu_ns=servers[name].event_loop_ns,
                            )
                        )
                    )
            first = next(iter(servers))
            for name in servers:
                yield {
                    "server": name,
                    "connections": connections,
                    "texts a request": texts,
                    **_summary("CPU µs a request", [one.cpu_us for one in slices[name]]),
                    **_summary(f"÷ {first}", _ratios(slices[name], slices[first], "cpu_us")),
                    "texts/s": texts * statistics.median(one.per_second for one in slices[name]),
                }


def _ratios(ours: Sequence[Slice], others: Sequence[Slice], field: str) -> list[float]:
    """Within rounds."""
    return [getattr(a, field) / getattr(b, field) for a, b in zip(ours, others, strict=True)]


def _summary(name: str, values: Sequence[float]) -> Row:
    """The median and the quartiles."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {name: middle, f"{name}, quartiles": f"{low:.3g} to {high:.3g}"}
