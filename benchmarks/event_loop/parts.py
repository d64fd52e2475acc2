"""Divides the CPU time of the service's event loop into parts, by timers inside the process."""

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.event_loop.seams import PARTS
from benchmarks.event_loop.slices import LOGGED, SERVERS, Plan, Started, measure, spread
from benchmarks.event_loop.timers import read
from benchmarks.tables import Row

KINDS = {"computing": "ours", "alone": "ours, fixed logits"}
REST = "event loop and sockets"


def by_part(plan: Plan) -> Iterator[Row]:
    """The parts of each request's CPU time, their sum, and the whole without timers, by load.

    The rest, which is in no part, is the event loop itself with its sockets.
    """
    with tempfile.TemporaryDirectory() as directory:
        for load, slices in measure(plan, _with_and_without_timers(plan, Path(directory))):
            found = {one.name: np.array([s.cpu_us for s in slices[one]]) for one in slices}
            for kind, name in KINDS.items():
                *parts, own, whole = found[f"{kind}, timed"].T
                rest = whole - own - np.sum(parts, axis=0)
                figures = dict(zip(PARTS, parts, strict=True))
                figures |= {REST: rest, "sum of the parts": whole - own}
                figures |= {"whole, without timers": found[kind].T[-1], "timers (not counted)": own}
                for part, microseconds in figures.items():
                    yield {
                        "server": f"{name}, access log",
                        "connections": load.connections,
                        "texts a request": load.texts,
                        "part": part,
                        **spread("CPU µs a request", microseconds),
                    }


def _with_and_without_timers(plan: Plan, directory: Path) -> Iterator[Started]:
    for kind in KINDS:
        file = directory / kind
        timed = plan.subject.serve(*LOGGED, program=(*SERVERS, "timed", str(file), kind))
        yield Started(f"{kind}, timed", timed, kind, parts=partial(read, file))
        yield Started(kind, plan.subject.serve(*LOGGED, program=(*SERVERS, kind)), kind)
