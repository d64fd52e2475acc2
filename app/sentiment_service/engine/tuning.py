"""Choose how to share the CPUs and how large a batch may be, by measuring on the serving machine.

More runners answer more texts per second. More threads per runner answer a single text sooner. The
size of both effects depends on the model, the CPU and the other processes. So the service measures
the costs of a few batches before it is ready, in bounded time, and keeps them in a cache directory
for the next start. Values that the operator sets are used as they are.

The ways to share the CPUs are measured in turns, one batch at a time. The shortest time of several
rounds counts, because other processes can only add time. A batch on one thread is measured by the
CPU time of that thread, which excludes the time that the scheduler gave to others.
"""

import hashlib
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from threading import Barrier
from typing import Annotated

import onnxruntime
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, TypeAdapter

from sentiment_service.atomic_files import FileLock, write_text_atomically
from sentiment_service.engine.batching.fair_queue import MAX_PADDING, REQUEST_SHARE, TokenBudget
from sentiment_service.engine.host import available_memory, cpu_flags, cpu_name, ways_to_share
from sentiment_service.engine.model.device import CPU, CUDA
from sentiment_service.engine.model.model import Model
from sentiment_service.engine.model.sessions import device_error
from sentiment_service.engine.options import EngineConfig
from sentiment_service.engine.text.text_tokenizer import Encoding
from sentiment_service.errors import OutOfMemory

TEXT_TOKENS = 32  # per measured text; a tweet has 26
# The measured batch sizes, in texts. A few texts keep a CPU busy, and twice the largest size is
# tried under load. A GPU needs larger batches. The largest is half of the default queue.
BATCHES, CUDA_BATCHES = (1, 2, 4, 8), (1, 8, 32, 128, 512, 1024)
MEASURING_SECONDS = 2.0  # approximate total
LEAST_SECONDS = 0.005  # a batch is repeated this long, so that all runners compute at once
# The number of rounds, and how many are enough. A slow model gets fewer rounds than a fast one, but
# at least one. With too few rounds the spread is unknown, and is assumed to be large.
ROUNDS, ENOUGH_ROUNDS = 5, 3
UNKNOWN_SPREAD = 0.2

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one way to share the CPUs.

    ``seconds`` maps the number of texts in a batch to the seconds that the batch takes while all
    runners compute. ``alone`` is the seconds for one text while the other runners rest. ``spread``
    estimates the noise: how far the median of the rounds is above their minimum, as a share of it.
    """

    runners: PositiveInt
    threads: PositiveInt
    seconds: Annotated[dict[PositiveInt, PositiveFloat], Field(min_length=1)]
    alone: PositiveFloat
    spread: NonNegativeFloat = 0.0

    def texts_per_second(self, texts: int) -> float:
        """Texts per second that all runners together compute in batches of ``texts``."""
        return self.runners * texts / self.seconds[texts]

    def best_batch(self) -> int:
        return max(self.seconds, key=self.texts_per_second)

    def latency(self, texts: int) -> float:
        """Seconds for a text that finds all runners busy: one batch before it, then its own."""
        return 2 * self.seconds[texts]


Measure = Callable[[Model, Sequence[tuple[int, int]]], list[Cost]]


def measure(
    model: Model, ways: Sequence[tuple[int, int]], seconds: float = MEASURING_SECONDS
) -> list[Cost]:
    """Measure the cost of each way, (runners, threads), in the order of ``ways``.

    The last way is measured in turns with each of the others. So at most two sessions, each with
    its own weights, are open at once.
    """
    *others, last = ways
    share = seconds / max(1, len(others))
    reference = _Candidate(model, *last)
    if not others:
        _take_turns([reference], share)
    costs = []
    for way in others:
        candidate = _Candidate(model, *way)
        _take_turns([candidate, reference], share)
        costs.append(candidate.cost())
        del candidate  # and its session
    return [*costs, reference.cost()]


class _Candidate:
    """One way to share the CPUs, and the times measured for it so far."""

    def __init__(self, model: Model, runners: int, threads: int) -> None:
        self.batches = CUDA_BATCHES if model.provider == CUDA else BATCHES
        self.rounds: dict[int, list[float]] = defaultdict(list)  # by texts; 0: one text alone
        self._model = model.with_threads(threads)
        self._runners, self._threads = runners, threads
        alone = model.provider == CPU and threads == 1
        self._clock = time.thread_time if alone else time.perf_counter
        self._pool = ThreadPoolExecutor(runners)
        ids = model.tokenizer.encode("measured " * TEXT_TOKENS).ids
        self._text = Encoding.of(ids[:TEXT_TOKENS])

    def run(self, texts: int) -> float:
        """Seconds that a batch of ``texts`` takes while all runners compute such batches.

        0 means: one text, while the other runners rest.
        """
        batch = [self._text] * (texts or 1)
        runners = self._runners if texts else 1
        together = Barrier(runners)

        def compute(_: int) -> float:
            together.wait()
            started, until, count = self._clock(), time.perf_counter() + LEAST_SECONDS, 0
            while not count or time.perf_counter() < until:
                self._model.infer(batch)
                count += 1
            return (self._clock() - started) / count

        try:
            return mean(self._pool.map(compute, range(runners)))
        except BaseException:
            together.abort()  # the others must not wait for a thread that could not start
            raise

    def cost(self) -> Cost:
        least = {texts: min(figures) for texts, figures in self.rounds.items()}
        spread = max(median(self.rounds[texts]) / least[texts] - 1 for texts in least)
        if len(self.rounds[0]) < ENOUGH_ROUNDS:
            spread = max(spread, UNKNOWN_SPREAD)
        alone = least.pop(0)
        return Cost(self._runners, self._threads, least, alone, spread)


def _take_turns(candidates: Sequence[_Candidate], seconds: float) -> None:
    """Measure the candidates round by round, for about ``seconds``."""
    end = time.perf_counter() + seconds
    sizes = _affordable(candidates, seconds)
    for number in range(ROUNDS):
        if number and time.perf_counter() > end:
            return
        for texts in (0, *sizes):
            for candidate in candidates:
                candidate.rounds[texts].append(candidate.run(texts))


def _affordable(candidates: Sequence[_Candidate], seconds: float) -> list[int]:
    """The batch sizes that can be measured often enough in ``seconds``, and always the smallest.

    Each size is computed twice, and the second time counts: in the first, a GPU loads the kernels
    for that size. A size for which the memory does not suffice ends the list.
    """
    sizes: list[int] = []
    round_seconds = took = 0.0
    for texts in candidates[0].batches:
        expected = took * texts / sizes[-1] if sizes else 0.0
        if sizes and (1 + ENOUGH_ROUNDS) * (round_seconds + expected) > seconds:
            break
        try:
            for candidate in candidates:
                candidate.run(texts)
            started = time.perf_counter()
            for candidate in candidates:
                candidate.run(texts)
        except Exception as error:
            if not (sizes and isinstance(device_error(error), OutOfMemory)):
                raise
            logger.warning("batches of %d texts do not fit into the memory", texts)
            break
        took = time.perf_counter() - started
        round_seconds += took
        sizes.append(texts)
    return sizes


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


@dataclass(frozen=True, slots=True)
class ServingPlan:
    """The runners, threads, budget and queue that a model is served with, and the reason."""

    runners: int
    threads: int
    max_queue_tokens: int
    budget: TokenBudget
    reason: str

    def sharing(self) -> str:
        now, start = self.budget.tokens, self.budget.start
        lowered = f" (lowered from {start}, because the memory ran out)" if now < start else ""
        sharing = f"runners {self.runners} x threads {self.threads}"
        return f"{sharing}, at most {now} tokens a batch{lowered}"

    def summary(self) -> str:
        return f"{self.sharing()}, {self.reason}"


_COSTS = TypeAdapter(list[Cost])


def tune(
    model: Model, config: EngineConfig, cpus: float, measure: Measure = measure
) -> ServingPlan:
    """The plan with the config's runners, threads and budget. What is not set is measured."""
    if 0 < (most := int(config.max_queue_tokens * REQUEST_SHARE)) < model.max_tokens:
        logger.warning(
            "--max-queue-tokens: a request may have %d tokens, half of the queue, so longer texts "
            "are refused; %s takes texts of up to %d",
            *(most, model.name, model.max_tokens),
        )
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
    costs, measured = _costs(model, config, cpus, ways, measure)
    cost, texts = choose(costs, config.target_latency_ms / 1000)
    figures = "; ".join([_figures(cost, texts), *(_figures(c) for c in costs if c != cost)])
    reason = f"measured {measured} on texts of {TEXT_TOKENS} tokens: {figures}"
    budget = TokenBudget(config.max_batch_tokens or texts * TEXT_TOKENS, max_padding=padding)
    queue = config.max_queue_tokens or queue_tokens(
        cost, available_memory() // config.workers, config.gpu_workers
    )
    return ServingPlan(cost.runners, cost.threads, queue, budget, reason)


def _costs(
    model: Model,
    config: EngineConfig,
    cpus: float,
    ways: Sequence[tuple[int, int]],
    measure: Measure,
) -> tuple[list[Cost], str]:
    """What an earlier start kept, or what is measured now and kept; and when it was measured."""
    key = hashlib.sha256(_key(model, cpus, ways).encode()).hexdigest()[:16]
    file = config.cache_dir / f"tuning-{key}.json" if config.cache_dir else None
    with _one_at_a_time(file if model.provider == CUDA else None):
        with suppress(OSError, ValueError):  # it is damaged: measure again
            if file and file.is_file() and (kept := _COSTS.validate_json(file.read_bytes())):
                return kept, "earlier"
        started = time.perf_counter()
        costs = measure(model, ways)
        measured = f"in {time.perf_counter() - started:.1f} s"
        if file:
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                write_text_atomically(file, _COSTS.dump_json(costs, indent=1).decode() + "\n")
                logger.info("%s: measured %s, kept in %s", model.name, measured, file)
            except OSError as error:  # a home directory may be read-only
                logger.info("what was measured is not kept: %s", error)
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

    The last way, with one thread per runner, is chosen unless another is clearly better. The batch
    is the largest that loses little throughput: waiting texts differ in length, and a large batch
    can combine more of them. With a target latency, only batches that meet it count. If none does,
    the way that answers a single text soonest is chosen.
    """
    within = [
        [n for n in cost.seconds if not target_s or cost.latency(n) <= target_s] for cost in costs
    ]
    rates = [
        max(map(cost.texts_per_second, sizes), default=0.0)
        for cost, sizes in zip(costs, within, strict=True)
    ]
    if not any(rates):
        return min(costs, key=lambda cost: cost.alone), 1
    best, last = rates.index(max(rates)), len(costs) - 1
    doubt = max(CLEARLY, costs[best].spread + costs[last].spread)
    if rates[best] < (1 + doubt) * rates[last]:
        best = last
    cost, enough = costs[best], GOOD_ENOUGH * rates[best]
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
