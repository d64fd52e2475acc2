"""What batches of a model cost on this machine, measured so that its neighbours do not decide.

Ways to share the CPUs are measured in turns, a batch at a time, and the least of several rounds
counts: a neighbour only ever adds time. A batch on one thread is measured by the CPU time of its
thread, which does not count what the scheduler gave to others meanwhile.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from statistics import mean, median
from threading import Barrier
from typing import Annotated

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from app.engine.model import Encoding, Model
from app.engine.session import CPU, CUDA

TEXT_TOKENS = 32  # of the texts that are measured; a tweet has 26
# Texts in a batch. A few keep a CPU busy, and twice the largest is tried under load; a GPU needs
# more.
BATCHES, CUDA_BATCHES = (1, 2, 4, 8), (1, 8, 32, 128, 512)
MEASURING_SECONDS = 2.0  # about, in all
LEAST_SECONDS = 0.005  # for which a batch is repeated, so that all runners compute at once
# Rounds that count: of a slow model fewer than of a fast one, and at least one. From too few the
# spread is not known; it is taken to be large.
ROUNDS, ENOUGH_ROUNDS = 5, 3
UNKNOWN_SPREAD = 0.2
FINE_CLOCK_SECONDS = 0.0001  # the longest step of a clock that can time a batch


@dataclass(frozen=True, slots=True)
class Cost:
    """One way to share the CPUs: by texts in a batch, seconds that a batch takes.

    ``seconds`` while all runners compute, ``alone`` for one text while the others rest. ``spread``
    is how far the rounds' median lies above their least, as a share: what noise may have done.
    """

    runners: PositiveInt
    threads: PositiveInt
    seconds: Annotated[dict[PositiveInt, PositiveFloat], Field(min_length=1)]
    alone: PositiveFloat
    spread: NonNegativeFloat = 0.0

    def texts_per_second(self, texts: int) -> float:
        """What all runners compute in batches of that many texts."""
        return self.runners * texts / self.seconds[texts]

    def best_batch(self) -> int:
        """The texts in a batch that give the most texts a second."""
        return max(self.seconds, key=self.texts_per_second)

    def latency(self, texts: int) -> float:
        """Seconds for a text that finds all runners busy: the rest of a batch, then its own."""
        return 2 * self.seconds[texts]


def measure(model: Model, ways: Sequence[tuple[int, int]]) -> list[Cost]:
    """The costs of each way, (runners, threads), in the order of ``ways``.

    The last way is measured in turns with each of the others: no more than two sessions are open
    at once, and each has its weights.
    """
    *others, last = ways
    share = MEASURING_SECONDS / max(1, len(others))
    reference = _Candidate(model, *last)
    if not others:
        _take_turns([reference], share)
    costs = [_beside(reference, _Candidate(model, *way), share) for way in others]
    return [*costs, reference.cost()]


class _Candidate:
    """A way to share the CPUs while it is measured."""

    def __init__(self, model: Model, runners: int, threads: int) -> None:
        self.batches = CUDA_BATCHES if model.provider == CUDA else BATCHES
        self.found: dict[int, list[float]] = defaultdict(list)  # by texts; 0 for one text alone
        self._model = model.with_threads(threads)
        self._runners, self._threads = runners, threads
        self._clock: Callable[[], float] = time.perf_counter
        if model.provider == CPU and threads == 1 and _step(time.thread_time) < FINE_CLOCK_SECONDS:
            self._clock = time.thread_time
        self._pool = ThreadPoolExecutor(runners)
        ids = model.encode("measured " * TEXT_TOKENS).ids[:TEXT_TOKENS]
        self._text = Encoding(ids, len(ids))

    def run(self, texts: int) -> float:
        """Seconds that a batch takes while all runners compute the like; 0 texts: one, alone."""
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
            together.abort()  # a thread could not be started: the others wait for it
            raise

    def cost(self) -> Cost:
        """What the rounds found."""
        least = {texts: min(figures) for texts, figures in self.found.items()}
        spread = max(median(self.found[texts]) / least[texts] - 1 for texts in least)
        if len(self.found[0]) < ENOUGH_ROUNDS:
            spread = max(spread, UNKNOWN_SPREAD)
        alone = least.pop(0)
        return Cost(self._runners, self._threads, least, alone, spread)


@cache
def _step(clock: Callable[[], float]) -> float:
    """Seconds between two values of a clock: on Windows a thread's moves 64 times a second."""
    started = clock()
    while (now := clock()) == started:
        pass
    return now - started


def _beside(reference: _Candidate, candidate: _Candidate, seconds: float) -> Cost:
    """The candidate's cost; the reference learns its own meanwhile."""
    _take_turns([candidate, reference], seconds)
    return candidate.cost()


def _take_turns(candidates: Sequence[_Candidate], seconds: float) -> None:
    """Measure the candidates round by round, for about that long."""
    end = time.perf_counter() + seconds
    sizes = _affordable(candidates, seconds)
    for number in range(ROUNDS):
        if number and time.perf_counter() > end:
            return
        for texts in (0, *sizes):
            for candidate in candidates:
                candidate.found[texts].append(candidate.run(texts))


def _affordable(candidates: Sequence[_Candidate], seconds: float) -> list[int]:
    """The sizes of batches that can be measured often enough in the time, the least in any case.

    Each has been computed once then: the first batch of a size is slow.
    """
    sizes: list[int] = []
    round_seconds = took = 0.0
    for texts in candidates[0].batches:
        expected = took * texts / sizes[-1] if sizes else 0.0
        if sizes and (1 + ENOUGH_ROUNDS) * (round_seconds + expected) > seconds:
            break
        started = time.perf_counter()
        for candidate in candidates:
            candidate.run(texts)
        took = time.perf_counter() - started
        round_seconds += took
        sizes.append(texts)
    return sizes
