"""``sentiment bench``: the highest rate at which 99 of 100 requests are answered in time.

It sends load to a service, searches the rate, and says what that means for replicas and scaling.
"""

import json
import math
import os
import re
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from pydantic_core import to_json

from sentiment_service.atomic_files import write_text_atomically
from sentiment_service.cli.bench_service import Target, own_service
from sentiment_service.cli.load_generator import Generator, Load, Outcome, run, tweets
from sentiment_service.errors import UserError
from sentiment_service.files.formats import open_table
from sentiment_service.files.table import check_is_file
from sentiment_service.files.text_files import PLAIN, FileOptions

MADE_UP = 4_096  # texts, if no file has them
MOST_TEXTS = 20_000  # of a file; a load repeats them
BAR = 20  # characters
USED = 0.7  # the share of a replica's highest rate that is planned for
GROWTH = 2.0  # from one rate to the next, until one is too high
CLOSE = 1.05  # the search ends when the rate that is too high is so many times the best
FEWEST = 20  # requests in a step
LONE_S = 1.0  # for the requests that are sent one by one
SAMPLE_S = 0.25  # between two looks at the metrics
LEAST_MS = 10  # of the predicted wait at which to scale out: less is that of a batch or two
FULL_STEP_S = 10.0  # in which the queue has been looked at forty times
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


# The steps of each number of texts per request.
Curves = Mapping[int, Sequence[Step]]
HEAD = """\
| requests/s | answered/s |   p50 ms |   p95 ms |   p99 ms | CPU ms a text | |
| ---------: | ---------: | -------: | -------: | -------: | ------------: | --- |"""


def bench(options: Namespace, own: Mapping[str, Any]) -> None:
    """Measure the service at the URL, or one that is started with the settings ``own``."""
    texts = tweets(MADE_UP)
    if options.input:
        texts = texts_of_file(Path(options.input), options.column, FileOptions.of(options))
    curves: dict[int, list[Step]] = {}
    with ExitStack() as stack:
        if options.url:
            target = Target(options.url, _key())
        else:
            _say("starting the service")
            target = Target(stack.enter_context(own_service(own)).url)
        for count in options.texts_per_request:
            bodies = _bodies(texts, count)
            target.check(bodies[0])
            curves[count] = _steps(target, bodies, count, options)
            print(f"\n{conclusions(curves[count], count, options)}\n")
    if options.json:
        write_text_atomically(Path(options.json), document(curves, options))
    if not all(map(best, curves.values())):
        goal = f"{options.p99_ms:g} ms"
        raise UserError(f"no rate was answered within {goal}; give a longer --p99-ms")


def _key() -> str | None:
    key = os.environ.get("SENTIMENT_API_KEY")
    if key and not re.fullmatch("[!-~]+", key):
        raise UserError("SENTIMENT_API_KEY must be printable ASCII characters without spaces")
    return key


def _bodies(texts: Sequence[str], count: int) -> list[str]:
    """Requests of ``count`` texts each. A file may have fewer texts than a request."""
    lists = [
        [texts[(begin + number) % len(texts)] for number in range(count)]
        for begin in range(0, len(texts), count)
    ]
    return [json.dumps({"inputs": one[0] if count == 1 else one}) for one in lists]


def _steps(target: Target, bodies: Sequence[str], count: int, options: Namespace) -> list[Step]:
    """Every step of the search with ``count`` texts a request; each is printed at once."""
    goal_ms = options.p99_ms
    measurement = Measurement(target, bodies, count, goal_ms, options.seconds)
    _say(f"requests of {counted(count)}, 99 of 100 within {goal_ms:g} ms")
    start = measurement.start()
    print(HEAD, flush=True)

    def measure(rate: float) -> Step:
        step = measurement.step(rate)
        print(row(step, goal_ms), flush=True)
        return step

    return search(measure, start, FEWEST / options.seconds)


def _say(line: str) -> None:
    print(f"sentiment: {line}", file=sys.stderr, flush=True)


def texts_of_file(path: Path, column: str, file_options: FileOptions = PLAIN) -> list[str]:
    """The first texts of a file that are not empty."""
    check_is_file(path)
    found = (
        text for chunk in open_table(path, column, file_options).chunks() for text in chunk.texts
    )
    given = (text for text in found if isinstance(text, str) and text.strip())
    if not (texts := list(islice(given, MOST_TEXTS))):
        raise UserError(f"{path} has no text to send")
    return texts


def row(step: Step, goal_ms: float) -> str:
    """A step as a row of the table, which is Markdown. The bar is full when the p99 is the goal."""
    p99 = math.inf if math.isnan(step.p99_ms) else step.p99_ms
    full = round(BAR * min(1.0, p99 / goal_ms))
    cpu = "" if step.cpu_ms is None else f"{step.cpu_ms:.2f}"
    return (
        f"| {step.rate:10.1f} | {step.answered:10.1f} | {step.p50_ms:8.1f} | {step.p95_ms:8.1f} "
        f"| {step.p99_ms:8.1f} | {cpu:>13} | {'█' * full}{'░' * (BAR - full)} "
        f"{step.fault or 'ok'} |"
    )


def conclusions(steps: Sequence[Step], count: int, options: Namespace) -> str:
    """What the best step says: the highest rate, replicas, and the threshold for autoscaling."""
    if (found := best(steps)) is None:
        return f"no rate of {counted(count)} a request was answered within {options.p99_ms:g} ms"
    target_rps = options.target_rps
    limited = _client_was_the_limit(steps, found)
    rate = f"{found.rate:,.1f} requests/s ({found.rate * count:,.0f} texts/s)"
    least = "at least " if limited else ""
    lines = [f"{least}{rate} of {counted(count)} within {options.p99_ms:g} ms"]
    if limited:
        lines.append("this client was the limit: run it on a machine of its own")
    if target_rps:
        enough = replicas(target_rps, found.rate)
        lines.append(
            f"{target_rps:,g} requests/s need {enough} replicas, each at "
            f"{target_rps / enough / found.rate:.0%}, so that one may fail"
        )
    if ms := _threshold_ms(found):
        lines.append(
            f"scale out at a predicted wait of {ms} ms: averageValue: {ms}m in hpa-queue, "
            f'threshold: "{ms / 1000}" in keda, autoscaling.queueWaitMs={ms} in the chart'
        )
        if found.wait_ms is not None and round(found.wait_ms / 2) < LEAST_MS:
            lines.append(
                f"that is the least: half of the {found.wait_ms:.1f} ms at this rate would add "
                "replicas for a single batch"
            )
        if options.seconds < FULL_STEP_S:
            lines.append(
                f"steps of {options.seconds:g} s are too short for a queue to show its usual "
                f"length: for a better threshold, use --seconds {FULL_STEP_S:g} or more"
            )
    return "\n".join(lines)


def document(curves: Curves, options: Namespace) -> str:
    """All figures as JSON: a result for each number of texts. What is not known is null."""
    results = [_result(steps, count, options.target_rps) for count, steps in curves.items()]
    found = {"p99_goal_ms": options.p99_ms, "results": results}
    return to_json(found, indent=1, inf_nan_mode="null").decode() + "\n"


def _result(steps: Sequence[Step], count: int, target_rps: float | None) -> dict[str, Any]:
    found = best(steps)
    return {
        "texts_per_request": count,
        "requests_per_second": found and found.rate,
        "client_was_the_limit": found and _client_was_the_limit(steps, found),
        "replicas": replicas(target_rps, found.rate) if found and target_rps else None,
        "scaling_threshold_ms": found and _threshold_ms(found),
        "steps": steps,
    }


def counted(count: int) -> str:
    return f"{count} text{'s' * (count > 1)}"


def replicas(target_rps: float, rate: float) -> int:
    """Enough to use 70 % of each, and all requests are answered in time if one fails."""
    return max(math.ceil(target_rps / (USED * rate)), math.ceil(target_rps / rate) + 1)


def _client_was_the_limit(steps: Sequence[Step], found: Step) -> bool:
    """Whether the step that ended the search, the one above the best, says so of itself."""
    higher = [step for step in steps if step.rate > found.rate]
    return min(higher, key=lambda step: step.rate, default=found).client_late


def _threshold_ms(found: Step) -> int | None:
    """Half of the predicted wait at the highest rate, but not too little; None if not known."""
    return None if found.wait_ms is None else max(LEAST_MS, round(found.wait_ms / 2))


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
    return max((step for step in steps if not step.fault), key=lambda step: step.rate, default=None)


@dataclass
class Measurement:
    """Requests of ``texts`` texts each, to a service that shall answer within ``goal_ms``."""

    target: Target
    bodies: Sequence[str]
    texts: int
    goal_ms: float
    seconds: float
    generator: Callable[[Load], Generator] = Generator

    def start(self) -> float:
        """A rate at which the service is half busy, from requests that are sent one by one."""
        alone = run(self.target.load(self.bodies, LONE_S, None))
        if fault := _not_ok(alone):
            raise UserError(f"requests that are sent one by one fail: {fault}")
        lone_ms = alone.percentile_ms(50)
        if not lone_ms <= self.goal_ms:
            raise UserError(
                f"a request takes {lone_ms:.0f} ms (p50) without other load; give a longer --p99-ms"
            )
        return 500 / lone_ms

    def step(self, rate: float) -> Step:
        load = self.target.load(self.bodies, self.seconds, rate)
        before, waits = self.target.metrics(), []
        with self.generator(load) as generator:
            end = time.monotonic() + load.warm_up_seconds + load.seconds
            while before and time.monotonic() < end:
                time.sleep(SAMPLE_S)
                waits.append(self.target.metrics()["queue_wait_seconds"])
            outcome = generator.outcome()
        after = self.target.metrics()
        late_ms = float(np.percentile(outcome.delays, 99)) * 1000
        p50, p95, p99 = map(outcome.percentile_ms, (50, 95, 99))
        fault = _not_ok(outcome) or ("" if p99 <= self.goal_ms else "too slow")
        # Latencies begin when requests were due, so the client's part is in them. Without it, was
        # the service too slow? The p99 is NaN if nothing was 200.
        late = (
            bool(fault)
            and late_ms > max(LATE_MS, self.goal_ms * LATE_SHARE)
            and p99 - late_ms <= self.goal_ms
        )
        if late:
            fault = f"this client was late to send by {late_ms:.0f} ms"
        texts = after["texts_total"] - before["texts_total"]
        cpu_s = after["process_cpu_seconds_total"] - before["process_cpu_seconds_total"]
        # Metrics that count other texts, too, are those of one of several replicas.
        sent = self.texts * rate * (load.warm_up_seconds + load.seconds)
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
