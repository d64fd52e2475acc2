"""Measure what batches of a model cost on this machine, while other processes may be running.

The ways to share the CPUs are measured in turns, one batch at a time. The shortest time of several
rounds counts, because other processes can only add time. A batch on one thread is measured by the
CPU time of that thread, which excludes the time that the scheduler gave to others.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import mean, median
from threading import Barrier
from typing import Annotated

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from sentiment_service.engine.machine.gpu import CUDA
from sentiment_service.engine.model.device import CPU
from sentiment_service.engine.model.model import Model
from sentiment_service.engine.model.sessions import device_error
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
        """The number of texts in a batch that gives the most texts per second."""
        return max(self.seconds, key=self.texts_per_second)

    def latency(self, texts: int) -> float:
        """Seconds for a text that finds all runners busy: one batch before it, then its own."""
        return 2 * self.seconds[texts]


def measure(model: Model, ways: Sequence[tuple[int, int]]) -> list[Cost]:
    """Measure the cost of each way, (runners, threads), in the order of ``ways``.

    The last way is measured in turns with each of the others. So at most two sessions are open at
    once. This saves memory, because each session has its own weights.
    """
    *others, last = ways
    share = MEASURING_SECONDS / max(1, len(others))
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
        """The cost that the rounds so far give."""
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
