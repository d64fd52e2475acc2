"""Measures the CPU time of the event loop's thread for each request, beside other servers."""

import statistics
from collections.abc import Iterable, Iterator

from benchmarks.event_loop.client import Slice
from benchmarks.event_loop.slices import FLAGS, LOGGED, SERVERS, Plan, Started, measure, spread
from benchmarks.service import Server
from benchmarks.tables import Row

ALONE = (*SERVERS, "alone")


def beside_bare(plan: Plan) -> Iterator[Row]:
    """The service beside a bare FastAPI route and a raw ASGI callable, by load."""
    return _rows(plan, _ours_and_bare(plan), "bare FastAPI")


def beside_other_tree(plan: Plan, path: str) -> Iterator[Row]:
    """The service beside that of another tree of this project, whose PYTHONPATH is ``path``."""
    return _rows(plan, _ours_and_other(plan, path), "other tree")


def _ours_and_bare(plan: Plan) -> Iterator[Started]:
    serve, bare = plan.subject.serve, "bare FastAPI route"
    yield Started(bare, Server(*SERVERS, "bare", "fastapi"), bare)
    yield Started("raw ASGI", Server(*SERVERS, "bare", "raw"), bare, "/{texts}")
    yield Started("ours", serve(*FLAGS), bare)
    yield Started("ours, access log", serve(*LOGGED), bare)
    yield Started("ours, fixed logits", serve(*FLAGS, program=ALONE), bare)
    yield Started("ours, fixed logits, access log", serve(*LOGGED, program=ALONE), bare)


def _ours_and_other(plan: Plan, path: str) -> Iterator[Started]:
    serve = plan.subject.serve
    other = {"PYTHONPATH": path}
    for variables, before in ((other, "other tree: "), ({}, "")):
        computing = serve(*FLAGS, variables=variables)
        yield Started(f"{before}ours", computing, "other tree: ours")
        alone = serve(*FLAGS, variables=variables, program=ALONE)
        yield Started(f"{before}ours, fixed logits", alone, "other tree: ours, fixed logits")


def _rows(plan: Plan, started: Iterable[Started], beside: str) -> Iterator[Row]:
    for load, slices in measure(plan, started):
        named = {one.name: found for one, found in slices.items()}
        for one, found in slices.items():
            pairs = list(zip(found, named[one.beside], strict=True))
            yield {
                "server": one.name,
                "connections": load.connections,
                "texts a request": load.texts,
                **spread("CPU µs a request", map(_cpu_us, found)),
                **spread(f"÷ {beside}", (_cpu_us(a) / _cpu_us(b) for a, b in pairs)),
                "texts/s": load.texts * statistics.median(a.per_second for a in found),
                **spread(f"texts/s ÷ {beside}", (a.per_second / b.per_second for a, b in pairs)),
            }


def _cpu_us(one: Slice) -> float:
    """CPU time for each request, of the whole thread."""
    return float(one.cpu_us[-1])
