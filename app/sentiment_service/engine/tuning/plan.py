"""Choose how to share the CPUs and how large a batch may be, by measuring on the serving machine.

More runners answer more texts per second. More threads per runner answer a single text sooner. The
size of both effects depends on the model, the CPU and the other processes. So the service measures
the costs of a few batches before it is ready, in bounded time, and keeps them in a cache directory
for the next start. Values that the operator sets are used as they are.
"""

import hashlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import onnxruntime
from pydantic import TypeAdapter

from sentiment_service.atomic_files import FileLock, write_text_atomically
from sentiment_service.engine.batching.budget import MAX_PADDING, TokenBudget
from sentiment_service.engine.config import EngineConfig
from sentiment_service.engine.machine.gpu import CUDA
from sentiment_service.engine.machine.host import (
    available_memory,
    cpu_flags,
    cpu_name,
    ways_to_share,
)
from sentiment_service.engine.model.model import Model
from sentiment_service.engine.tuning.costs import BATCHES, CUDA_BATCHES, TEXT_TOKENS, Cost, measure

# A larger batch is worth it if it keeps at least this share of the highest throughput.
GOOD_ENOUGH = 0.97
# With one thread per runner there is nothing to synchronise. So this way is chosen, unless another
# way is faster by this share and by more than the spread of both.
CLEARLY = 0.05
# One computes, while the next batch is prepared and copied by the other.
RUNNERS_PER_GPU = 2

# The share of a batch that may be padding on a GPU. It needs far larger batches than a CPU, and
# seldom do as many texts of nearly equal length wait.
CUDA_MAX_PADDING = 0.25

# How much may wait in the queue by default. A second's work keeps the runners busy while clients
# send their next requests, and is short beside the time that a request may take.
QUEUE_SECONDS = 1.0
LEAST_QUEUE_TOKENS = 65_536
QUEUE_MEMORY_SHARE = 1 / 32
# Of a text of four tokens, which takes more for each of its tokens than longer texts.
BYTES_PER_QUEUED_TOKEN = 300

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServingPlan:
    """The runners, threads, budget and queue that a model is served with, and the reason."""

    runners: int
    threads: int
    max_queue_tokens: int
    budget: TokenBudget
    reason: str

    def sharing(self) -> str:
        """How the CPUs are shared, and the budget."""
        now, start = self.budget.tokens, self.budget.start
        lowered = f" (lowered from {start}, because the memory ran out)" if now < start else ""
        sharing = f"runners {self.runners} x threads {self.threads}"
        return f"{sharing}, at most {now} tokens a batch{lowered}"

    def summary(self) -> str:
        """The plan with its reason, in one line."""
        return f"{self.sharing()}, {self.reason}"


_COSTS = TypeAdapter(list[Cost])


def tune(model: Model, config: EngineConfig, cpus: float) -> ServingPlan:
    """The plan with the config's runners, threads and budget. What is not set is measured."""
    if model.provider == CUDA:
        runners = config.runners or RUNNERS_PER_GPU * model.device.copies
        ways = [(runners, config.threads or 1)]
        padding: float | None = None if model.flat else CUDA_MAX_PADDING
    else:
        ways = ways_to_share(cpus, runners=config.runners, threads=config.threads)
        padding = MAX_PADDING
    # A GPU needs a longer queue than the least, and only a measurement says how long.
    queue = config.max_queue_tokens or (0 if model.provider == CUDA else LEAST_QUEUE_TOKENS)
    if len(ways) == 1 and config.max_batch_tokens and queue:
        budget = TokenBudget(config.max_batch_tokens, max_padding=padding)
        return ServingPlan(*ways[0], queue, budget, "as set")
    costs, measured = _costs(model, config, cpus, ways)
    cost, texts = choose(costs, config.target_latency_ms / 1000)
    figures = "; ".join([_figures(cost, texts), *(_figures(c) for c in costs if c != cost)])
    reason = f"measured {measured} on texts of {TEXT_TOKENS} tokens: {figures}"
    budget = TokenBudget(config.max_batch_tokens or texts * TEXT_TOKENS, max_padding=padding)
    queue = config.max_queue_tokens or queue_tokens(
        cost, available_memory() // config.workers, config.gpu_workers
    )
    return ServingPlan(cost.runners, cost.threads, queue, budget, reason)


def _costs(
    model: Model, config: EngineConfig, cpus: float, ways: Sequence[tuple[int, int]]
) -> tuple[list[Cost], str]:
    """What an earlier start kept, or what is measured now and kept; and when it was measured."""
    key = _key(model, cpus, ways)
    file = _file(config, key)
    with _one_at_a_time(file) if model.provider == CUDA else nullcontext():
        if costs := _read(file):
            return costs, "earlier"
        started = perf_counter()
        costs = measure(model, ways)
        measured = f"in {perf_counter() - started:.1f} s"
        if _write(file, costs):
            logger.info("%s: measured %s, kept in %s", model.name, measured, file)
    return costs, measured


def queue_tokens(cost: Cost, memory_bytes: int, workers: int = 1) -> int:
    """The tokens that may wait: those of ``QUEUE_SECONDS``, within a share of the memory.

    Of the measured speed, this process gets the share of one of the ``workers`` on its GPU.
    """
    a_second = cost.texts_per_second(cost.best_batch()) * TEXT_TOKENS / workers
    most = memory_bytes * QUEUE_MEMORY_SHARE / BYTES_PER_QUEUED_TOKEN
    return max(LEAST_QUEUE_TOKENS, int(min(QUEUE_SECONDS * a_second, most)))


def choose(costs: Sequence[Cost], target_s: float) -> tuple[Cost, int]:
    """Choose the way to share the CPUs with the highest throughput, and the texts in a batch.

    The last way has one thread per runner. It is chosen unless another way is clearly better. The
    batch is the largest that loses little throughput: waiting texts differ in length, and a large
    batch can combine more of them. With a target latency, only batches that meet it count. If none
    does, the way that answers a single text soonest is chosen.
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
    """Everything that the costs depend on, as one string. If it differs, measure again."""
    flags = hashlib.sha256(" ".join(sorted(cpu_flags())).encode()).hexdigest()[:16]
    key = (
        f"{model.sha256} {model.provider} {onnxruntime.__version__} "
        f"{cpu_name()} {flags} {cpus:g} {ways} {TEXT_TOKENS} {BATCHES}"
    )
    if model.provider == CUDA:
        key += f" {model.device.hardware()} {model.provider_options} {CUDA_BATCHES}"
    return key


def _file(config: EngineConfig, key: str) -> Path | None:
    """The cache file for the costs; None if the system has no place for caches."""
    name = f"tuning-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    return config.cache_dir / name if config.cache_dir else None


@contextmanager
def _one_at_a_time(file: Path | None) -> Iterator[None]:
    """Let one process measure for this file; the others wait, and then read it.

    Two that measure at the same time on one GPU would each find half of its speed.
    """
    with ExitStack() as stack:
        if file is not None:
            with suppress(OSError):  # no process keeps anything there
                file.parent.mkdir(parents=True, exist_ok=True)
                lock = FileLock(file.with_suffix(".lock"), wait=True)
                stack.callback(lock.close)
        yield


def _read(file: Path | None) -> list[Cost]:
    """What an earlier start saved for the same model and machine; nothing if none did."""
    try:
        return _COSTS.validate_json(file.read_bytes()) if file and file.is_file() else []
    except (OSError, ValueError):
        return []  # the file is damaged: measure again


def _write(file: Path | None, costs: list[Cost]) -> bool:
    """Save it, if there is a place for it; whether it was saved."""
    if file is None:
        return False
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(file, _COSTS.dump_json(costs, indent=1).decode() + "\n")
    except OSError as error:  # a home directory may be read-only
        logger.info("what was measured is not kept: %s", error)
        return False
    return True
