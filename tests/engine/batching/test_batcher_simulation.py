"""The real MicroBatcher in virtual time: random scenarios are checked against its guarantees.

Each scenario is played once and recorded. The record puts all events into one order. The checks
read the record; each check states one property of every run.
"""

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from typing import Any, Literal, NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.batching.admission import CAUTION, REQUEST_SHARE, SPEED_DECAY
from app.engine.batching.batcher import FAILING_AFTER, MicroBatcher
from app.engine.batching.budget import TokenBudget
from app.engine.batching.fair_queue import LOOK_AHEAD, FairQueue
from app.engine.batching.inference import BatchReport
from app.engine.batching.pending import Answer
from app.engine.batching.runners import HOPELESS_AFTER
from app.errors import (
    RETRY_AFTER_S,
    DeadlineExceeded,
    DeviceLost,
    InferenceFailed,
    NotReady,
    OutOfMemory,
    Overloaded,
    ServiceError,
    ShuttingDown,
    TooManyTexts,
)
from tests.support.virtual_time import Simulation

# Virtual seconds in which everything that was admitted is done many times over.
ENOUGH_S = 1e6

# A batch that hangs takes far longer than any other, which takes less than a quarter of this.
HANGS_AFTER_S = 20_000.0
LOOKS_EVERY_S = 5_000.0
KNOWN_AFTER_S = 50_000.0  # at the most

# In seconds that were computed here in another way than there.
ROUNDING_S = 1e-6

Fate = Literal["good", "culprit", "refused", "hangs"]

# Scenarios


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


lengths = st.one_of(
    st.lists(st.integers(1, 60), max_size=10),
    st.lists(st.integers(1, 4), max_size=25),
    st.lists(st.sampled_from([9, 10, 11]), max_size=10),
    st.lists(st.integers(1, 60), min_size=1, max_size=1),
)
gaps = st.sampled_from([0.0] * 4 + [1.0, 3.0, 10.0, 50.0])
timeouts = st.sampled_from([1000.0, ENOUGH_S, ENOUGH_S, 300.0, 100.0, 30.0, 5.0, 0.0])
departures = st.sampled_from([math.inf] * 8 + [100.0, 20.0, 1.0, 0.0])
fates: st.SearchStrategy[Fate] = st.sampled_from(["good"] * 12 + ["culprit", "refused"])
outages = st.sampled_from([(0.0, 0.0), (20.0, 90.0)])
one_drain = st.tuples(
    st.sampled_from([500.0, 200.0, 100.0, 60.0, 30.0, 5.0]),
    st.sampled_from([ENOUGH_S, 100.0, 30.0, 10.0, 1.0, 0.0]),
)
early_drain = st.tuples(
    st.sampled_from([30.0, 10.0, 3.0, 1.0]), st.sampled_from([ENOUGH_S, 100.0, 10.0, 1.0, 0.0])
)
drains = st.lists(one_drain, max_size=2)
budgets = st.integers(1, 150) | st.just(150)
limits = st.sampled_from([100_000, 500, 200, 60])

no_hangs = st.just(math.inf)
no_losses: st.SearchStrategy[frozenset[int]] = st.just(frozenset())
endless: st.SearchStrategy[float] = st.just(math.inf)


@st.composite
def scenarios(
    draw: st.DrawFn,
    *,
    lengths: st.SearchStrategy[list[int]] = lengths,
    gaps: st.SearchStrategy[float] = gaps,
    timeouts: st.SearchStrategy[float] = timeouts,
    departures: st.SearchStrategy[float] = departures,
    fates: st.SearchStrategy[Fate] = fates,
    outages: st.SearchStrategy[tuple[float, float]] = outages,
    drains: st.SearchStrategy[list[tuple[float, float]]] = drains,
    budgets: st.SearchStrategy[int] = budgets,
    limits: st.SearchStrategy[int] = limits,
    hangs: st.SearchStrategy[float] = no_hangs,
    losses: st.SearchStrategy[frozenset[int]] = no_losses,
    memories: st.SearchStrategy[float] = endless,
    device_losses: st.SearchStrategy[float] = endless,
) -> Scenario:
    asks = []
    now = 0.0
    visits = st.tuples(gaps, lengths, timeouts, departures)
    for request, visit in enumerate(draw(st.lists(visits, min_size=1, max_size=12))):
        gap, tokens, timeout_s, goes_after_s = visit
        texts = [Text(request, index, length, draw(fates)) for index, length in enumerate(tokens)]
        now += gap
        asks.append(Ask(now, tuple(texts), timeout_s, goes_after_s))
    return Scenario(
        tuple(asks),
        drains=tuple(draw(drains)),
        runners=draw(st.integers(1, 3)),
        max_batch_tokens=draw(budgets),
        max_queue_tokens=draw(limits),
        batch_seconds=draw(st.sampled_from([0.0, 10.0])),
        outage=draw(outages),
        misbehaviour=draw(st.sampled_from(["raise", "raise at once", "exit", "short"])),
        report_raises=draw(st.booleans()),
        hang_s=draw(hangs),
        lost_takes=draw(losses),
        lost_batches=draw(losses),
        memory=draw(memories),
        device_lost_at=draw(device_losses),
        eager=draw(st.booleans()),
        work_first=draw(st.booleans()),
    )


# What happened


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
    queued_texts: int
    queued_tokens: int


class FaultyQueue(FairQueue[Any]):
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
            patch.multiple(
                "app.engine.batching.runners", WATCH_S=LOOKS_EVERY_S, STUCK_LEAST_S=HANGS_AFTER_S
            ),
            patch("app.engine.batching.batcher.FairQueue", lambda: self.queue),
            patch("app.engine.batching.pending.BatchReport", self._report),
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
            runners=scenario.runners,
            budget=self.budget,
            max_queue_tokens=scenario.max_queue_tokens,
            on_batch=self._on_batch,
            on_lag=lambda seconds: None,
            on_loss=self._on_loss,
            on_stall=lambda: None,
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
        self.replaced = self.losses
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
        texts, tokens = self._batcher.queued_texts, self._batcher.queued_tokens
        self.pauses.append(Pause(self._moment(), resting, texts, tokens))

    def _moment(self) -> Moment:
        return Moment(next(self._orders), self.simulation.now)


@pytest.fixture(autouse=True, scope="module")
def silence() -> Iterator[None]:
    """Turn off the log: hundreds of batches raise errors here on purpose."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


# Checks


def check_every_item_gets_its_own_answer(record: Record) -> None:
    """An admitted request whose client stays gets one result or error per item, in order."""
    for visit in record.admitted:
        if visit.answer is None:
            assert visit.left.time == visit.ask.at + visit.ask.goes_after_s
            continue
        assert len(visit.answer.results) == len(visit.ask.texts)
        for text, result in zip(visit.ask.texts, visit.answer.results, strict=True):
            if isinstance(result, Done):
                assert text.fate != "culprit"
                assert result.text == text


def check_submit_returns_the_moment_it_can(record: Record) -> None:
    """Submit returns exactly at the first of: last result, deadline, or the end of drain."""
    for visit in record.admitted:
        finished = max(
            record.batch_of[text].finished.time if text in record.batch_of else math.inf
            for text in visit.ask.texts
        )
        returns = min(finished, visit.deadline, record.gave_up.time)
        if visit.answer is None:
            assert visit.left.time <= returns
        else:
            assert visit.left.time == returns


def check_what_came_in_time_is_kept(record: Record) -> None:
    """A result in time is in the answer; other items get the error that says why they ended."""
    for visit in record.admitted:
        if visit.answer is None:
            continue
        ends = {DeadlineExceeded: visit.deadline, ShuttingDown: record.gave_up.time}
        errors = tuple(error for error, time in ends.items() if time == visit.left.time)
        for text, result in zip(visit.ask.texts, visit.answer.results, strict=True):
            batch = record.batch_of.get(text)
            came_at = batch.finished.time if batch else math.inf
            if batch and came_at <= visit.left.time:
                outcome = batch.outcomes[text]
                kept = result is outcome or (
                    outcome is None and isinstance(result, InferenceFailed)
                )
                assert kept or (came_at == visit.left.time and isinstance(result, errors))
            else:
                assert isinstance(result, errors)


def check_the_seconds_add_up(record: Record) -> None:
    """Inference time is the time in which a text of the request is computed; the rest is queue."""
    for visit in record.admitted:
        if visit.answer is None:
            continue
        left = visit.left.time
        batches = {id(b): b for text in visit.ask.texts if (b := record.batch_of.get(text))}
        spans = [(b.started.time, min(b.finished.time, left)) for b in batches.values()]
        moments = sorted({moment for span in spans for moment in span})
        computed = sum(
            until - since
            for since, until in pairwise(moments)
            if any(started <= since and until <= ended for started, ended in spans)
        )
        assert visit.answer.inference_seconds == pytest.approx(computed)
        waited = left - visit.asked.time - computed
        assert visit.answer.queue_seconds == pytest.approx(waited)


def check_each_text_is_computed_once(record: Record) -> None:
    """No text is in two batches; only the retries of a failed batch compute it again."""
    computed = [text for batch in record.batches for text in batch.texts]
    assert len(computed) == len(set(computed))
    for batch in record.batches:
        given = [text for call in batch.calls for text in call.texts]
        kept = [text for call in batch.calls if call.results for text in call.texts]
        assert set(given) == set(batch.texts)
        assert len(kept) == len(set(kept))


def check_texts_of_one_length_start_in_turn(record: Record) -> None:
    """Texts of equal length start in order: within a request, and first texts across requests."""
    started = {text: place for place, text in enumerate(record.batch_of)}
    for visit in record.admitted:
        for tokens in range(1, 61):
            starts = [
                started[text]
                for text in visit.ask.texts
                if text.tokens == tokens and text in started
            ]
            assert starts == sorted(starts)
    firsts = [visit.ask.texts[0] for visit in record.admitted]
    for tokens in range(1, 61):
        starts = [started[text] for text in firsts if text.tokens == tokens and text in started]
        assert starts == sorted(starts)


def check_the_budget_is_kept(record: Record) -> None:
    """No call of infer exceeds the budget of padded tokens, except for a single long text."""
    for batch in record.batches:
        for call in batch.calls:
            padded_tokens = len(call.texts) * max(map(len, call.texts))
            assert len(call.texts) == 1 or padded_tokens <= record.scenario.max_batch_tokens


def check_the_queue_is_bounded(record: Record) -> None:
    """No request is admitted beyond the queue's limit, or beyond its own share of the queue."""
    limit = record.scenario.max_queue_tokens
    for visit in record.admitted:
        least, _ = record.waiting_tokens(visit.asked)
        assert least + visit.ask.tokens <= limit
        assert visit.ask.tokens <= limit * REQUEST_SHARE
    for pause in record.pauses:
        assert pause.queued_tokens <= limit


def check_nothing_is_computed_in_vain(record: Record) -> None:
    """No batch starts with a text that has expired or was given up by its client or by drain."""
    for batch in record.batches:
        assert batch.started.order < record.gave_up.order
        for text in batch.texts:
            visit = record.visit_of[text]
            assert batch.started.time < visit.deadline
            assert batch.started.order < visit.left.order
            assert batch.started.time <= visit.ask.at + visit.ask.goes_after_s


def check_the_wait_is_bounded(record: Record) -> None:
    """While a text waits, the leaders of other requests have a bounded number of tokens.

    Virtual time V is the end of some past leader. That leader had the earliest start of all waiting
    texts, so no waiting text starts before V - (longest leader so far). If ``ahead`` tokens of its
    own list come before a text, it starts at V + ahead. Until its batch, only earlier turns lead.

    The texts of one request follow each other in virtual time. Texts of an earlier request start
    between these two points, and the last may end later, by at most its length. Texts of a later
    request start at V or after, and strictly before V + ahead. A leader moves virtual time to its
    end, so every later text starts after it. However many requests come one after the other, their
    leaders except the last fit into ``ahead``. So a list is not starved, and no later request leads
    before a request's first text.
    """
    for visit in record.admitted:
        lag = max((b.leader.tokens for b in record.batches if b.started < visit.asked), default=0)
        ahead = 0
        for text in visit.ask.texts:
            start, end = record.waits[text]
            earlier: dict[int, int] = {}
            later: list[tuple[Batch, int]] = []  # with the virtual time it moved on at the least
            for batch in record.batches:
                if not start < batch.started.order < end or batch.started.time >= visit.deadline:
                    continue
                other = record.visit_of[batch.leader]
                if other.asked <= visit.asked:
                    tokens = earlier.get(other.asked.order, 0) + batch.leader.tokens
                    earlier[other.asked.order] = tokens
                    longest = max(map(len, other.ask.texts))
                    assert tokens <= (ahead if other is visit else lag + ahead + longest)
                else:
                    moved = max(
                        (
                            moved + past.leader.tokens
                            for past, moved in later
                            if past.started < other.asked or past.leader in other.ask.texts
                        ),
                        default=0,
                    )
                    assert moved < ahead
                    later.append((batch, moved))
            ahead += text.tokens


def check_runners_share_what_waits(record: Record) -> None:
    """A batch takes its runner's share of the queue, or all that fits, and no more.

    Texts as long as the batch's longest add no padding. Only the budget or the share excludes them,
    as long as the batcher looks at all waiting texts.
    """
    for batch in record.batches:
        busy = sum(other.started < batch.started < other.finished for other in record.batches)
        idle = record.scenario.runners - busy
        least, most = record.waiting_tokens(batch.started)
        tokens = [text.tokens for text in batch.texts]
        assert len(tokens) == 1 or sum(tokens[:-1]) < (most + sum(tokens)) / idle
        full = (len(tokens) + 1) * max(tokens) > record.scenario.max_batch_tokens
        seen = most + sum(tokens) <= LOOK_AHEAD * record.scenario.max_batch_tokens
        if seen and not full and sum(tokens) < (least + sum(tokens)) / idle:
            left = [
                text
                for text in record.waiting(batch.started)
                if record.visit_of[text].deadline > batch.started.time
            ]
            assert max(tokens) not in map(len, left)


def check_no_runner_idles_while_a_text_waits(record: Record) -> None:
    """Whenever time passes while texts are in the queue, every runner is at work."""
    for pause in record.pauses:
        assert not (pause.resting_runners and pause.queued_texts)


def check_the_queue_holds_what_waits(record: Record) -> None:
    """Whenever time passes, the queue counts exactly the texts with a client but no batch."""
    for pause in record.pauses:
        waiting = record.waiting(pause.at)
        assert (pause.queued_texts, pause.queued_tokens) == (len(waiting), sum(map(len, waiting)))


def check_only_culprits_fail(record: Record) -> None:
    """A text fails only if it failed alone; it spoils no other text of its batch."""
    for batch in record.batches:
        assert len(batch.calls) <= 2 * len(batch.texts) - 1
        for text, outcome in batch.outcomes.items():
            if outcome is None:
                assert Call((text,), None) in batch.calls
                assert text.fate == "culprit" or record.scenario.outage != (0.0, 0.0)
            else:
                assert text.fate != "culprit"


def check_refusals(record: Record) -> None:
    """A request that is not admitted is refused at once, and the stated reason is true."""
    scenario = record.scenario
    most = int(scenario.max_queue_tokens * REQUEST_SHARE)
    for visit in record.visits:
        if not visit.ask.texts:
            assert visit.answer == Answer([], 0.0, 0.0)
            assert visit.left.time == visit.asked.time
            continue
        refusal, tokens = visit.refusal, visit.ask.tokens
        assert isinstance(refusal, ShuttingDown) == (visit.asked > record.closed)
        if isinstance(refusal, ShuttingDown):
            assert refusal.retry_after_s == RETRY_AFTER_S
        else:
            assert isinstance(refusal, TooManyTexts) == (tokens > most)
        if refusal is not None:
            assert visit.left.time == visit.asked.time
        if not isinstance(refusal, Overloaded):
            continue
        least, queued = record.waiting_tokens(visit.asked)
        pace = measured_pace(record, visit.asked) / scenario.runners
        assert refusal.retry_after_s is not None
        assert refusal.retry_after_s > 0
        if refusal.rejection == "queue_full":
            excess = queued + tokens - scenario.max_queue_tokens
            assert excess > 0
            if pace:
                assert refusal.retry_after_s <= excess * pace + ROUNDING_S
            else:
                assert refusal.retry_after_s == RETRY_AFTER_S
        else:
            most_s = (2 * queued + tokens) * pace + longest_batch_s(record, visit.asked)
            most_s *= CAUTION
            assert refusal.retry_after_s <= most_s - visit.ask.timeout_s + ROUNDING_S
            assert least + tokens <= scenario.max_queue_tokens


def longest_batch_s(record: Record, at: Moment) -> float:
    """The seconds of the longest batch until then."""
    ended = [batch for batch in record.batches if batch.finished < at]
    return max((b.finished.time - b.started.time for b in ended), default=0.0)


def measured_pace(record: Record, at: Moment) -> float:
    """Seconds per token of one runner, from the batches without a failure until then."""
    tokens = seconds = 0.0
    for batch in sorted(record.batches, key=lambda batch: batch.finished):
        failed = len(batch.calls) > 1 or any(
            not isinstance(r, Done) for r in batch.outcomes.values()
        )
        if batch.finished < at and not failed:
            tokens = SPEED_DECAY * tokens + sum(map(len, batch.texts))
            seconds = SPEED_DECAY * seconds + batch.finished.time - batch.started.time
    return seconds / tokens if tokens else 0.0


def check_drain(record: Record) -> None:
    """Drain returns the moment the last runner has ended, or when its time is over.

    It is incomplete only if a request was still waiting then.
    """
    busy_until = max((batch.finished.time for batch in record.batches), default=0.0)
    for drain in record.drains:
        idle_at = max(drain.began.time, record.closed.time, busy_until)
        assert drain.ended.time == min(idle_at, drain.began.time + drain.timeout_s)
        waiting = [visit for visit in record.admitted if visit.asked < drain.ended < visit.left]
        assert drain.complete or waiting
        assert drain.complete or drain.ended.time == drain.began.time + drain.timeout_s
    assert record.drains[-1].complete


def check_the_reports(record: Record) -> None:
    """Each batch is reported once, correctly; three in a row without an answer mean failing."""
    fruitless = 0
    for batch in sorted(record.batches, key=lambda batch: batch.finished):
        outcomes = batch.outcomes.values()
        failed = sum(not isinstance(outcome, Done) for outcome in outcomes)
        assert batch.report is not None
        assert replace(batch.report, retried=False) == BatchReport(
            texts=len(batch.texts),
            tokens=sum(map(len, batch.texts)),
            padded_tokens=len(batch.texts) * max(map(len, batch.texts)),
            inference_seconds=batch.finished.time - batch.started.time,
            failed=failed,
        )
        assert batch.report.retried == any(call.results is None for call in batch.calls)
        fruitless = fruitless + 1 if failed == len(batch.texts) else 0
        assert batch.failing == (fruitless >= FAILING_AFTER)


def check_nothing_is_raised_where_nobody_looks(record: Record) -> None:
    """No runner ends with an error, and no callback of the event loop raises."""
    assert record.simulation.errors == []


# Where runners hang or are lost


def check_nobody_is_stranded(record: Record) -> None:
    """A client without a deadline is answered long before a hanging batch returns.

    It waits at most for all texts that are computed, for hanging batches until they are given up,
    and for the replacement of each lost thread.
    """
    texts = [text for batch in record.batches for text in batch.texts]
    hanging = sum(text.fate == "hangs" for text in texts)
    computing_s = sum(
        record.scenario.batch_seconds + 2 * len(call.texts) * max(map(len, call.texts))
        for batch in record.batches
        for call in batch.calls
    )
    longest_s = computing_s + record.losses + (hanging + 1) * KNOWN_AFTER_S
    for visit in record.admitted:
        if visit.answer is not None:
            assert visit.left.time - visit.asked.time <= longest_s


def check_each_text_is_answered_or_told_why(record: Record) -> None:
    """A text has its result, unless its batch hung or was lost, or no runner was left."""
    for visit in record.admitted:
        if visit.answer is None:
            continue
        for text, result in zip(visit.ask.texts, visit.answer.results, strict=True):
            batch = record.batch_of.get(text)
            if isinstance(result, Done):
                assert result.text == text
                assert batch
                assert not batch.lost
            elif isinstance(result, InferenceFailed):
                assert batch
                took_s = batch.finished.time - batch.started.time
                assert batch.lost or batch.outcomes[text] is None or took_s > HANGS_AFTER_S
            elif isinstance(result, NotReady):
                hung = sum(b.finished.time - b.started.time > HANGS_AFTER_S for b in record.batches)
                runners = record.scenario.runners
                assert batch is None
                assert hung >= runners or record.losses >= HOPELESS_AFTER * runners


def check_the_lost_are_replaced(record: Record) -> None:
    """Each lost thread is reported once, and the number of threads stays the same."""
    assert record.replaced == record.faults
    assert record.threads == record.scenario.runners


def check_the_stuck_are_known(record: Record) -> None:
    """A runner that hangs is reported as stuck; when it returns, it is not any more."""
    assert record.stuck == record.hanging
    assert record.complete == (record.hanging == 0)


# Where memory runs out


def check_only_what_is_too_long_fails(record: Record) -> None:
    """A text fails for want of memory only if it has more tokens than fit, and failed alone."""
    for batch in record.batches:
        for text, outcome in batch.outcomes.items():
            alone = Call((text,), None, OutOfMemory) in batch.calls
            assert alone == (text.tokens > record.scenario.memory)
            assert (outcome is None) == (alone or Call((text,), None) in batch.calls)
    for visit in record.admitted:
        if visit.answer is not None:
            for text, result in zip(visit.ask.texts, visit.answer.results, strict=True):
                assert text in record.batch_of or not isinstance(result, OutOfMemory)
                assert text.tokens > record.scenario.memory or not isinstance(result, OutOfMemory)


def check_the_budget_falls_for_good(record: Record) -> None:
    """After memory ran out, no batch is as large; the budget is not lower than that asks for."""
    smallest = math.inf
    for batch in record.batches:
        large = [
            call.padded_tokens
            for other in record.batches
            if other.finished < batch.started
            for call in other.calls
            if call.raised is OutOfMemory and len(call.texts) > 1
        ]
        padded_tokens = len(batch.texts) * max(map(len, batch.texts))
        assert len(batch.texts) == 1 or padded_tokens < min(large, default=math.inf)
        smallest = min([smallest, *large])
        assert batch.report
        ran_out = [call for call in batch.calls if call.raised is OutOfMemory]
        assert batch.report.out_of_memory == bool(ran_out)
    tokens = record.budget.tokens
    assert tokens == record.scenario.max_batch_tokens or 2 * tokens + 1 >= record.scenario.memory


# Where the device is lost


def check_no_call_follows_a_lost_device(record: Record) -> None:
    """A batch ends with its first call on a lost device; no request is admitted after that."""
    known = min(
        (batch.finished for batch in record.batches if batch.calls[-1].raised is DeviceLost),
        default=NEVER,
    )
    for batch in record.batches:
        assert all(call.raised is not DeviceLost for call in batch.calls[:-1])
    for visit in record.visits:
        if visit.ask.texts and known < visit.asked < record.closed:
            assert isinstance(visit.refusal, NotReady)


def check_what_the_device_computed_is_kept(record: Record) -> None:
    """A text has its result if it was computed before the loss, otherwise the error says why."""
    for visit in record.admitted:
        assert visit.answer is not None
        for text, result in zip(visit.ask.texts, visit.answer.results, strict=True):
            calls = [call for call in record.batch_of[text].calls if text in call.texts]
            computed = calls[-1].results is not None
            failed_alone = len(calls[-1].texts) == 1 and calls[-1].raised is not DeviceLost
            assert isinstance(result, NotReady) == (not computed and not failed_alone)


EVERYWHERE = (
    check_nothing_is_raised_where_nobody_looks,
    check_each_text_is_computed_once,
    check_the_budget_is_kept,
)
CHECKS = (
    *EVERYWHERE,
    check_every_item_gets_its_own_answer,
    check_submit_returns_the_moment_it_can,
    check_what_came_in_time_is_kept,
    check_the_seconds_add_up,
    check_texts_of_one_length_start_in_turn,
    check_the_queue_is_bounded,
    check_nothing_is_computed_in_vain,
    check_the_wait_is_bounded,
    check_runners_share_what_waits,
    check_no_runner_idles_while_a_text_waits,
    check_the_queue_holds_what_waits,
    check_only_culprits_fail,
    check_refusals,
    check_drain,
    check_the_reports,
)
CHECKS_OF_RUNNERS = (
    *EVERYWHERE,
    check_nobody_is_stranded,
    check_the_lost_are_replaced,
    check_the_stuck_are_known,
)


def check_all(scenario: Scenario, checks: Sequence[Callable[[Record], None]] = CHECKS) -> Record:
    record = Record(scenario)
    for check in checks:
        check(record)
    return record


# Tests

# What makes a scenario patient: nobody gives up.
patient: dict[str, Any] = {"timeouts": st.just(ENOUGH_S), "departures": st.just(math.inf)}
# Runners hang or are lost, while clients have no deadline.
faulty_runners: dict[str, Any] = {
    "timeouts": st.just(math.inf),
    "departures": departures,
    "fates": st.sampled_from([*["good"] * 8, "culprit", "hangs"]),
    "hangs": st.sampled_from([2 * KNOWN_AFTER_S, ENOUGH_S]),
    "losses": st.frozensets(st.integers(0, 20), max_size=8),
    "drains": st.just([]),
}
ordinary = settings(deadline=None)


@settings(deadline=None, max_examples=300)
@given(scenarios())
def test_anything(scenario: Scenario) -> None:
    """All checks hold with deadlines, departures, failures, refusals and shutdown at once."""
    check_all(scenario)


@ordinary
@given(scenarios(**patient, drains=st.just([]), outages=st.just((0.0, 0.0))))
def test_patient_clients(scenario: Scenario) -> None:
    """If no client gives up, every admitted text is computed, and its wait is bounded."""
    record = check_all(scenario)
    assert set(record.batch_of) == set(record.visit_of)


@ordinary
@given(
    scenarios(
        **patient,
        lengths=st.sampled_from([[1], [1], [5], [2] * 10, [1, 3] * 5]),
        gaps=st.sampled_from([0.0, 1.0, 2.0, 3.0]),
        fates=st.just("good"),
        budgets=st.integers(1, 10),
        drains=st.just([]),
    )
)
def test_newcomers(scenario: Scenario) -> None:
    """If texts arrive as fast as they are served, neither new texts nor a list are starved."""
    check_all(scenario)


@ordinary
@given(
    scenarios(
        **patient,
        lengths=st.lists(st.integers(1, 4), min_size=1, max_size=20),
        fates=st.sampled_from(["good", "good", "good", "culprit", "refused"]),
        budgets=st.just(150),
    )
)
def test_failures_in_large_batches(scenario: Scenario) -> None:
    """If many texts share a batch and many fail, each gets its own result or error."""
    check_all(scenario)


@ordinary
@given(
    scenarios(
        lengths=st.lists(st.just(5), min_size=1, max_size=4),
        gaps=st.sampled_from([0.0, 0.0, 0.0, 1.0, 10.0]),
        limits=st.sampled_from([39, 40]),  # exactly full, or one too many
        drains=st.just([]),
    )
)
def test_a_crowd_before_a_small_queue(scenario: Scenario) -> None:
    """If too much arrives, the admitted requests fit, and the refused ones did not."""
    check_all(scenario)


@ordinary
@given(scenarios(**patient, drains=st.lists(early_drain, min_size=1, max_size=3)))
def test_shutdown(scenario: Scenario) -> None:
    """Drain ends a busy batcher in time, called once, or again while the first call waits."""
    check_all(scenario)


@settings(deadline=None, max_examples=200)
@given(scenarios(**faulty_runners))
def test_runners_that_hang_or_are_lost(scenario: Scenario) -> None:
    """Whatever happens to the runners, no client without a deadline waits for ever."""
    own = (check_every_item_gets_its_own_answer, check_each_text_is_answered_or_told_why)
    check_all(scenario, (*CHECKS_OF_RUNNERS, *own))


@ordinary
@given(
    scenarios(
        lengths=st.lists(st.integers(1, 20), max_size=20),
        memories=st.sampled_from([5.0, 15.0, 30.0, 60.0]),
        outages=st.just((0.0, 0.0)),
        budgets=st.sampled_from([10, 60, 100, 128]),
    )
)
def test_memory_that_runs_out(scenario: Scenario) -> None:
    """Every text is computed in a batch that fits; only what is too long alone fails."""
    others = {  # they count a batch as one call, or a text that fails as a culprit
        check_what_came_in_time_is_kept,
        check_the_seconds_add_up,
        check_texts_of_one_length_start_in_turn,
        check_the_wait_is_bounded,
        check_runners_share_what_waits,
        check_only_culprits_fail,
        check_the_reports,
    }
    own = (check_only_what_is_too_long_fails, check_the_budget_falls_for_good)
    check_all(scenario, (*(check for check in CHECKS if check not in others), *own))


@ordinary
@given(
    scenarios(
        **patient,
        lengths=st.lists(st.integers(1, 20), max_size=20),
        fates=st.sampled_from([*["good"] * 8, "culprit"]),
        memories=st.sampled_from([math.inf, math.inf, 30.0]),
        device_losses=st.sampled_from([0.0, 20.0, 100.0, 300.0]),
        limits=st.just(100_000),
        drains=st.just([]),
    )
)
def test_a_device_that_is_lost(scenario: Scenario) -> None:
    """Every text gets one result or error, and nothing is tried again on the lost device."""
    checks = (
        check_nothing_is_raised_where_nobody_looks,
        check_every_item_gets_its_own_answer,
        check_the_budget_is_kept,
        check_no_runner_idles_while_a_text_waits,
        check_the_queue_holds_what_waits,
        check_drain,
        check_no_call_follows_a_lost_device,
        check_what_the_device_computed_is_kept,
    )
    check_all(scenario, checks)
