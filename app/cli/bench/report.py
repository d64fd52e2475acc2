"""What ``sentiment bench`` prints: a line for each step, the table, and what follows from it."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from pydantic_core import to_json

from app.cli.bench.search import Step, best

BAR = 20
USED = 0.7  # the share of a replica's highest rate that is planned for
HEAD = """\
| requests/s | answered/s | p50 ms | p95 ms | p99 ms | CPU ms a text | |
| --- | --- | --- | --- | --- | --- | --- |"""


@dataclass(frozen=True)
class Conclusions:
    """What the best step says; ``client_limited``: the service may take more.

    ``replicas`` answer ``target_rps`` requests per second. ``scaling_threshold_ms`` is half of the
    predicted wait at the highest rate. What is not known is None.
    """

    p99_goal_ms: float
    target_rps: float | None
    texts_per_request: int
    requests_per_second: float
    p99_ms: float
    cpu_ms_a_text: float | None
    client_limited: bool
    replicas: int | None
    scaling_threshold_ms: int | None


def line(step: Step, goal_ms: float) -> str:
    """One step; the bar is full when the p99 is the goal."""
    p99 = math.inf if math.isnan(step.p99_ms) else step.p99_ms
    full = min(BAR, round(BAR * min(1.0, p99 / goal_ms)))
    return (
        f"{step.rate:>9,.1f}/s  p50 {step.p50_ms:>7.1f}  p99 {step.p99_ms:>7.1f} ms  "
        f"{'█' * full}{'░' * (BAR - full)}  {step.fault or 'ok'}"
    )


def table(steps: Sequence[Step]) -> str:
    """Every step in Markdown, by its rate."""
    lines = [HEAD]
    for step in sorted(steps, key=lambda step: step.rate):
        figures = (step.rate, step.answered, step.p50_ms, step.p95_ms, step.p99_ms)
        cells = [f"{figure:.1f}" for figure in figures]
        cells.append("" if step.cpu_ms is None else f"{step.cpu_ms:.2f}")
        verdict = f"**{step.fault or 'the best'}**" if step is best(steps) else step.fault
        lines.append(f"| {' | '.join(cells)} | {verdict} |")
    return "\n".join(lines)


def conclusions(
    steps: Sequence[Step], texts: int, goal_ms: float, target_rps: float | None
) -> Conclusions | None:
    """What follows from the steps with ``texts`` texts per request; None if none is good."""
    if (found := best(steps)) is None:
        return None
    higher = [step for step in steps if step.rate > found.rate]
    above = min(higher, key=lambda step: step.rate, default=found)  # which ended the search
    return Conclusions(
        p99_goal_ms=goal_ms,
        target_rps=target_rps,
        texts_per_request=texts,
        requests_per_second=found.rate,
        p99_ms=found.p99_ms,
        cpu_ms_a_text=found.cpu_ms,
        client_limited=above.client_late,
        replicas=replicas(target_rps, found.rate) if target_rps else None,
        scaling_threshold_ms=None if found.wait_ms is None else max(1, round(found.wait_ms / 2)),
    )


def sentences(found: Conclusions) -> str:
    """The conclusions for people."""
    rate, count = found.requests_per_second, texts(found.texts_per_request)
    least = "at least " if found.client_limited else ""
    a_second = f"{rate:,.1f} requests/s ({rate * found.texts_per_request:,.0f} texts/s)"
    said = f"{least}{a_second} of {count} within {found.p99_goal_ms:g} ms"
    if found.cpu_ms_a_text is not None:
        said += f", {found.cpu_ms_a_text:.2f} ms of CPU a text"
    lines = ["", said]
    if found.client_limited:
        lines.append("this client was the limit: run it on a machine of its own")
    if found.target_rps and found.replicas:
        lines.append(
            f"{found.target_rps:,g} requests/s need {found.replicas} replicas, each at "
            f"{found.target_rps / found.replicas / rate:.0%}, so that one may fail"
        )
    if ms := found.scaling_threshold_ms:
        lines.append(
            f"scale out at a predicted wait of {ms} ms: averageValue: {ms}m in hpa-queue, "
            f'threshold: "{ms / 1000}" in keda, autoscaling.queueWaitMs={ms} in the chart'
        )
    return "\n".join(lines)


def document(found: Conclusions, steps: Sequence[Step]) -> str:
    """All figures as JSON. What is not known is null."""
    figures = asdict(found) | {"steps": steps}
    return to_json(figures, indent=1, inf_nan_mode="null").decode() + "\n"


def texts(count: int) -> str:
    """The number of texts in words."""
    return f"{count} text{'s' * (count > 1)}"


def replicas(target_rps: float, rate: float) -> int:
    """Enough to use 70 % of each, and all requests are answered in time if one fails."""
    return max(math.ceil(target_rps / (USED * rate)), math.ceil(target_rps / rate) + 1)
