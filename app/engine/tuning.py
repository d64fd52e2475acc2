"""How the CPUs are shared and how large a batch may be, measured on the machine that serves.

More runners answer more texts a second, more threads a runner answer one text sooner, and by how
much depends on the model, the CPU and its neighbours. So the costs of a few batches are measured
before the service is ready, in bounded time, and kept in a cache directory for the next start.
Under load the budget is corrected by what live batches cost. What is set by hand is taken as it is.
"""

import hashlib
import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from uuid import uuid4

import onnxruntime
import platformdirs
from pydantic import BaseModel, Field, PositiveInt

from app.engine.batching.budget import TokenBudget
from app.engine.costs import BATCHES, TEXT_TOKENS, Cost, measure
from app.engine.machine.cpu import cpu_flags, cpu_name, ways_to_share
from app.engine.model import Model
from app.engine.session import CUDA
from app.settings import Settings

# Of the highest throughput: a larger batch may cost the rest.
GOOD_ENOUGH = 0.97
# One thread a runner has nothing to synchronise, so it is taken unless another way is faster by
# this share and by more than the spread of both.
CLEARLY = 0.05

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a model is served with, and why."""

    runners: int
    threads: int
    max_batch_tokens: int  # at the start
    budget: TokenBudget
    reason: str

    def summary(self) -> str:
        """The plan in a line."""
        now, before = self.budget.tokens, self.max_batch_tokens
        live = f" (live batches were better than with {before})" if now != before else ""
        return (
            f"runners {self.runners} x threads {self.threads}, at most {now} tokens a batch{live}, "
            f"{self.reason}"
        )


class _Kept(BaseModel):
    """The file in the cache directory; ``key`` is what the costs hold for.

    ``max_batch_tokens`` is what live batches have corrected the budget to.
    """

    key: str
    costs: list[Cost] = Field(min_length=1)
    max_batch_tokens: PositiveInt | None = None


def tune(model: Model, settings: Settings, cpus: float) -> Plan:
    """The settings' runners, threads and budget; what they leave open is measured."""
    if model.provider == CUDA:
        ways = [(settings.runners or 2, settings.threads or 1)]  # one computes, one is prepared
    else:
        ways = ways_to_share(cpus, runners=settings.runners, threads=settings.threads)
    if len(ways) == 1 and settings.max_batch_tokens:
        tokens = settings.max_batch_tokens
        return Plan(*ways[0], tokens, TokenBudget(tokens), "as set")
    key = _key(model, cpus, ways)
    file = _file(settings, key)
    kept = _read(file, key)
    measured = "earlier"
    if kept is None:
        started = perf_counter()
        kept = _Kept(key=key, costs=measure(model, ways))
        measured = f"in {perf_counter() - started:.1f} s"
        _write(file, kept)
    cost, texts = choose(kept.costs, settings.target_latency_ms / 1000)
    figures = "; ".join([_figures(cost, texts), *(_figures(c) for c in kept.costs if c != cost)])
    reason = f"measured {measured} on texts of {TEXT_TOKENS} tokens: {figures}"
    tokens = settings.max_batch_tokens or texts * TEXT_TOKENS
    budget = TokenBudget(tokens)
    if not (settings.max_batch_tokens or settings.target_latency_ms):
        # Twice what was measured only on a CPU: a GPU's memory may not hold it.
        largest = max(cost.seconds) if model.provider == CUDA else 2 * max(BATCHES)
        most = TEXT_TOKENS * largest
        budget = TokenBudget(
            min(kept.max_batch_tokens or tokens, most),
            fixed=False,
            least=TEXT_TOKENS,
            most=most,
            on_change=partial(_correct, file, kept),
        )
    return Plan(cost.runners, cost.threads, tokens, budget, reason)


def choose(costs: Sequence[Cost], target_s: float) -> tuple[Cost, int]:
    """The way to share the CPUs with the highest throughput, and the texts in a batch.

    The last way has one thread a runner, and is taken unless another is clearly better. Batches
    are as large as they may be without losing much: what waits has lengths of its own, and more
    of it fits together. With a target, only what keeps within it counts; if nothing does, the way
    that answers a lone text soonest.
    """
    within = {
        index: [n for n in cost.seconds if not target_s or cost.latency(n) <= target_s]
        for index, cost in enumerate(costs)
    }
    options = {
        index: max(map(costs[index].texts_per_second, sizes))
        for index, sizes in within.items()
        if sizes
    }
    if not options:
        return min(costs, key=lambda cost: cost.alone), 1
    best = max(options, key=options.__getitem__)
    last = len(costs) - 1
    doubt = max(CLEARLY, costs[best].spread + costs[last].spread)
    if last in options and options[best] < (1 + doubt) * options[last]:
        best = last
    cost, enough = costs[best], GOOD_ENOUGH * options[best]
    return cost, max(n for n in within[best] if cost.texts_per_second(n) >= enough)


def _figures(cost: Cost, texts: int | None = None) -> str:
    texts = texts or cost.best_batch()
    return (
        f"{cost.runners} x {cost.threads} gives {cost.texts_per_second(texts):.0f} texts/s in "
        f"batches of {texts} and answers one alone in {cost.alone * 1000:.1f} ms"
    )


def _key(model: Model, cpus: float, ways: Sequence[tuple[int, int]]) -> str:
    """What the costs depend on; anything else in it is measured again."""
    flags = hashlib.sha256(" ".join(sorted(cpu_flags())).encode()).hexdigest()[:16]
    return (
        f"{model.sha256} {model.provider} {model.kernels} {onnxruntime.__version__} "
        f"{cpu_name()} {flags} {cpus:g} {ways} {TEXT_TOKENS} {BATCHES}"
    )


def _file(settings: Settings, key: str) -> Path | None:
    """Where the costs are kept; None if the system has no place for caches."""
    if settings.cache_dir is not None:
        directory = settings.cache_dir
    else:
        directory = platformdirs.user_cache_path("sentiment-service", appauthor=False)
        if not directory.is_absolute():
            return None  # a user without a home directory
    return directory / f"tuning-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def _read(file: Path | None, key: str) -> _Kept | None:
    """What an earlier start kept for the same model and machine."""
    try:
        kept = _Kept.model_validate_json(file.read_bytes()) if file and file.is_file() else None
    except (OSError, ValueError):
        return None  # damaged: it is measured again
    return kept if kept and kept.key == key else None


def _write(file: Path | None, kept: _Kept) -> None:
    if file is None:
        return
    # Not by process id: containers that share the directory may have the same.
    written = file.with_name(f".{file.name}.{uuid4().hex}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(kept.model_dump_json(indent=1) + "\n", "utf-8")
        written.replace(file)
    except OSError as error:  # a home directory may be read-only
        logger.info("what was measured is not kept: %s", error)
        with suppress(OSError):
            written.unlink(missing_ok=True)


def _correct(file: Path | None, kept: _Kept, tokens: int) -> None:
    """Have the next start begin with the budget that live batches have found."""
    corrected = kept.model_copy(update={"max_batch_tokens": tokens})
    # A slow disk must not hold up the runner, which has results to deliver.
    threading.Thread(target=_write, args=(file, corrected), daemon=True).start()
