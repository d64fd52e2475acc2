"""Measures what workers cost: CPU time for each request, beside a single process.

Inference takes no time, so what is measured is all that several processes do twice or in addition.
"""

import asyncio
import time
from collections.abc import Iterator
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


def worker_cost(subject: Subject, rounds: int, counts: tuple[int, ...]) -> Iterator[Row | Goal]:
    """Two workers and their supervisor ÷ a single process, by texts per request."""
    with (
        subject.serve(*FLAGS, program=ALONE) as single,
        subject.serve(*FLAGS, "--workers", "2", program=ALONE) as group,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        while len(group.info()["workers"]) < 2:
            time.sleep(0.1)
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


def _cpu_ns(service: Service) -> Times:
    """CPU times until now: of the first process, and of it and its workers."""
    children = Path(f"/proc/{service.pid}/task/{service.pid}/children").read_text().split()
    own, *others = [_process_ns(pid) for pid in (str(service.pid), *children)]
    return np.array([own, own + sum(others)])


def _process_ns(pid: str) -> int:
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads)
