"""Measures what workers cost: CPU time for each request, beside a single process.

Inference takes no time, so what is measured is all that several processes do twice or in addition.
"""

import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.cpu_time.turns import ALONE, FLAGS, Load, Plan, Started, measure, spread
from benchmarks.service import Server, Service
from benchmarks.subject import Goal, Subject
from benchmarks.tables import Row

SECONDS = 1.0  # of load for each service in a round
DEALT = 1500  # connections dealt in a round
TOGETHER = 50  # of them at once, if not one by one
PROBE = b"GET /health/live HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n"


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


def dealing_cost(
    subject: Subject, rounds: int, most: Mapping[int, float | None]
) -> Iterator[Row | Goal]:
    """CPU time of the supervisor for each connection that it deals.

    ``most`` gives the µs that are the goal by the number of workers.
    """
    for workers, goal in most.items():
        with _serving(subject, workers) as group:
            _connect(group.port, TOGETHER)
            one_by_one = [_dealing_us(group, 1) for _ in range(rounds)]
            together = [_dealing_us(group, TOGETHER) for _ in range(rounds)]
        yield {
            "model": f"{subject.name}, fixed logits",
            "workers": workers,
            **spread("one by one, CPU µs a connection", one_by_one),
            **spread(f"{TOGETHER} at once", together),
        }
        if goal is not None:
            name = f"dealing connections to {workers} workers one by one, CPU µs each"
            yield Goal.of_rounds(name, one_by_one, goal, most=True)


def _serving(subject: Subject, workers: int) -> Service:
    """The service when all its workers serve."""
    flags = (*FLAGS, "--runners", "1", "--workers", str(workers))
    group = subject.serve(*flags, program=ALONE)
    while workers > 1 and len(group.info()["workers"]) < workers:
        time.sleep(0.1)
    return group


def _dealing_us(service: Service, together: int) -> float:
    started = _cpu_ns(service)[0]
    for _ in range(DEALT // together):
        _connect(service.port, together)
    return (_cpu_ns(service)[0] - started) / DEALT / 1000


def _connect(port: int, count: int) -> None:
    """Open connections, send each a request, and read the answers until the service closes them."""
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    for connection in connections:
        connection.sendall(PROBE)
    for connection in connections:
        with connection:
            while connection.recv(65536):
                pass


def _cpu_ns(server: Server) -> Sequence[int]:
    """CPU times until now: of the first process, and of it and its workers."""
    own, *others = map(_process_ns, server.processes())
    return own, own + sum(others)


def _process_ns(pid: int) -> int:
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads)
