"""How the CPUs are shared and how large a batch may be, measured on the machine that serves.

More runners answer more texts a second, more threads a runner answer one text sooner, and by how
much depends on the model, the CPU and its neighbours. So the costs of a few batches are measured
before the service is ready, in bounded time, and kept in a file beside the bundle for the next
start. What is set by hand is taken as it is.
"""

import logging
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import onnxruntime
from pydantic import BaseModel, Field, PositiveFloat, PositiveInt

from app.cpu import cpu_name, ways_to_share
from app.model import CUDA, Encoding, Model
from app.settings import Settings

TEXT_TOKENS = 32  # of the texts that are measured; a tweet has 26
# Texts in a batch. On a CPU more never helped, a GPU needs more to be busy.
BATCHES, CUDA_BATCHES = (1, 2, 4, 8, 16), (1, 8, 32, 128, 512)
# Of the highest throughput: a larger batch may cost the rest.
GOOD_ENOUGH = 0.97
MEASURING_SECONDS = 2.0
LONE_RUNS = 5
LEAST_SECONDS = 0.01  # that a figure is measured for, if it takes less
CACHE = "tuning.json"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a model is served with, and why."""

    runners: int
    threads: int
    max_batch_tokens: int
    reason: str

    def summary(self) -> str:
        """The plan in a line."""
        return (
            f"runners {self.runners} x threads {self.threads}, at most {self.max_batch_tokens} "
            f"tokens a batch, {self.reason}"
        )


@dataclass(frozen=True, slots=True)
class Cost:
    """One way to share the CPUs: by texts in a batch, seconds that a batch takes.

    ``seconds`` while all runners compute, ``alone`` for one text while the others rest.
    """

    runners: PositiveInt
    threads: PositiveInt
    seconds: Annotated[dict[PositiveInt, PositiveFloat], Field(min_length=1)]
    alone: PositiveFloat

    def texts_per_second(self, texts: int) -> float:
        """What all runners compute in batches of that many texts."""
        return self.runners * texts / self.seconds[texts]

    def latency(self, texts: int) -> float:
        """Seconds for a text that finds all runners busy: the rest of a batch, then its own."""
        return 2 * self.seconds[texts]


class _Kept(BaseModel):
    """The file beside the bundle; ``key`` is what the costs hold for."""

    key: str
    costs: list[Cost] = Field(min_length=1)


def tune(model: Model, settings: Settings, cpus: float) -> Plan:
    """The settings' runners, threads and budget; what they leave open is measured."""
    if model.provider == CUDA:
        ways = [(settings.runners or 2, settings.threads or 1)]  # one computes, one is prepared
    else:
        ways = ways_to_share(cpus, runners=settings.runners, threads=settings.threads)
    if len(ways) == 1 and settings.max_batch_tokens:
        return Plan(*ways[0], settings.max_batch_tokens, "as set")
    batches = CUDA_BATCHES if model.provider == CUDA else BATCHES
    key = f"{model.sha256} {onnxruntime.__version__} {cpu_name()} {cpus:g} {ways}"
    cache = model.path / CACHE
    costs = _cached(cache, key)
    measured = "earlier"
    if costs is None:
        started = time.perf_counter()
        costs = list(_measure(model, ways, batches))
        measured = f"in {time.perf_counter() - started:.1f} s"
        _keep(cache, key, costs)
    cost, texts = choose(costs, settings.target_latency_ms / 1000)
    tokens = settings.max_batch_tokens or texts * TEXT_TOKENS
    figures = "; ".join([_figures(cost, texts), *(_figures(c) for c in costs if c is not cost)])
    reason = f"measured {measured} on texts of {TEXT_TOKENS} tokens: {figures}"
    return Plan(cost.runners, cost.threads, tokens, reason)


def choose(costs: Sequence[Cost], target_s: float) -> tuple[Cost, int]:
    """The way to share the CPUs with the highest throughput, and the texts in a batch.

    Batches are as large as they may be without losing much: what waits has lengths of its own,
    and more of it fits together. With a target, only what keeps within it counts; if nothing does,
    the way that answers a lone text soonest.
    """
    options = [
        (cost, texts)
        for cost in costs
        for texts in cost.seconds
        if not target_s or cost.latency(texts) <= target_s
    ]
    if not options:
        return min(costs, key=lambda cost: cost.alone), 1
    best, best_texts = max(options, key=lambda option: option[0].texts_per_second(option[1]))
    enough = GOOD_ENOUGH * best.texts_per_second(best_texts)
    return best, max(
        n for cost, n in options if cost is best and cost.texts_per_second(n) >= enough
    )


def _figures(cost: Cost, texts: int | None = None) -> str:
    texts = texts or max(cost.seconds, key=cost.texts_per_second)
    return (
        f"{cost.runners} x {cost.threads} gives {cost.texts_per_second(texts):.0f} texts/s in "
        f"batches of {texts} and answers one alone in {cost.alone * 1000:.1f} ms"
    )


def _measure(
    model: Model, ways: Sequence[tuple[int, int]], batches: Sequence[int]
) -> Iterator[Cost]:
    """The costs of each way, in equal parts of the time."""
    ids = model.encode("measured " * TEXT_TOKENS).ids[:TEXT_TOKENS]
    text = Encoding(ids, len(ids))
    for runners, threads in ways:
        candidate = model.with_threads(threads)
        end = time.perf_counter() + MEASURING_SECONDS / len(ways)
        seconds = {1: _seconds(candidate, [text], runners)}
        for texts in batches[1:]:
            longest = max(seconds)
            expected = 2 * seconds[longest] * texts / longest  # one batch warms up, one counts
            if time.perf_counter() + expected > end:
                break
            seconds[texts] = _seconds(candidate, [text] * texts, runners)
        # The least, for it takes all CPUs at once, and any neighbour disturbs it.
        alone = min(_seconds(candidate, [text], runners=1) for _ in range(LONE_RUNS))
        yield Cost(runners, threads, seconds, alone)


def _seconds(model: Model, batch: Sequence[Encoding], runners: int) -> float:
    """What a batch takes while that many runners compute the like."""

    def compute(until: float) -> int:
        count = 0
        while not count or time.perf_counter() < until:
            model.infer(batch)
            count += 1
        return count

    with ThreadPoolExecutor(runners) as pool:
        list(pool.map(compute, [0.0] * runners))  # the first batch of a shape is slow
        started = time.perf_counter()
        done = sum(pool.map(compute, [started + LEAST_SECONDS] * runners))
        return runners * (time.perf_counter() - started) / done


def _cached(path: Path, key: str) -> list[Cost] | None:
    """The costs that an earlier start kept, if they are of the same model and machine."""
    try:
        kept = _Kept.model_validate_json(path.read_bytes())
    except (OSError, ValueError):
        return None  # not there, or damaged: it is measured again
    return kept.costs if kept.key == key else None


def _keep(path: Path, key: str, costs: list[Cost]) -> None:
    partial = path.with_name(f".{CACHE}.{os.getpid()}")
    try:
        partial.write_text(_Kept(key=key, costs=costs).model_dump_json(indent=1) + "\n", "utf-8")
        partial.replace(path)
    except OSError as error:  # a bundle may be read-only
        logger.info("what was measured is not kept: %s", error)
