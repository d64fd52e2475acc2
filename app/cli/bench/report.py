"""What ``sentiment bench`` prints: a row for each step, and what follows from the best."""

import math
from argparse import Namespace
from collections.abc import Sequence

from pydantic_core import to_json

from app.cli.bench.search import Step

USED = 0.7  # the share of a replica's highest rate that is planned for
HEAD = """\
| requests/s | answered/s |   p50 ms |   p95 ms |   p99 ms | CPU ms a text | |
| ---------: | ---------: | -------: | -------: | -------: | ------------: | --- |"""


def row(step: Step) -> str:
    """A step as a row of the table, which is Markdown."""
    cpu = "" if step.cpu_ms is None else f"{step.cpu_ms:.2f}"
    return (
        f"| {step.rate:10.1f} | {step.answered:10.1f} | {step.p50_ms:8.1f} | {step.p95_ms:8.1f} "
        f"| {step.p99_ms:8.1f} | {cpu:>13} | {step.fault or 'ok'} |"
    )


def conclusions(steps: Sequence[Step], best: Step, options: Namespace) -> str:
    """What the best step says: the highest rate, replicas, and the threshold for autoscaling."""
    count, target_rps = options.texts_per_request, options.target_rps
    limited = _client_was_the_limit(steps, best)
    rate = f"{best.rate:,.1f} requests/s ({best.rate * count:,.0f} texts/s)"
    least = "at least " if limited else ""
    lines = [f"{least}{rate} of {texts(count)} within {options.p99_ms:g} ms"]
    if limited:
        lines.append("this client was the limit: run it on a machine of its own")
    if target_rps:
        enough = replicas(target_rps, best.rate)
        lines.append(
            f"{target_rps:,g} requests/s need {enough} replicas, each at "
            f"{target_rps / enough / best.rate:.0%}, so that one may fail"
        )
    if ms := _threshold_ms(best):
        lines.append(
            f"scale out at a predicted wait of {ms} ms: averageValue: {ms}m in hpa-queue, "
            f'threshold: "{ms / 1000}" in keda, autoscaling.queueWaitMs={ms} in the chart'
        )
    return "\n".join(lines)


def document(steps: Sequence[Step], best: Step, options: Namespace) -> str:
    """All figures as JSON. What is not known is null."""
    found = {
        "p99_goal_ms": options.p99_ms,
        "texts_per_request": options.texts_per_request,
        "requests_per_second": best.rate,
        "client_was_the_limit": _client_was_the_limit(steps, best),
        "replicas": replicas(options.target_rps, best.rate) if options.target_rps else None,
        "scaling_threshold_ms": _threshold_ms(best),
        "steps": steps,
    }
    return to_json(found, indent=1, inf_nan_mode="null").decode() + "\n"


def texts(count: int) -> str:
    """The number of texts in words."""
    return f"{count} text{'s' * (count > 1)}"


def replicas(target_rps: float, rate: float) -> int:
    """Enough to use 70 % of each, and all requests are answered in time if one fails."""
    return max(math.ceil(target_rps / (USED * rate)), math.ceil(target_rps / rate) + 1)


def _client_was_the_limit(steps: Sequence[Step], best: Step) -> bool:
    """Whether the step that ended the search, the one above the best, says so of itself."""
    higher = [step for step in steps if step.rate > best.rate]
    return min(higher, key=lambda step: step.rate, default=best).client_late


def _threshold_ms(best: Step) -> int | None:
    """Half of the predicted wait at the highest rate; None if not known."""
    return None if best.wait_ms is None else max(1, round(best.wait_ms / 2))
