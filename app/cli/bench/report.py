"""What ``sentiment bench`` prints: a line for each step, the table, and what follows from it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from app.cli.bench.search import Step, best

BAR = 20
USED = 0.7  # the share of a replica's highest rate that is planned for
# The steps of each number of texts per request.
Curves = Mapping[int, Sequence[Step]]

HEAD = """\
| texts a request | requests/s | answered/s | p50 ms | p95 ms | p99 ms | CPU ms a text | |
| --- | --- | --- | --- | --- | --- | --- | --- |"""
# As in deploy/: components hpa-queue and keda, and the chart's values.
SNIPPET = """\
# Scale out at a predicted wait of {ms} ms, half of the wait at the highest rate.
# HPA with prometheus-adapter (deploy/kubernetes/components/hpa-queue):
    - type: Pods
      pods:
        metric:
          name: sentiment_queue_wait_seconds
        target:
          type: AverageValue
          averageValue: {ms}m
# KEDA (deploy/kubernetes/components/keda):
        query: sum(avg_over_time(sentiment_queue_wait_seconds{{job="sentiment"}}[30s]))
        threshold: "{seconds}"
# Helm (deploy/helm/sentiment): --set autoscaling.queueWaitMs={ms}"""


def line(step: Step, goal_ms: float) -> str:
    """One step; the bar is full when the p99 is the goal."""
    p99 = math.inf if math.isnan(step.p99_ms) else step.p99_ms
    full = min(BAR, round(BAR * min(1.0, p99 / goal_ms)))
    return (
        f"{step.rate:>9,.1f}/s  p50 {step.p50_ms:>7.1f}  p99 {step.p99_ms:>7.1f} ms  "
        f"{'█' * full}{'░' * (BAR - full)}  {step.fault or 'ok'}"
    )


def table(curves: Curves) -> str:
    """Every step in Markdown, by its rate."""
    lines = [HEAD]
    for count, steps in curves.items():
        for step in sorted(steps, key=lambda step: step.rate):
            figures = (step.rate, step.answered, step.p50_ms, step.p95_ms, step.p99_ms)
            cells = [str(count), *(f"{figure:.1f}" for figure in figures)]
            cells.append("" if step.cpu_ms is None else f"{step.cpu_ms:.2f}")
            verdict = f"**{step.fault or 'the best'}**" if step is best(steps) else step.fault
            lines.append(f"| {' | '.join(cells)} | {verdict} |")
    return "\n".join(lines)


def conclusions(curves: Curves, goal_ms: float, target_rps: float | None) -> str:
    """The highest rates, the replicas for ``target_rps``, and the threshold for autoscaling."""
    lines = [""]
    for count, found in _found(curves, target_rps).items():
        texts = found["texts_per_second"]
        lines.append(
            f"{count} text{'s' * (count > 1)} a request: "
            f"{'at least ' * found['client_limited']}{found['requests_per_second']:,.1f} requests/s"
            f" ({texts:,.0f} texts/s) within {goal_ms:g} ms, p99 {found['p99_ms']:.1f} ms"
            + (f", {found['cpu_ms']:.2f} ms of CPU a text" if found["cpu_ms"] is not None else "")
        )
        if found["client_limited"]:
            lines.append("  this client was the limit: run it on a machine of its own")
        if target_rps:
            lines.append(
                f"  {target_rps:,g} requests/s need {found['replicas']} replicas, each at "
                f"{target_rps / found['replicas'] / found['requests_per_second']:.0%}, so that one "
                "may fail"
            )
    if threshold := _threshold_ms(curves):
        lines += ["", SNIPPET.format(ms=threshold, seconds=threshold / 1000)]
    return "\n".join(lines)


def document(curves: Curves, goal_ms: float, target_rps: float | None) -> dict[str, Any]:
    """All figures for JSON. What is not known is null."""
    return {
        "p99_goal_ms": goal_ms,
        "target_rps": target_rps,
        "scaling_threshold_ms": _threshold_ms(curves),
        "best": {str(count): found for count, found in _found(curves, target_rps).items()},
        "steps": {
            str(count): [
                {
                    name: None if isinstance(value, float) and math.isnan(value) else value
                    for name, value in asdict(step).items()
                }
                for step in steps
            ]
            for count, steps in curves.items()
        },
    }


def replicas(target_rps: float, rate: float) -> int:
    """Enough to use 70 % of each, and all requests are answered in time if one fails."""
    return max(math.ceil(target_rps / (USED * rate)), math.ceil(target_rps / rate) + 1)


def _found(curves: Curves, target_rps: float | None) -> dict[int, dict[str, Any]]:
    """What the best step of each curve says; nothing of a curve without one."""
    return {
        count: {
            "requests_per_second": step.rate,
            "texts_per_second": step.rate * count,
            "p99_ms": step.p99_ms,
            "cpu_ms": step.cpu_ms,
            "client_limited": _next(steps, step).client_late,
            "replicas": replicas(target_rps, step.rate) if target_rps else None,
        }
        for count, steps in curves.items()
        if (step := best(steps))
    }


def _next(steps: Sequence[Step], found: Step) -> Step:
    """The step that ended the search: the one above the best."""
    higher = [step for step in steps if step.rate > found.rate]
    return min(higher, key=lambda step: step.rate, default=found)


def _threshold_ms(curves: Curves) -> int | None:
    """Half of the predicted wait at the highest rate of the first curve; None if not known."""
    step = best(next(iter(curves.values())))
    return max(1, round(step.wait_ms / 2)) if step and step.wait_ms is not None else None
