"""What ``sentiment bench`` prints: a row for each step, and what follows from the best."""

import math
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import to_json

from sentiment_service.cli.bench.search import Step, best

BAR = 20  # characters
USED = 0.7  # the share of a replica's highest rate that is planned for
# The steps of each number of texts per request.
Curves = Mapping[int, Sequence[Step]]
HEAD = """\
| requests/s | answered/s |   p50 ms |   p95 ms |   p99 ms | CPU ms a text | |
| ---------: | ---------: | -------: | -------: | -------: | ------------: | --- |"""


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
        return f"no rate of {texts(count)} a request was answered within {options.p99_ms:g} ms"
    target_rps = options.target_rps
    limited = _client_was_the_limit(steps, found)
    rate = f"{found.rate:,.1f} requests/s ({found.rate * count:,.0f} texts/s)"
    least = "at least " if limited else ""
    lines = [f"{least}{rate} of {texts(count)} within {options.p99_ms:g} ms"]
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


def texts(count: int) -> str:
    """The number of texts in words."""
    return f"{count} text{'s' * (count > 1)}"


def replicas(target_rps: float, rate: float) -> int:
    """Enough to use 70 % of each, and all requests are answered in time if one fails."""
    return max(math.ceil(target_rps / (USED * rate)), math.ceil(target_rps / rate) + 1)


def _client_was_the_limit(steps: Sequence[Step], found: Step) -> bool:
    """Whether the step that ended the search, the one above the best, says so of itself."""
    higher = [step for step in steps if step.rate > found.rate]
    return min(higher, key=lambda step: step.rate, default=found).client_late


def _threshold_ms(found: Step) -> int | None:
    """Half of the predicted wait at the highest rate; None if not known."""
    return None if found.wait_ms is None else max(1, round(found.wait_ms / 2))
