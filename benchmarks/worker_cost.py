"""Measures what workers cost: CPU time for each request, beside a single process.

Inference takes no time, so what is measured is all that several processes do twice or in addition.
"""

import asyncio
import socket
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import uvloop

from benchmarks.event_loop.client import Times, send_slice
from benchmarks.event_loop.slices import SERVERS, spread
from benchmarks.service import Service
from benchmarks.subject import Goal, Subject
from benchmarks.tables import Row

FLAGS = ("--runners", "1", "--threads", "1", "--max-batch-tokens", "512")
ALONE = (*SERVERS, "alone")
SECONDS = 1.0  # of load for each server in a round
DEALT = 1500  # connections dealt in a round
TOGETHER = 50  # of them at once, if not one by one
PROBE = b"GET /health/live HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n"


def worker_cost(subject: Subject, rounds: int, counts: tuple[int, ...]) -> Iterator[Row | Goal]:
    """Two workers and their supervisor ÷ a single process, by texts per request."""
    with (
        subject.serve(*FLAGS, program=ALONE) as single,
        subject.serve(*FLAGS, "--workers", "2", program=ALONE) as group,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        _wait_for(group, 2)
        for count in counts:
            bodies = subject.bodies(count)
            found: dict[Service, list[Times]] = {single: [], group: []}
            for number in range(rounds):
                for service in [single, group][:: -1 if number % 2 else 1]:
                    sending = send_slice(
                        service.port,
                        "/classify",
                        bodies,
                        connections=subject.connections,
                        seconds=SECONDS,
                        cpu_ns=partial(_cpu_ns, service),
                    )
                    one = runner.run(sending)
                    found[service].append(np.array([*one.cpu_us, one.per_second]))
            base, own = np.array(found[single]), np.array(found[group])
            ratios = own[:, 1] / base[:, 1]
            yield {
                "model": f"{subject.name}, fixed logits",
                "connections": subject.connections,
                "texts a request": count,
                **spread("single process, CPU µs a request", base[:, 1]),
                **spread("2 workers and supervisor", own[:, 1]),
                **spread("of this, supervisor", own[:, 0]),
                **spread("÷ single process", ratios),
                **spread("requests/s ÷ single process", own[:, 2] / base[:, 2]),
            }
            name = f"{count} a request, fixed logits: CPU of 2 workers ÷ single process"
            yield Goal.of_rounds(name, [*ratios], 1.05, most=True)


def dealing_cost(
    subject: Subject, rounds: int, most: Mapping[int, float | None]
) -> Iterator[Row | Goal]:
    """CPU time of the supervisor for each connection that it deals.

    ``most`` gives the µs that are the goal by the number of workers.
    """
    for workers, goal in most.items():
        with subject.serve(*FLAGS, "--workers", str(workers), program=ALONE) as group:
            _wait_for(group, workers)
            _connect(group.port, TOGETHER)
            one_by_one = [_dealing_us(group, 1) for _ in range(rounds)]
            together = [_dealing_us(group, TOGETHER) for _ in range(rounds)]
        yield {
            "model": f"{subject.name}, fixed logits",
            "workers": workers,
            **spread("one by one, CPU µs a connection", np.array(one_by_one)),
            **spread(f"{TOGETHER} at once", np.array(together)),
        }
        if goal is not None:
            name = f"dealing connections to {workers} workers one by one, CPU µs each"
            yield Goal.of_rounds(name, one_by_one, goal, most=True)


def _dealing_us(service: Service, together: int) -> float:
    started = _cpu_ns(service)[0]
    for _ in range(DEALT // together):
        _connect(service.port, together)
    return float(_cpu_ns(service)[0] - started) / DEALT / 1000


def _connect(port: int, count: int) -> None:
    """Open connections, send each a request, and read the answers until the service closes them."""
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    for connection in connections:
        connection.sendall(PROBE)
    for connection in connections:
        with connection:
            while connection.recv(65536):
                pass


def _wait_for(group: Service, workers: int) -> None:
    while len(group.info()["workers"]) < workers:
        time.sleep(0.1)


def _cpu_ns(service: Service) -> Times:
    """CPU times until now: of the first process, and of it and its workers."""
    children = Path(f"/proc/{service.pid}/task/{service.pid}/children").read_text().split()
    own, *others = [_process_ns(pid) for pid in (str(service.pid), *children)]
    return np.array([own, own + sum(others)])


def _process_ns(pid: str) -> int:
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads)
