"""Measures what workers cost: CPU time for each request, beside a single process.

Inference takes no time, so what is measured is all that several processes do twice or in addition.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.cpu_time.turns import ALONE, FLAGS, Load, Plan, Started, measure, spread
from benchmarks.service import Server, Service
from benchmarks.subject import Goal, Subject
from benchmarks.tables import Row

SECONDS = 1.0  # of load for each service in a round


def worker_cost(subject: Subject, rounds: int, counts: Sequence[int]) -> Iterator[Row | Goal]:
    """Two workers and their supervisor ÷ a single process, by texts per request."""
    loads = [Load(subject.connections, count) for count in counts]
    started = (Started(str(n), _serving(subject, n), _cpu_ns) for n in (1, 2))
    for load, slices in measure(Plan(subject, rounds, loads, SECONDS), started):
        # [rounds, 2]: of the first process, and of all.
        base, own = (np.array([one.cpu_us for one in found]) for found in slices.values())
        single, group = (np.array([one.per_second for one in f]) for f in slices.values())
        ratios = own[:, 1] / base[:, 1]
        yield {
            "model": f"{subject.name}, fixed logits",
            "connections": load.connections,
            "texts a request": load.texts,
            **spread("single process, CPU µs a request", base[:, 1]),
            **spread("2 workers and supervisor", own[:, 1]),
            **spread("of this, supervisor", own[:, 0]),
            **spread("÷ single process", ratios),
            **spread("requests/s ÷ single process", group / single),
        }
        name = f"{load.texts} a request, fixed logits: CPU of 2 workers ÷ single process"
        yield Goal.of_rounds(name, [*ratios], 1.05, most=True)


def _serving(subject: Subject, workers: int) -> Service:
    """The service when all its workers serve."""
    flags = (*FLAGS, "--runners", "1", "--workers", str(workers))
    group = subject.serve(*flags, program=ALONE)
    while workers > 1 and len(group.info()["workers"]) < workers:
        time.sleep(0.1)
    return group


def _cpu_ns(server: Server) -> Sequence[int]:
    """CPU times until now: of the first process, and of it and its workers."""
    own, *others = map(_process_ns, server.processes())
    return own, own + sum(others)


def _process_ns(pid: int) -> int:
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads)
