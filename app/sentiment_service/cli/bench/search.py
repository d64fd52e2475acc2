"""Searches the highest rate of requests at which 99 of 100 are answered in time."""

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from sentiment_service.cli.bench.load import Generator, Outcome, run
from sentiment_service.cli.bench.service import Target
from sentiment_service.errors import UserError

GROWTH = 2.0  # from one rate to the next, until one is too high
CLOSE = 1.05  # the search ends when the rate that is too high is so many times the best
FEWEST = 20  # requests in a step
LONE_S = 1.0  # for the requests that are sent one by one
SAMPLE_S = 0.25  # between two looks at the metrics
# If this client was later than this share of the goal, a step may have failed because of it.
LATE_SHARE, LATE_MS = 0.2, 3.0


@dataclass(frozen=True)
class Step:
    """What came of one rate, in requests per second; ``fault`` says why it is too high.

    ``client_late``: this client could not send so fast. ``cpu_ms`` (of a text) and ``wait_ms`` (the
    mean of the predicted wait in the queue) are the service's own figures; None if unknown.
    """

    rate: float
    answered: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    cpu_ms: float | None = None
    wait_ms: float | None = None
    fault: str = ""
    client_late: bool = False


def search(measure: Callable[[float], Step], start: float, least: float) -> list[Step]:
    """All steps of the search. The best is the highest rate without a fault; there may be none.

    The rate is doubled or halved, not below ``least``, until one is good and one too high. Then the
    middle of the two is tried. A rate is too high when it was so twice, because one hiccup of the
    machine says nothing of the service.
    """
    steps: list[Step] = []
    good, bad, rate = 0.0, math.inf, max(start, least)
    while bad > good * CLOSE and rate >= least:
        for _ in range(2):
            steps.append(measure(rate))
            if not steps[-1].fault:
                break
        if steps[-1].fault:
            bad = rate
        else:
            good = rate
        if good and bad < math.inf:
            rate = math.sqrt(good * bad)
        else:
            rate *= GROWTH if good else 1 / GROWTH
    return steps


def best(steps: Sequence[Step]) -> Step | None:
    """The step with the highest good rate."""
    return max((step for step in steps if not step.fault), key=lambda step: step.rate, default=None)


class Measurement:
    """Requests of ``texts`` texts each, to a service that shall answer within ``goal_ms``."""

    def __init__(
        self, target: Target, bodies: Sequence[str], texts: int, goal_ms: float, seconds: float
    ) -> None:
        self._target, self._bodies, self._texts = target, bodies, texts
        self._goal_ms, self._seconds = goal_ms, seconds
        self._late_ms = max(LATE_MS, goal_ms * LATE_SHARE)

    def start(self) -> float:
        """A rate at which the service is half busy, from requests that are sent one by one.

        Raises:
            UserError: even these are not answered in time.
        """
        alone = run(self._target.load(self._bodies, LONE_S, None))
        if fault := _not_ok(alone):
            raise UserError(f"requests that are sent one by one fail: {fault}")
        lone_ms = alone.percentile_ms(50)
        if not lone_ms <= self._goal_ms:
            raise UserError(
                f"a request takes {lone_ms:.0f} ms (p50) without other load; give a longer --p99-ms"
            )
        return 500 / lone_ms

    def step(self, rate: float) -> Step:
        """Send requests at this rate and see what comes of it."""
        load = self._target.load(self._bodies, self._seconds, rate)
        before, waits = self._target.metrics(), []
        with Generator(load) as generator:
            end = time.monotonic() + load.warm_up_seconds + load.seconds
            while before and time.monotonic() < end:
                time.sleep(SAMPLE_S)
                waits.append(self._target.metrics()["queue_wait_seconds"])
            outcome = generator.outcome()
        after = self._target.metrics()
        late_ms = float(np.percentile(outcome.delays, 99)) * 1000
        p50, p95, p99 = map(outcome.percentile_ms, (50, 95, 99))
        fault = _not_ok(outcome) or ("" if p99 <= self._goal_ms else "too slow")
        # Latencies begin when requests were due, so the client's part is in them. Without it, was
        # the service too slow? The p99 is NaN if nothing was 200.
        late = bool(fault) and late_ms > self._late_ms and p99 - late_ms <= self._goal_ms
        if late:
            fault = f"this client was late to send by {late_ms:.0f} ms"
        texts = after["texts_total"] - before["texts_total"]
        cpu_s = after["process_cpu_seconds_total"] - before["process_cpu_seconds_total"]
        # Metrics that count other texts, too, are those of one of several replicas.
        sent = self._texts * rate * (load.warm_up_seconds + load.seconds)
        return Step(
            rate,
            outcome.ok_per_second(),
            *(p50, p95, p99),
            cpu_s / texts * 1000 if texts and 0.8 < texts / sent < 1.25 else None,
            fmean(waits) * 1000 if waits else None,
            fault,
            late,
        )


def _not_ok(outcome: Outcome) -> str:
    """How many answers were not 200, by status; empty if all were."""
    counts = Counter({status: len(found) for status, found in outcome.latencies.items()})
    total = counts.total()
    del counts["200"]
    found = ", ".join(f"{count:,} of {total:,} {status}" for status, count in counts.most_common())
    return found or ("" if total else "no answer")
