"""Measures the CPU time of the event loop's thread for each request, beside other servers."""

import statistics
from collections.abc import Iterator, Sequence

from benchmarks.cpu_time.client import Slice
from benchmarks.cpu_time.turns import (
    ALONE,
    FLAGS,
    LONG_DEADLINE,
    SERVERS,
    Load,
    Plan,
    Started,
    measure,
    spread,
)
from benchmarks.service import Server
from benchmarks.subject import Subject
from benchmarks.tables import Row

LOADS = (Load(64, 1), Load(64, 16), Load(1, 1))
SECONDS = 1.0  # of load for each server in a round
BARE = "bare FastAPI route"


def beside_bare(subject: Subject, rounds: int) -> Iterator[Row]:
    """The service beside a bare FastAPI route and a raw ASGI callable, by load."""
    plan = Plan(subject, rounds, LOADS, SECONDS)
    for load, slices in measure(plan, _servers(subject)):
        bare = next(found for one, found in slices.items() if one.name == BARE)
        for one, found in slices.items():
            pairs = list(zip(found, bare, strict=True))
            yield {
                "server": one.name,
                "connections": load.connections,
                "texts a request": load.texts,
                **spread("CPU µs a request", map(_cpu_us, found)),
                **spread("÷ bare FastAPI", (_cpu_us(a) / _cpu_us(b) for a, b in pairs)),
                "texts/s": load.texts * statistics.median(a.per_second for a in found),
                **spread("texts/s ÷ bare FastAPI", (a.per_second / b.per_second for a, b in pairs)),
            }


def _servers(subject: Subject) -> Iterator[Started]:
    flags = (*FLAGS, "--runners", "2", *LONG_DEADLINE)
    logged = (*flags, "--access-log", "on")
    yield Started(BARE, Server(*SERVERS, "bare", "fastapi"), _event_loop)
    yield Started("raw ASGI", Server(*SERVERS, "bare", "raw"), _event_loop, "/{texts}")
    yield Started("ours", subject.serve(*flags), _event_loop)
    yield Started("ours, access log", subject.serve(*logged), _event_loop)
    for name, given in (("ours, fixed logits", flags), ("ours, fixed logits, access log", logged)):
        yield Started(name, subject.serve(*given, program=ALONE), _event_loop)


def _event_loop(server: Server) -> Sequence[int]:
    return [server.event_loop_ns()]


def _cpu_us(one: Slice) -> float:
    return float(one.cpu_us[0])
