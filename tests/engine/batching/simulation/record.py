"""A scenario, and the record of what happened when the real MicroBatcher played it.

The batcher's threads and event loop run in virtual time. The record puts all events into one order.
"""

import asyncio
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal, NamedTuple
from unittest.mock import patch

from sentiment_service.engine.batching.batcher import MicroBatcher
from sentiment_service.engine.batching.fair_queue import Answer, BatchReport, FairQueue, TokenBudget
from sentiment_service.engine.batching.runners import Watch
from sentiment_service.errors import DeviceLost, OutOfMemory, ServiceError

from tests.support.batching import Hooks
from tests.support.virtual_time import Simulation

# Virtual seconds in which everything that was admitted is done many times over.
ENOUGH_S = 1e6

# A batch that hangs takes far longer than any other, which takes less than a quarter of this.
HANGS_AFTER_S = 20_000.0
LOOKS_EVERY_S = 5_000.0
KNOWN_AFTER_S = 50_000.0  # at the most

Fate = Literal["good", "culprit", "refused", "hangs"]


@dataclass(frozen=True, slots=True)
class Text:
    """An item: each of its tokens takes one second of inference."""

    request: int
    index: int
    tokens: int
    fate: Fate

    def __len__(self) -> int:
        return self.tokens


@dataclass(frozen=True, slots=True)
class Ask:
    """A client's request: when it comes, how long it waits, and when it leaves early."""

    at: float
    texts: tuple[Text, ...]
    timeout_s: float
    goes_after_s: float

    @property
    def tokens(self) -> int:
        return sum(text.tokens for text in self.texts)

    @property
    def turns(self) -> list[Text]:
        """The texts in the order in which they are queued: the longest first."""
        return sorted(self.texts, key=len, reverse=True)


@dataclass(frozen=True, slots=True)
class Scenario:
    asks: tuple[Ask, ...]
    drains: tuple[tuple[float, float], ...] = ()  # when, and the timeout
    runners: int = 1
    max_batch_tokens: int = 100
    max_queue_tokens: int = 100_000
    batch_seconds: float = 0.0  # what every batch takes beside its tokens
    outage: tuple[float, float] = (0.0, 0.0)  # infer raises, whatever it is given
    misbehaviour: Literal["raise", "raise at once", "exit", "short"] = "raise"
    report_raises: bool = False
    hang_s: float = math.inf
    lost_takes: frozenset[int] = frozenset()  # a runner is lost while it takes: of all, in order
    lost_batches: frozenset[int] = frozenset()  # and after it has computed
    memory: float = math.inf  # padded tokens for which it suffices
    device_lost_at: float = math.inf  # no call that ends then or later succeeds
    eager: bool = True
    work_first: bool = True


class Moment(NamedTuple):
    """A place in the order of all events, and its virtual time."""

    order: int
    time: float


NEVER = Moment(10**9, math.inf)


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a text."""

    text: Text


@dataclass(slots=True)
class Call:
    """What one call of infer got and returned; None if it failed."""

    texts: tuple[Text, ...]
    results: list[Done | ServiceError] | None
    raised: type[BaseException] | None = None

    @property
    def padded_tokens(self) -> int:
        return len(self.texts) * max(map(len, self.texts))


@dataclass(slots=True)
class Batch:
    """A batch, from its first call of infer to its report, with its retries."""

    texts: tuple[Text, ...]
    started: Moment
    finished: Moment
    calls: list[Call] = field(default_factory=list)
    report: BatchReport | None = None
    failing: bool = False
    lost: bool = False  # with its runner's thread

    @property
    def leader(self) -> Text:
        """The leader: the text whose turn it was."""
        return self.texts[0]

    @property
    def outcomes(self) -> dict[Text, Done | ServiceError | None]:
        """The last call's outcome for each text; None if it failed."""
        outcomes: dict[Text, Done | ServiceError | None] = {}
        for call in self.calls:
            results: Sequence[Done | ServiceError | None] = call.results or [None] * len(call.texts)
            outcomes.update(zip(call.texts, results, strict=True))
        return outcomes


@dataclass(slots=True)
class Visit:
    """One call of submit, from start to end."""

    ask: Ask
    asked: Moment
    left: Moment
    answer: Answer[Done] | None = None
    refusal: ServiceError | None = None

    @property
    def deadline(self) -> float:
        return self.asked.time + self.ask.timeout_s


@dataclass(slots=True)
class Drain:
    timeout_s: float
    began: Moment
    ended: Moment
    complete: bool


@dataclass(slots=True)
class Pause:
    """The queue as it was just before virtual time moved on."""

    at: Moment
    resting_runners: int
    queued_items: int
    queued_tokens: int


class FaultyQueue(FairQueue):
    """A queue that raises MemoryError at some of the takes."""

    def __init__(self, faults: frozenset[int]) -> None:
        super().__init__()
        self._faults = faults
        self._takes = count()
        self.raised = 0

    def take_batch(self, **options: Any) -> list[Any]:
        if next(self._takes) in self._faults:
            self.raised += 1
            raise MemoryError
        return super().take_batch(**options)


class Record:
    """Plays a scenario, and then holds what happened in lists, each in order."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.batches: list[Batch] = []
        self.visits: list[Visit] = []
        self.drains: list[Drain] = []
        self.pauses: list[Pause] = []
        self.budget = TokenBudget(scenario.max_batch_tokens)
        self.queue = FaultyQueue(scenario.lost_takes)
        self.losses = 0
        self._orders = count()
        self._running: dict[threading.Thread, Batch] = {}
        self.simulation = Simulation(eager=scenario.eager, work_first=scenario.work_first)
        with (
            patch("sentiment_service.engine.batching.batcher.FairQueue", lambda: self.queue),
            patch("sentiment_service.engine.batching.batcher.BatchReport", self._report),
        ):
            self.simulation.run(self._play())

        self.closed = min(drain.began for drain in self.drains)
        self.gave_up = min(
            (drain.ended for drain in self.drains if not drain.complete),
            default=NEVER,
        )
        self.batch_of = {text: batch for batch in self.batches for text in batch.texts}
        self.admitted = [
            visit for visit in self.visits if visit.refusal is None and visit.ask.texts
        ]
        self.visit_of = {text: visit for visit in self.admitted for text in visit.ask.texts}
        # Between which places in the order each of their texts stood in the queue.
        self.waits = {text: self._wait(visit, text) for text, visit in self.visit_of.items()}

    def waiting(self, at: Moment) -> list[Text]:
        """The admitted texts that were in the queue at that place in the order."""
        return [text for text, (start, end) in self.waits.items() if start < at.order < end]

    def waiting_tokens(self, at: Moment) -> tuple[int, int]:
        """The least and the most tokens that can have waited.

        A runner may already have dropped a text whose deadline is at this very instant.
        """
        waiting = self.waiting(at)
        live = [text for text in waiting if self.visit_of[text].deadline > at.time]
        return sum(map(len, live)), sum(map(len, waiting))

    def _wait(self, visit: Visit, text: Text) -> tuple[int, int]:
        ends = [visit.left.order, self.gave_up.order]
        if text in self.batch_of:
            ends.append(self.batch_of[text].started.order)
        return visit.asked.order, min(ends)

    async def _play(self) -> None:
        scenario = self.scenario
        batcher: MicroBatcher[Text, Done] = MicroBatcher(
            self._infer,
            Hooks(batch=self._on_batch, runner_lost=self._on_loss),
            runners=scenario.runners,
            budget=self.budget,
            max_queue_tokens=scenario.max_queue_tokens,
            watch=Watch(look_s=LOOKS_EVERY_S, stuck_s=HANGS_AFTER_S),
        )
        self._batcher = batcher
        self.simulation.before_advance = self._pause
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            for ask in scenario.asks:
                visit = tasks.create_task(self._visit(ask))
                if ask.goes_after_s < math.inf:
                    loop.call_at(ask.at + ask.goes_after_s, visit.cancel)
            for at, timeout_s in scenario.drains:
                tasks.create_task(self._drain(at, timeout_s))
        await asyncio.sleep(KNOWN_AFTER_S)
        self.threads = len(self.simulation.threads) - self.simulation.ended_threads
        self.stuck, self.complete = batcher.runners.stuck, batcher.runners.complete
        self.hanging = len(self._running)
        self.reported = self.losses
        self.faults = self.queue.raised + sum(batch.lost for batch in self.batches)
        await self._drain(loop.time(), ENOUGH_S)
        await self._visit(Ask(loop.time(), (Text(-1, 0, 1, "good"),), ENOUGH_S, math.inf))

    async def _visit(self, ask: Ask) -> None:
        await asyncio.sleep(ask.at - self.simulation.now)
        visit = Visit(ask, self._moment(), NEVER)
        self.visits.append(visit)
        try:
            visit.answer = await self._batcher.submit(ask.texts, timeout_s=ask.timeout_s)
        except ServiceError as refusal:
            visit.refusal = refusal
        finally:
            visit.left = self._moment()

    async def _drain(self, at: float, timeout_s: float) -> None:
        await asyncio.sleep(at - self.simulation.now)
        began = self._moment()
        complete = await self._batcher.drain(timeout_s)
        self.drains.append(Drain(timeout_s, began, self._moment(), complete))

    def _infer(self, texts: Sequence[Text]) -> Sequence[Done | ServiceError]:
        scenario, now = self.scenario, self.simulation.now
        if self.simulation.over:
            raise SystemExit
        runner = threading.current_thread()
        if runner not in self._running:
            self._running[runner] = Batch(tuple(texts), self._moment(), NEVER)
            self.batches.append(self._running[runner])
        calls = self._running[runner].calls
        results = [
            ServiceError("not finite") if text.fate == "refused" else Done(text) for text in texts
        ]
        outage = scenario.outage[0] <= now < scenario.outage[1]
        bad = outage or any(text.fate == "culprit" for text in texts)
        call = Call(tuple(texts), None if bad else results)
        calls.append(call)
        if call.padded_tokens > scenario.memory:
            call.results, call.raised = None, OutOfMemory
            raise OutOfMemory("too little memory")
        if not (bad and scenario.misbehaviour == "raise at once"):
            self.simulation.work(scenario.batch_seconds + call.padded_tokens)
        if self.simulation.now >= scenario.device_lost_at:
            call.results, call.raised = None, DeviceLost
            raise DeviceLost("the device is gone")
        if any(text.fate == "hangs" for text in texts):
            self.simulation.work(scenario.hang_s)
        if bad and scenario.misbehaviour == "short":
            return results[1:]
        if bad:
            raise SystemExit if scenario.misbehaviour == "exit" else ValueError
        return results

    def _report(self, **facts: Any) -> BatchReport:
        """Replaces the class, to lose a runner with a batch that it has computed."""
        if self.simulation.over:
            raise SystemExit
        batch = self._running[threading.current_thread()]
        if self.batches.index(batch) in self.scenario.lost_batches:
            del self._running[threading.current_thread()]
            batch.finished, batch.lost = self._moment(), True
            raise MemoryError
        return BatchReport(**facts)

    def _on_loss(self) -> None:
        self.losses += 1

    def _on_batch(self, report: BatchReport) -> None:
        batch = self._running.pop(threading.current_thread())
        batch.finished = self._moment()
        batch.report = report
        batch.failing = self._batcher.failing
        if self.scenario.report_raises:
            raise ValueError

    def _pause(self) -> None:
        resting = self.simulation.idle_threads + self.simulation.ended_threads
        texts, tokens = len(self.queue), self.queue.tokens
        self.pauses.append(Pause(self._moment(), resting, texts, tokens))

    def _moment(self) -> Moment:
        return Moment(next(self._orders), self.simulation.now)
