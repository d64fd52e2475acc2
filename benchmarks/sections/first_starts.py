"""Measures how good the tuned plans are if another process keeps a CPU busy at the first start."""

import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from sentiment_service.engine.host import available_cpus, ways_to_share
from sentiment_service.engine.tuning import BATCHES, TEXT_TOKENS

from benchmarks.service import Service
from benchmarks.subject import Goal, Subject
from benchmarks.tables import Row

STARTS = 20
WITHIN = 0.90
PLAN = re.compile(r"runners (\d+) x threads (\d+), at most (\d+) tokens a batch, measured in")

Way = tuple[int, int, int]  # runners, threads, tokens a batch


def first_starts(subject: Subject, rounds: int, *, least: int) -> Iterator[Row | Goal]:
    """Start with an empty cache and one core kept busy; then measure every plan without that."""
    chosen: list[Way] = []
    seconds = []
    with busy_neighbour():
        for _ in range(STARTS):
            plan, took = _first_start(subject)
            chosen.append(plan)
            seconds.append(took)
    quiet = [_first_start(subject) for _ in range(rounds)]
    ways = ways_to_share(available_cpus(), runners=0, threads=0)
    sizes = (*BATCHES, 2 * max(BATCHES))
    grid = [(*way, texts * TEXT_TOKENS) for way in ways for texts in sizes]
    rates: dict[Way, list[float]] = {way: [] for way in dict.fromkeys([*grid, *chosen])}
    for _ in range(rounds):
        for way in rates:
            rates[way].append(subject.ideal.rate(*way))
    best = [max(figures) for figures in zip(*rates.values(), strict=True)]
    parts = {
        way: statistics.median(a / b for a, b in zip(figures, best, strict=True))
        for way, figures in rates.items()
    }
    for way in rates:
        yield {
            "model": subject.name,
            "plan": f"{way[0]} x {way[1]}, {way[2]} tokens",
            "÷ best": parts[way],
            "starts beside a neighbour": chosen.count(way),
            "quiet starts": sum(plan == way for plan, _ in quiet),
        }
    yield {
        "model": subject.name,
        "s to serve, beside a neighbour": statistics.median(seconds),
        "s to serve, quiet": statistics.median(took for _, took in quiet),
    }
    good = sum(parts[way] >= WITHIN for way in chosen)
    name = f"{subject.name}, first starts of {STARTS} beside a busy neighbour: plan within 10 %"
    worst = min(parts[way] for way in chosen)
    yield Goal(name, good, least, remark=f"worst {worst:.2f} of the best plan")


@contextmanager
def busy_neighbour() -> Iterator[None]:
    """Another process that keeps the first CPU busy."""
    code = f"import os; os.sched_setaffinity(0, [{min(os.sched_getaffinity(0))}])\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _first_start(subject: Subject) -> tuple[Way, float]:
    with tempfile.TemporaryDirectory() as cache, subject.serve("--cache-dir", cache) as service:
        return _plan(service), service.start_seconds


def _plan(service: Service) -> Way:
    found = PLAN.search(service.log)
    assert found, service.log
    return int(found[1]), int(found[2]), int(found[3])
