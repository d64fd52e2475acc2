"""The batcher. Items are strings: a letter is a token, and the result is the string in capitals."""

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from app.engine.batching.admission import CAUTION, Admission
from app.engine.batching.batcher import FAILING_AFTER, MicroBatcher
from app.engine.batching.budget import TokenBudget
from app.engine.batching.fair_queue import FairQueue
from app.engine.batching.report import BatchReport
from app.engine.batching.runners import WATCH_S, Runners
from app.errors import (
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
from tests.support.serving import eventually
from tests.support.virtual_time import Simulation, Stuck

# Far beyond what a test takes, so that only a hang comes to it.
PATIENCE_S = 30.0

Infer = Callable[[Sequence[str]], Sequence[str | ServiceError]]


def capitals(items: Sequence[str]) -> list[str | ServiceError]:
    return [item.upper() for item in items]


def distinct(item: str) -> Hashable:
    """A key that is equal to no other key, so that each item is computed."""
    return object()


class Gate:
    """An infer that records its batches, and lets them through when the test allows it."""

    def __init__(self, infer: Infer = capitals) -> None:
        self.batches: list[list[str]] = []
        self._infer = infer
        self._entered = threading.Semaphore(0)
        self._permits = threading.Semaphore(0)

    def __call__(self, items: Sequence[str]) -> Sequence[str | ServiceError]:
        self.batches.append(list(items))
        self._entered.release()
        assert self._permits.acquire(timeout=PATIENCE_S)
        return self._infer(items)

    @property
    def items(self) -> list[str]:
        return [item for batch in self.batches for item in batch]

    def wait_entered(self) -> None:
        """Block until one more batch has begun."""
        assert self._entered.acquire(timeout=PATIENCE_S)

    async def entered(self) -> None:
        await asyncio.to_thread(self.wait_entered)

    def open(self, batches: int = 1000) -> None:
        self._permits.release(batches)


class Clock:
    """Stands in for the module ``time`` in the batcher."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def ten_tokens_a_second(self, items: Sequence[str]) -> list[str | ServiceError]:
        """An infer that takes time on this clock: one second for ten tokens."""
        self.now += sum(map(len, items)) / 10
        return capitals(items)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("app.engine.batching.batcher.time", clock)
    return clock


def jump(seconds: float) -> None:
    """Move the running event loop's clock forward; timers that are then due fire."""
    loop = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + seconds  # type: ignore[method-assign]


@asynccontextmanager
async def batching(
    infer: Infer = capitals,
    *,
    key: Callable[[str], Hashable] = distinct,
    runners: int = 1,
    max_batch_tokens: int = 1000,
    budget: TokenBudget | None = None,
    max_queue_tokens: int = 1000,
    on_batch: Callable[[BatchReport], None] = lambda report: None,
    on_loss: Callable[[], None] = lambda: None,
    on_stall: Callable[[], None] = lambda: None,
) -> AsyncIterator[MicroBatcher[str, str]]:
    batcher = MicroBatcher(
        infer,
        key=key,
        runners=runners,
        budget=budget or TokenBudget(max_batch_tokens),
        max_queue_tokens=max_queue_tokens,
        on_batch=on_batch,
        on_lag=lambda seconds: None,
        on_loss=on_loss,
        on_stall=on_stall,
    )
    try:
        yield batcher
    finally:
        if isinstance(infer, Gate):
            infer.open()
        await batcher.drain(PATIENCE_S)


async def ask(
    batcher: MicroBatcher[str, str], *items: str, timeout_s: float = PATIENCE_S
) -> list[str | ServiceError]:
    return (await batcher.submit(items, timeout_s=timeout_s)).results


async def queued(
    batcher: MicroBatcher[str, str], *items: str, timeout_s: float = PATIENCE_S
) -> asyncio.Task[list[str | ServiceError]]:
    """Submit in a new task; the items are in the queue when this returns."""
    task = asyncio.create_task(ask(batcher, *items, timeout_s=timeout_s))
    await asyncio.sleep(0)  # submit queues in its first step, before it waits
    return task


def kinds(results: Sequence[str | ServiceError]) -> list[object]:
    """The results, with each error replaced by its class."""
    return [type(result) if isinstance(result, ServiceError) else result for result in results]


def run(scenario: Coroutine[None, None, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(2 * PATIENCE_S):
            await scenario

    asyncio.run(bounded())


# Batching


def test_concurrent_requests_each_get_their_own_answers() -> None:
    """Many requests of many sizes at once: each gets its own results, in its order."""

    async def scenario() -> None:
        requests = [[f"{n}-{i}-" + "x" * (i * n % 7) for i in range(n % 9 + 1)] for n in range(100)]
        async with batching(runners=3, max_batch_tokens=50, max_queue_tokens=10**6) as batcher:
            answers = await asyncio.gather(*(ask(batcher, *items) for items in requests))
            assert answers == [[item.upper() for item in items] for items in requests]
            assert (batcher.queued_texts, batcher.queued_tokens) == (0, 0)

    run(scenario())


def test_an_empty_request_is_answered_at_once() -> None:
    """A request without items gets an empty answer at once, and infer is not called."""

    async def scenario() -> None:
        gate = Gate()
        async with batching(gate) as batcher:
            empty = await queued(batcher)
            assert empty.done()
            assert empty.result() == []
        assert gate.batches == []

    run(scenario())


def test_what_waits_while_a_batch_runs_makes_the_next_batch() -> None:
    """Texts of different requests that wait together share a batch once the runner is free."""

    async def scenario() -> None:
        gate = Gate()
        async with batching(gate) as batcher:
            tasks = [await queued(batcher, "first")]
            await gate.entered()
            tasks += [await queued(batcher, item) for item in ("abc", "def", "ghi")]
            assert (batcher.queued_texts, batcher.queued_tokens) == (3, 9)
            gate.open()
            await asyncio.gather(*tasks)
        assert gate.batches == [["first"], ["abc", "def", "ghi"]]

    run(scenario())


def test_batches_keep_to_the_token_budget() -> None:
    """No batch given to infer exceeds the budget of padded tokens."""

    async def scenario() -> None:
        gate = Gate()
        gate.open()
        async with batching(gate, max_batch_tokens=20) as batcher:
            await ask(batcher, *["x" * (n % 10 + 1) for n in range(60)])
        assert len(gate.items) == 60
        assert max(len(batch) * max(map(len, batch)) for batch in gate.batches) <= 20

    run(scenario())


def test_idle_runners_share_a_request() -> None:
    """Two idle runners compute a request of sixteen texts as two batches of eight, in parallel."""

    async def scenario() -> None:
        gate = Gate()
        async with batching(gate, runners=2) as batcher:
            task = await queued(batcher, *["xxxx"] * 16)
            await gate.entered()
            await gate.entered()
            assert [len(batch) for batch in gate.batches] == [8, 8]
            gate.open()
            assert await task == ["XXXX"] * 16

    run(scenario())


def test_the_last_free_runner_takes_all_it_can() -> None:
    """While the other runner is busy, the free runner takes as many texts as fit."""

    async def scenario() -> None:
        gate = Gate()
        async with batching(gate, runners=2) as batcher:
            first = await queued(batcher, "first")
            await gate.entered()
            rest = await queued(batcher, *["xxxx"] * 16)
            await gate.entered()
            assert gate.batches == [["first"], ["xxxx"] * 16]
            gate.open()
            await asyncio.gather(first, rest)

    run(scenario())


def test_a_runner_that_finished_is_idle_again() -> None:
    """Every request that finds both runners free is shared by them, not only the first one."""

    async def scenario() -> None:
        gate = Gate()
        gate.open()
        async with batching(gate, runners=2) as batcher:
            for _ in range(20):
                await ask(batcher, "xxxx", "xxxx")
        assert [len(batch) for batch in gate.batches] == [1] * 40

    run(scenario())


def test_a_long_request_does_not_hold_up_a_short_one() -> None:
    """A single text that comes after a list of hundreds is in the next batch but one."""

    async def scenario() -> None:
        gate = Gate()
        async with batching(gate, max_batch_tokens=40, max_queue_tokens=10**6) as batcher:
            bulk = await queued(batcher, *["bulk"] * 500)
            await gate.entered()
            single = await queued(batcher, "solo")
            gate.open()
            assert await single == ["SOLO"]
            await bulk
        assert "solo" in gate.items[:30]

    run(scenario())


# Equal texts


def test_equal_texts_that_wait_are_computed_once() -> None:
    """Equal texts of several requests and of one list are one row, and each gets the result."""

    async def scenario() -> None:
        reports: list[BatchReport] = []
        gate = Gate()
        async with batching(gate, key=str, on_batch=reports.append) as batcher:
            first = await queued(batcher, "first")
            await gate.entered()
            tasks = [await queued(batcher, *items) for items in ("ab", "bb", "b", "cab")]
            assert (batcher.queued_texts, batcher.queued_tokens) == (8, 8)
            gate.open()
            assert await asyncio.gather(*tasks) == [["A", "B"], ["B"] * 2, ["B"], ["C", "A", "B"]]
            await first
        assert [sorted(batch) for batch in gate.batches] == [["first"], ["a", "b", "c"]]
        assert [(report.texts, report.tokens, report.shared) for report in reports] == [
            (1, 5, 0),
            (3, 3, 5),
        ]

    run(scenario())


def test_a_text_that_equals_one_being_computed_is_in_the_next_batch() -> None:
    """A text that comes while an equal one is computed is computed itself."""

    async def scenario() -> None:
        gate = Gate()
        async with batching(gate, key=str) as batcher:
            first = await queued(batcher, "a")
            await gate.entered()
            second = await queued(batcher, "a")
            gate.open()
            assert (await first, await second) == (["A"], ["A"])
        assert gate.batches == [["a"], ["a"]]

    run(scenario())


@pytest.mark.parametrize("leaving", [0, 1])
@pytest.mark.parametrize("computing", [False, True])
def test_one_of_two_equal_texts_is_cancelled(*, leaving: int, computing: bool) -> None:
    """Whichever client leaves, before or during the batch, the other one is answered."""

    async def scenario() -> None:
        gate = Gate()
        async with batching(gate, key=str) as batcher:
            first = await queued(batcher, "first")
            await gate.entered()
            tasks = [await queued(batcher, "a"), await queued(batcher, "a")]
            if computing:
                gate.open(1)
                await gate.entered()
            tasks[leaving].cancel()
            with pytest.raises(asyncio.CancelledError):
                await tasks[leaving]
            gate.open()
            assert await tasks[1 - leaving] == ["A"]
            await first
        assert gate.batches == [["first"], ["a"]]

    run(scenario())


@pytest.mark.parametrize("expiring", [0, 1])
@pytest.mark.parametrize("computing", [False, True])
def test_one_of_two_equal_texts_expires(*, expiring: int, computing: bool) -> None:
    """Each of two equal texts keeps its own deadline, before and during the batch."""

    async def scenario() -> None:
        gate = Gate()
        async with batching(gate, key=str) as batcher:
            first = await queued(batcher, "first")
            await gate.entered()
            times = [10.0**6] * 2
            times[expiring] = 5.0
            tasks = [await queued(batcher, "a", timeout_s=timeout_s) for timeout_s in times]
            if computing:
                gate.open(1)
                await gate.entered()
            jump(5)
            assert kinds(await tasks[expiring]) == [DeadlineExceeded]
            gate.open()
            assert await tasks[1 - expiring] == ["A"]
            await first
        assert gate.batches == [["first"], ["a"]]

    run(scenario())


def test_equal_texts_fail_together_and_alone_of_their_batch() -> None:
    """If a row fails, each text that shares it gets the error, and the other rows are computed."""
    calls: list[list[str]] = []

    def infer(items: Sequence[str]) -> list[str | ServiceError]:
        calls.append(list(items))
        if "evil" in items:
            raise ValueError
        return capitals(items)

    async def scenario() -> None:
        async with batching(infer, key=str) as batcher:
            results = await ask(batcher, "good", "evil", "evil", "good", "fine")
            expected = ["GOOD", InferenceFailed, InferenceFailed, "GOOD", "FINE"]
            assert kinds(results) == expected
            assert await ask(batcher, "after") == ["AFTER"]

    run(scenario())
    assert calls[0] == ["good", "evil", "fine"]


def test_equal_texts_of_a_lost_runner_fail(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the runner is lost, all texts that share a row fail at once; later ones are computed."""

    async def scenario() -> None:
        gate = Gate()
        async with batching(gate, key=str) as batcher:
            first = await queued(batcher, "first")
            await gate.entered()
            shared = [await queued(batcher, "a", "b"), await queued(batcher, "a")]
            gate.open(1)
            await first
            await gate.entered()
            later = await queued(batcher, "a")
            raising(monkeypatch, Admission, "learn", MemoryError, 1)
            gate.open()
            assert [kinds(await task) for task in shared] == [
                [InferenceFailed] * 2,
                [InferenceFailed],
            ]
            assert await later == ["A"]

    run(scenario())


def test_equal_texts_of_a_hanging_runner_fail(quick: None, clock: Clock) -> None:
    """The time that a batch may take is that of its rows, however many texts share them."""

    async def scenario() -> None:
        gate = Gate(clock.ten_tokens_a_second)
        async with batching(gate, key=str) as batcher:
            gate.open(1)
            await ask(batcher, "x" * 10)  # a second
            await gate.entered()
            first = await queued(batcher, "first")
            await gate.entered()
            shared = await queued(batcher, *["a"] * 500)  # a tenth of a second in one row
            gate.open(1)
            await first
            await gate.entered()
            assert kinds(await shared) == [InferenceFailed] * 500
            assert batcher.runners.stuck == 1
            gate.open()
            await until(lambda: batcher.runners.complete)

    run(scenario())


def test_the_time_of_a_shared_row_counts_for_each_request(clock: Clock) -> None:
    """Each request of a shared row has its inference time and is named in the batch's report."""

    async def scenario() -> None:
        reports: list[BatchReport] = []
        gate = Gate(clock.ten_tokens_a_second)
        async with batching(gate, key=str, on_batch=reports.append) as batcher:
            first = await queued(batcher, "first")
            await gate.entered()
            tasks = [
                asyncio.create_task(batcher.submit(["x" * 20], timeout_s=PATIENCE_S, tag=tag))
                for tag in ("one", "two")
            ]
            await asyncio.sleep(0)
            gate.open()
            answers = await asyncio.gather(*tasks)
            await first
        assert [answer.inference_seconds for answer in answers] == [pytest.approx(2.0)] * 2
        assert reports[1].tags == ("one", "two")

    run(scenario())


def test_equal_texts_end_with_the_batcher() -> None:
    """At the end of drain, equal texts that wait or are computed fail, and nobody waits on."""

    async def scenario() -> None:
        gate = Gate()
        async with batching(gate, key=str) as batcher:
            computed = await queued(batcher, "a", "a")
            await gate.entered()
            waiting = [await queued(batcher, "a"), await queued(batcher, "a")]
            assert not await batcher.drain(0.01)
            assert kinds(await computed) == [ShuttingDown] * 2
            assert [kinds(await task) for task in waiting] == [[ShuttingDown]] * 2

    run(scenario())


# Reports


def test_a_batch_is_reported(clock: Clock) -> None:
    """The hook gets the batch's sizes and cost, and whether others waited for its end."""

    async def scenario() -> None:
        reports: list[BatchReport] = []
        gate = Gate(clock.ten_tokens_a_second)
        async with batching(gate, on_batch=reports.append) as batcher:
            tasks = [await queued(batcher, "x" * 10)]
            await gate.entered()
            clock.now += 1
            tasks += [await queued(batcher, "x" * 19)]
            clock.now += 2
            tasks += [await queued(batcher, "x" * 21)]
            gate.open()
            await asyncio.gather(*tasks)
        assert reports == [
            BatchReport(1, 10, 10, 1000, inference_seconds=4.0, failed=0, others_waited=True),
            BatchReport(2, 40, 42, 1000, inference_seconds=4.0, failed=0, others_waited=False),
        ]

    run(scenario())


def test_batches_follow_the_budget(clock: Clock) -> None:
    """While much waits, one batch in eight has half or twice the current budget, and says so."""

    async def scenario() -> None:
        reports: list[BatchReport] = []
        budget = TokenBudget(20, fixed=False, least=10, most=40)
        gate = Gate()
        async with batching(
            gate, budget=budget, max_queue_tokens=10**6, on_batch=reports.append
        ) as batcher:
            first = await queued(batcher, "a")
            await gate.entered()
            tasks = [await queued(batcher, "x" * 5) for _ in range(200)]
            gate.open()
            await asyncio.gather(first, *tasks)
        full = [report for report in reports if report.others_waited]
        assert {report.max_tokens for report in full} == {10, 20, 40}
        assert all(report.padded_tokens <= report.max_tokens for report in reports)
        assert {report.padded_tokens for report in full[1:]} == {10, 20, 40}

    run(scenario())


def test_a_lists_own_computing_is_no_waiting(clock: Clock) -> None:
    """The time in which other texts of the same list are computed does not count as waiting."""

    async def scenario() -> None:
        async with batching(clock.ten_tokens_a_second, max_batch_tokens=10) as batcher:
            answer = await batcher.submit(["x" * 10, "y" * 20], timeout_s=PATIENCE_S)
            assert answer.queue_seconds == pytest.approx(0.0)
            assert answer.inference_seconds == pytest.approx(3.0)

    run(scenario())


def test_a_list_waits_while_others_are_computed(clock: Clock) -> None:
    """Time before a list's first batch and between its batches counts as queue time."""

    async def scenario() -> None:
        gate = Gate(clock.ten_tokens_a_second)
        async with batching(gate, max_batch_tokens=10) as batcher:
            first = await queued(batcher, "x" * 10)
            await gate.entered()
            listed = asyncio.create_task(batcher.submit(["a" * 10, "b" * 10], timeout_s=PATIENCE_S))
            await asyncio.sleep(0)
            between = await queued(batcher, "c" * 10)
            gate.open()
            await asyncio.gather(first, between)
            answer = await listed
            assert answer.inference_seconds == pytest.approx(2.0)
            assert answer.queue_seconds == pytest.approx(2.0)

    run(scenario())


@pytest.mark.parametrize("error", [ValueError("hook"), SystemExit(1)])
def test_a_raising_hook_costs_nobody_an_answer(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """An error raised by on_batch is logged; this batch and the next one are still answered."""

    def on_batch(report: BatchReport) -> None:
        raise error

    async def scenario() -> None:
        async with batching(on_batch=on_batch) as batcher:
            assert await ask(batcher, "a") == ["A"]
            assert await ask(batcher, "b") == ["B"]

    run(scenario())
    assert [record.exc_info[1] for record in caplog.records if record.exc_info] == [error] * 2


# Admission


def test_a_full_queue_refuses_at_once() -> None:
    """A request that would exceed the queue's limit is refused; one that just fits is admitted."""

    async def scenario() -> None:
        gate = Gate()
        async with batching(gate, max_queue_tokens=10) as batcher:
            tasks = [await queued(batcher, "first")]
            await gate.entered()
            tasks += [await queued(batcher, "x" * 4), await queued(batcher, "x" * 4)]
            with pytest.raises(Overloaded, match=r"8 tokens are waiting.* limit of 10") as refusal:
                await ask(batcher, "xx", "x")
            assert refusal.value.rejection == "queue_full"
            assert refusal.value.retry_after_s == 1.0  # nothing was measured yet
            assert (batcher.queued_texts, batcher.queued_tokens) == (2, 8)
            tasks += [await queued(batcher, "xx")]
            gate.open()
            assert await asyncio.gather(*tasks) == [["FIRST"], ["XXXX"], ["XXXX"], ["XX"]]

    run(scenario())


def test_one_request_may_fill_half_of_the_queue() -> None:
    """A request that would leave no room for others is refused for good, even by an empty queue."""

    async def scenario() -> None:
        async with batching(max_queue_tokens=10) as batcher:
            with pytest.raises(TooManyTexts, match="more than the 5 tokens"):
                await ask(batcher, "xxx", "xxx")
            assert await ask(batcher, "xxx", "xx") == ["XXX", "XX"]

    run(scenario())


def test_a_full_queue_tells_when_to_come_back(clock: Clock) -> None:
    """Retry-After is the time in which the excess tokens are computed."""

    async def scenario() -> None:
        gate = Gate(clock.ten_tokens_a_second)
        async with batching(gate, max_queue_tokens=40) as batcher:
            gate.open(1)
            await ask(batcher, "x" * 10)
            await gate.entered()
            tasks = [await queued(batcher, "x")]
            await gate.entered()
            tasks += [await queued(batcher, "x" * 15), await queued(batcher, "x" * 15)]
            with pytest.raises(Overloaded) as refusal:
                await ask(batcher, "x" * 20)
            assert refusal.value.retry_after_s == pytest.approx(1.0)
            gate.open()
            await asyncio.gather(*tasks)

    run(scenario())


@pytest.mark.parametrize(("runners", "wait_s"), [(1, 7.1 * CAUTION), (2, 4.05 * CAUTION)])
def test_a_request_that_cannot_make_its_deadline_is_refused(
    clock: Clock, runners: int, wait_s: float
) -> None:
    """A request is refused if its predicted wait, at the speed of all runners, exceeds its time.

    Tokens ahead count twice, because as many again may overtake to fill batches. The request's own
    batch, of one second here, must end in time as well.
    """

    async def scenario() -> None:
        gate = Gate(clock.ten_tokens_a_second)
        async with batching(gate, runners=runners) as batcher:
            gate.open(1)
            await ask(batcher, "x" * 10)
            await gate.entered()
            tasks = []
            for _ in range(runners):
                tasks += [await queued(batcher, "x")]
                await gate.entered()
            tasks += [await queued(batcher, "x" * 30)]
            with pytest.raises(Overloaded, match="30 tokens are ahead of this request") as refusal:
                await ask(batcher, "x", timeout_s=wait_s - 0.5)
            assert refusal.value.rejection == "deadline"
            assert refusal.value.retry_after_s == pytest.approx(0.5)
            tasks += [await queued(batcher, "x", timeout_s=wait_s + 20)]
            gate.open()
            assert await tasks[-1] == ["X"]
            await asyncio.gather(*tasks)

    run(scenario())


def test_the_predicted_wait_follows_the_latest_speed(clock: Clock) -> None:
    """When inference becomes slower, the prediction rises; failed batches do not count."""
    pace = 0.1

    def infer(items: Sequence[str]) -> list[str | ServiceError]:
        clock.now += pace * sum(map(len, items))
        if "bad" in items:
            raise ValueError
        return capitals(items)

    async def scenario() -> None:
        nonlocal pace
        gate = Gate(infer)
        gate.open(103)
        async with batching(gate) as batcher:
            await ask(batcher, "x" * 10)
            pace = 1.0
            for _ in range(100):
                await ask(batcher, "x" * 10)
            pace = 100.0
            await ask(batcher, "bad")
            await ask(batcher, "bad")
            for _ in range(103):
                await gate.entered()
            tasks = [await queued(batcher, "x")]
            await gate.entered()
            tasks += [await queued(batcher, "x" * 10)]
            with pytest.raises(Overloaded) as refusal:
                await ask(batcher, "x", timeout_s=1.0)
            assert refusal.value.retry_after_s == pytest.approx(31 * CAUTION - 1, rel=0.01)
            pace = 0.1
            gate.open()
            await asyncio.gather(*tasks)

    run(scenario())


# Deadlines and departures


def test_the_deadline_is_kept_though_the_runner_is_stuck() -> None:
    """Submit returns at the deadline even if infer still runs; waiting texts are not computed."""

    async def scenario() -> None:
        gate = Gate()
        async with batching(gate) as batcher:
            stuck = await queued(batcher, "stuck", timeout_s=5)
            await gate.entered()
            waiting = await queued(batcher, "a", "b", timeout_s=5)
            jump(5)
            assert kinds(await stuck) == [DeadlineExceeded]
            assert kinds(await waiting) == [DeadlineExceeded] * 2
            assert (batcher.queued_texts, batcher.queued_tokens) == (0, 0)
            gate.open()
            assert await ask(batcher, "after") == ["AFTER"]
        assert gate.batches == [["stuck"], ["after"]]

    run(scenario())


def test_results_that_came_in_time_are_kept() -> None:
    """At the deadline, texts already computed keep their results; only the others fail."""

    async def scenario() -> None:
        gate = Gate()
        async with batching(gate, max_batch_tokens=6) as batcher:
            first = await queued(batcher, "first")
            await gate.entered()
            request = await queued(batcher, "abc", "defghi", timeout_s=5)
            mate = await queued(batcher, "xyz")
            gate.open(2)
            assert await mate == ["XYZ"]
            jump(5)
            assert kinds(await request) == ["ABC", DeadlineExceeded]
            gate.open()
            await first
        assert gate.batches[1] == ["abc", "xyz"]

    run(scenario())


def test_expired_texts_are_not_computed_when_the_event_loop_is_late() -> None:
    """A runner skips texts past their deadline, even before the event loop has noticed."""

    async def scenario() -> None:
        gate = Gate()
        gate.open()
        async with batching(gate) as batcher:
            late = asyncio.create_task(ask(batcher, "late", timeout_s=0))
            in_time = asyncio.create_task(ask(batcher, "in time"))
            await asyncio.sleep(0)  # both are queued ...
            gate.wait_entered()  # ... and no timer fires while the loop is blocked here
            assert kinds(await late) == [DeadlineExceeded]
            assert await in_time == ["IN TIME"]
        assert gate.batches == [["in time"]]

    run(scenario())


def test_a_cancelled_request_is_not_computed() -> None:
    """When a client leaves, its waiting texts leave the queue at once; others are served."""

    async def scenario() -> None:
        gate = Gate()
        async with batching(gate) as batcher:
            first = await queued(batcher, "first")
            await gate.entered()
            gone, stays = await queued(batcher, "aa", "bb"), await queued(batcher, "cc")
            gone.cancel()
            with pytest.raises(asyncio.CancelledError):
                await gone
            assert (batcher.queued_texts, batcher.queued_tokens) == (1, 2)
            gate.open()
            assert (await first, await stays) == (["FIRST"], ["CC"])
        assert gate.batches == [["first"], ["cc"]]

    run(scenario())


def test_a_cancelled_request_does_not_harm_its_batch_mates() -> None:
    """When a client leaves during its batch, the other clients of the batch get their answers."""

    async def scenario() -> None:
        gate = Gate()
        async with batching(gate) as batcher:
            first = await queued(batcher, "first")
            await gate.entered()
            before, gone, after = [await queued(batcher, item) for item in ("aa", "bb", "cc")]
            gate.open(1)
            await gate.entered()
            assert gate.batches[1] == ["aa", "bb", "cc"]
            gone.cancel()
            gate.open()
            assert (await first, await before, await after) == (["FIRST"], ["AA"], ["CC"])
            with pytest.raises(asyncio.CancelledError):
                await gone
            assert await ask(batcher, "later") == ["LATER"]

    run(scenario())


# Failures


@pytest.mark.parametrize("error", [ValueError, MemoryError, SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("culprits", [{0}, {12}, {3, 4, 9}, set(range(13))])
def test_only_the_culprits_of_a_failed_batch_fail(
    error: type[BaseException], culprits: set[int], caplog: pytest.LogCaptureFixture
) -> None:
    """An error raised by infer fails only the texts that cause it; the runner goes on."""
    items = ["evil" if index in culprits else "good" for index in range(13)]

    def infer(items: Sequence[str]) -> list[str | ServiceError]:
        if "evil" in items:
            raise error("a secret")
        return capitals(items)

    async def scenario() -> None:
        async with batching(infer) as batcher:
            results = await ask(batcher, *items)
            assert kinds(results) == [
                InferenceFailed if item == "evil" else "GOOD" for item in items
            ]
            assert all("secret" not in str(result) for result in results)
            assert await ask(batcher, "after") == ["AFTER"]

    run(scenario())
    [record] = caplog.records  # one for the batch, none for its retries
    assert record.exc_info


def test_a_returned_error_fails_its_text_alone() -> None:
    """An error returned among the results belongs to its text alone, and nothing is retried."""
    error = ServiceError("not finite")

    async def scenario() -> None:
        gate = Gate(lambda items: [error if item == "bad" else item.upper() for item in items])
        gate.open()
        async with batching(gate) as batcher:
            assert await ask(batcher, "fun", "bad", "sun") == ["FUN", error, "SUN"]
        assert gate.batches == [["fun", "bad", "sun"]]

    run(scenario())


def test_a_wrong_number_of_results_is_a_failure() -> None:
    """If the number of results is wrong, the texts fail, because results cannot be matched."""

    def infer(items: Sequence[str]) -> list[str | ServiceError]:
        return [item.upper() for item in items if item != "bad"]

    async def scenario() -> None:
        async with batching(infer) as batcher:
            assert kinds(await ask(batcher, "bad", "fun", "sun")) == [InferenceFailed, "FUN", "SUN"]

    run(scenario())


def test_failing_after_several_failed_batches_in_a_row() -> None:
    """Inference is failing after several batches in a row without an answer, until one succeeds."""

    def infer(items: Sequence[str]) -> list[str | ServiceError]:
        return [InferenceFailed("") if item == "bad" else item.upper() for item in items]

    async def scenario() -> None:
        async with batching(infer) as batcher:
            for _ in range(FAILING_AFTER - 1):
                await ask(batcher, "bad")
            await ask(batcher, "bad", "fun")
            for _ in range(FAILING_AFTER - 1):
                await ask(batcher, "bad")
            assert not batcher.failing
            await ask(batcher, "bad")
            assert batcher.failing
            await ask(batcher, "fun")
            assert not batcher.failing

    run(scenario())


def test_a_closed_loop_does_not_end_the_runner() -> None:
    """Results for a closed event loop are dropped, and the runner takes the next batch."""
    gate = Gate()
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)  # of tasks that never end

    async def scenario() -> list[asyncio.Task[list[str | ServiceError]]]:
        batcher = MicroBatcher(
            gate,
            key=distinct,
            runners=1,
            budget=TokenBudget(4),
            max_queue_tokens=100,
            on_batch=lambda report: None,
            on_lag=lambda seconds: None,
            on_loss=lambda: None,
            on_stall=lambda: None,
        )
        return [await queued(batcher, "aaaa"), await queued(batcher, "bbbb")]

    tasks = loop.run_until_complete(scenario())
    loop.close()
    gate.open()
    gate.wait_entered()
    gate.wait_entered()
    assert gate.batches == [["aaaa"], ["bbbb"]]
    assert not any(task.done() for task in tasks)


# Memory that runs out, and a device that is lost


def fitting(most: int) -> tuple[list[int], Infer]:
    """An infer for at most so many padded tokens, and the padded tokens of each of its calls."""
    calls: list[int] = []

    def infer(items: Sequence[str]) -> list[str | ServiceError]:
        calls.append(len(items) * max(map(len, items)))
        if calls[-1] > most:
            raise OutOfMemory("too little memory") from RuntimeError(
                "CUDA failure 2: out of memory"
            )
        return capitals(items)

    return calls, infer


def test_a_batch_that_does_not_fit_is_computed_in_parts(caplog: pytest.LogCaptureFixture) -> None:
    """No text is lost, and later batches are so small that they fit at once."""
    calls, infer = fitting(40)
    reports: list[BatchReport] = []

    async def scenario() -> None:
        budget = TokenBudget(160)
        async with batching(infer, budget=budget, on_batch=reports.append) as batcher:
            assert await ask(batcher, *["xxxx"] * 40) == ["XXXX"] * 40
            assert budget.tokens == 40
            assert not batcher.failing

    run(scenario())
    assert calls == [160, 80, 40, 40, 80, 40, 40]
    [report] = reports
    assert (report.retried, report.out_of_memory, report.failed) == (True, True, 0)
    assert caplog.messages[0].endswith("CUDA failure 2: out of memory")
    assert len(caplog.messages) == 2  # for 160 tokens and for 80, not again for the other 80

    calls.clear()

    async def after() -> None:
        budget = TokenBudget(160)
        budget.lower(80, "out of memory")
        async with batching(infer, budget=budget) as batcher:
            assert await ask(batcher, *["xxxx"] * 40) == ["XXXX"] * 40

    run(after())
    assert calls == [40] * 4


def test_a_text_that_does_not_fit_alone_fails_alone() -> None:
    """It gets an error of its own kind, and does not lower the budget below what others need."""
    _, infer = fitting(40)

    async def scenario() -> None:
        budget = TokenBudget(100)
        async with batching(infer, budget=budget) as batcher:
            assert kinds(await ask(batcher, "x" * 50)) == [OutOfMemory]
            assert budget.tokens == 100
            results = await ask(batcher, "x" * 50, "y" * 40)
            assert kinds(results) == [OutOfMemory, "Y" * 40]

    run(scenario())


def test_a_batch_computed_in_parts_tells_nothing_of_the_speed(clock: Clock) -> None:
    """Failed attempts take time, which does not count for the predicted wait."""
    first = iter([OutOfMemory("too little memory")])

    def infer(items: Sequence[str]) -> list[str | ServiceError]:
        for error in first:
            clock.now += 1000.0
            raise error
        return clock.ten_tokens_a_second(items)

    async def scenario() -> None:
        async with batching(infer) as batcher:
            await ask(batcher, "x" * 10, "x" * 10)
            await ask(batcher, "x" * 10)
            assert batcher._admission.batch_seconds(10) == pytest.approx(1.0)

    run(scenario())


def test_on_a_lost_device_nothing_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """A batch of 64 texts fails with one call; later requests are refused; one line says why."""
    calls = []

    def infer(items: Sequence[str]) -> list[str | ServiceError]:
        calls.append(len(items))
        if "dead" in items:
            raise DeviceLost("the GPU cannot be used any more")
        return capitals(items)

    async def scenario() -> None:
        async with batching(infer) as batcher:
            assert await ask(batcher, "before") == ["BEFORE"]
            assert batcher.device_lost is None
            assert kinds(await ask(batcher, "dead", *["fine"] * 63)) == [NotReady] * 64
            assert batcher.device_lost == "the GPU cannot be used any more"
            assert batcher.failing
            with pytest.raises(NotReady, match="the GPU cannot be used any more"):
                await ask(batcher, "after")

    run(scenario())
    assert calls == [1, 64]
    [record] = caplog.records
    assert (record.levelname, bool(record.exc_info)) == ("CRITICAL", True)


def test_texts_that_wait_for_a_lost_device_get_its_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Two runners and waiting texts: each text is tried once, and the loss is logged once."""

    def infer(items: Sequence[str]) -> list[str | ServiceError]:
        raise DeviceLost("gone")

    async def scenario() -> None:
        gate = Gate(infer)
        async with batching(gate, runners=2, max_batch_tokens=8) as batcher:
            tasks = [await queued(batcher, *["xxxx"] * 8) for _ in range(4)]
            await gate.entered()
            await gate.entered()
            gate.open()
            assert [kinds(results) for results in await asyncio.gather(*tasks)] == [
                [NotReady] * 8
            ] * 4
        # The number of batches varies: two idle runners share the last texts.
        assert len(gate.items) == 32

    run(scenario())
    assert [record.levelname for record in caplog.records] == ["CRITICAL"]


def test_a_loss_among_the_parts_of_a_batch_ends_them() -> None:
    """Results that were computed before the loss are kept; the rest is not tried any more."""
    calls = []

    def infer(items: Sequence[str]) -> list[str | ServiceError]:
        calls.append(list(items))
        if "evil" in items:
            raise DeviceLost("gone") if len(items) == 1 else ValueError
        return capitals(items)

    async def scenario() -> None:
        async with batching(infer) as batcher:
            results = await ask(batcher, "good", "good", "evil", "good")
            assert kinds(results) == ["GOOD", "GOOD", NotReady, NotReady]

    run(scenario())
    assert len(calls) == 4


# Runners that are lost, and runners that hang


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set short times, so that hanging runners are found and replaced within a test."""
    monkeypatch.setattr("app.engine.batching.runners.RESTART_PAUSE_S", 0.01)
    monkeypatch.setattr("app.engine.batching.runners.STUCK_LEAST_S", 0.3)
    monkeypatch.setattr("app.engine.batching.runners.WATCH_S", 0.05)


def raising(
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    error: type[BaseException],
    times: int,
) -> None:
    """Make a method raise at its next calls."""
    method = getattr(owner, name)
    left = itertools.repeat(error, times)

    def replacement(*args: Any, **kwargs: Any) -> Any:
        for kind in left:
            raise kind("a fault")
        return method(*args, **kwargs)

    monkeypatch.setattr(owner, name, replacement)


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(eventually, condition)


@pytest.mark.parametrize("error", [ValueError, MemoryError, SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("runners", [1, 2])
def test_a_runner_that_is_lost_while_it_waits_is_replaced(
    error: type[BaseException],
    runners: int,
    quick: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The lost runner is counted and logged with its traceback; a later one answers the text."""
    lost: list[None] = []

    async def scenario() -> None:
        async with batching(runners=runners, on_loss=lambda: lost.append(None)) as batcher:
            assert await ask(batcher, "before") == ["BEFORE"]
            raising(monkeypatch, FairQueue, "take_batch", error, 2)
            assert await ask(batcher, "a", "b") == ["A", "B"]
            await until(lambda: batcher.runners.complete)
            assert not batcher.failing
            assert (batcher.queued_texts, batcher.queued_tokens) == (0, 0)

    run(scenario())
    assert len(lost) == 2
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [error] * 2


def test_what_a_lost_runner_was_woken_for_another_takes(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text does not wait for the replacement thread if another runner is free."""

    async def scenario() -> None:
        monkeypatch.setattr("app.engine.batching.runners.RESTART_PAUSE_S", 600.0)
        async with batching(runners=2) as batcher:
            assert await ask(batcher, "before") == ["BEFORE"]
            raising(monkeypatch, FairQueue, "take_batch", MemoryError, 1)
            assert await ask(batcher, "a") == ["A"]
            await batcher.drain(0.1)

    run(scenario())


def test_a_runner_that_cannot_tell_its_end_is_replaced(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a runner cannot notify the event loop, for lack of memory, the next check finds it."""

    async def scenario() -> None:
        async with batching() as batcher:
            assert await ask(batcher, "before") == ["BEFORE"]
            monkeypatch.setattr("threading.excepthook", lambda args: None)
            raising(monkeypatch, Runners, "call_on_loop", MemoryError, 2)
            results = await ask(batcher, "a")  # this has a result that cannot be told, either
            assert kinds(results) == [InferenceFailed]
            assert await ask(batcher, "b") == ["B"]

    run(scenario())


def test_the_batch_of_a_lost_runner_fails(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost runner's batch fails at once; the next runner computes the waiting texts."""

    async def scenario() -> None:
        gate = Gate()
        async with batching(gate) as batcher:
            first = await queued(batcher, "a", "b")
            await gate.entered()
            waiting = await queued(batcher, "c")
            raising(monkeypatch, Admission, "learn", MemoryError, 1)
            gate.open()
            assert kinds(await first) == [InferenceFailed] * 2
            assert await waiting == ["C"]

    run(scenario())


def test_a_thread_that_cannot_be_started_is_tried_again(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a thread cannot start, at first or later, texts are answered as soon as one can."""

    async def scenario() -> None:
        raising(monkeypatch, threading.Thread, "start", RuntimeError, 2)
        async with batching() as batcher:
            assert not batcher.runners.complete
            assert await ask(batcher, "a") == ["A"]
            assert batcher.runners.complete

    run(scenario())


def test_without_hope_nothing_waits(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """If runners are lost again and again, texts fail, until a batch succeeds."""

    async def scenario() -> None:
        async with batching(runners=2) as batcher:
            with monkeypatch.context() as patch:
                raising(patch, FairQueue, "take_batch", MemoryError, 10**9)
                assert kinds(await ask(batcher, "a", "b")) == [NotReady] * 2
                assert batcher.runners.hopeless
                assert batcher.failing
            assert await ask(batcher, "c") == ["C"]
            assert not batcher.runners.hopeless
            await until(lambda: batcher.runners.complete)

    run(scenario())


def test_a_batch_that_hangs_fails_before_its_deadline(
    quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    """A hanging batch's texts get an error, logged and counted once; none is admitted meanwhile.

    If the runner returns, its results are dropped, and everything works again.
    """
    stalls: list[None] = []

    async def scenario() -> None:
        gate = Gate()
        async with batching(gate, on_stall=lambda: stalls.append(None)) as batcher:
            assert not stalls
            stuck = await queued(batcher, "a", "b", timeout_s=10**6)
            await gate.entered()
            waiting = await queued(batcher, "c", timeout_s=10**6)
            assert kinds(await stuck) == [InferenceFailed] * 2
            assert kinds(await waiting) == [NotReady]
            assert batcher.runners.stuck == 1
            assert batcher.runners.hopeless
            with pytest.raises(NotReady):
                await ask(batcher, "d")
            gate.open()
            await until(lambda: batcher.runners.complete)
            assert await ask(batcher, "e") == ["E"]

    run(scenario())
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert len(stalls) == 1


def test_a_batch_that_is_expected_to_take_long_does_not_hang(quick: None, clock: Clock) -> None:
    """A batch may take many times the duration that the measured speed predicts."""

    async def scenario() -> None:
        gate = Gate(clock.ten_tokens_a_second)
        async with batching(gate) as batcher:
            gate.open(1)
            await ask(batcher, "x" * 10)
            await gate.entered()
            slow = await queued(batcher, "x" * 10)  # about 1 s
            await asyncio.sleep(0.8)
            gate.open()
            assert await slow == ["X" * 10]

    run(scenario())


def test_where_one_runner_hangs_the_other_answers(quick: None) -> None:
    """If one runner hangs, only its text fails; the other runner answers the rest."""

    async def scenario() -> None:
        gate = Gate()
        async with batching(gate, runners=2) as batcher:
            stuck = await queued(batcher, "stuck")
            await gate.entered()
            assert kinds(await stuck) == [InferenceFailed]
            assert not batcher.runners.complete
            assert not batcher.runners.hopeless
            other = await queued(batcher, "other")
            await gate.entered()
            gate.open()
            assert await other == ["OTHER"]

    run(scenario())


def test_the_predicted_wait_is_that_for_the_runners_that_work(
    quick: None, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If one of two runners hangs, the predicted wait is twice as long."""
    monkeypatch.setattr("app.engine.batching.runners.STUCK_FACTOR", 1)

    async def scenario() -> None:
        gate = Gate(clock.ten_tokens_a_second)
        async with batching(gate, runners=2) as batcher:
            gate.open(1)
            await ask(batcher, "x" * 10)
            await gate.entered()
            await ask(batcher, "stuck")
            await gate.entered()
            running = await queued(batcher, "x")
            await gate.entered()
            waiting = await queued(batcher, "x" * 30)
            with pytest.raises(Overloaded) as refusal:
                await ask(batcher, "x", timeout_s=1)
            assert refusal.value.retry_after_s == pytest.approx(7.1 * CAUTION - 1)
            gate.open()
            await asyncio.gather(running, waiting)

    run(scenario())


def test_time_in_which_the_process_stood_still_is_not_the_batchs(
    quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    """After SIGCONT, or after the machine wakes up, a running batch may go on and is answered."""

    async def scenario() -> None:
        gate = Gate()
        async with batching(gate) as batcher:
            task = await queued(batcher, "a")
            gate.wait_entered()
            time.sleep(0.6)  # noqa: ASYNC251 - nothing moves meanwhile
            gate.open()
            assert await task == ["A"]

    run(scenario())
    assert caplog.records == []


def test_a_hang_tells_nothing_of_the_speed(quick: None, clock: Clock) -> None:
    """A batch that hung and returned does not change the predicted speed."""

    async def scenario() -> None:
        gate = Gate()
        async with batching(gate) as batcher:
            gate.open(1)
            await ask(batcher, "x")
            await gate.entered()
            stuck = await queued(batcher, "x")
            await gate.entered()
            assert kinds(await stuck) == [InferenceFailed]
            clock.now += 1000
            gate.open(1)
            await until(lambda: batcher.runners.complete)
            tasks = [await queued(batcher, "x")]
            await gate.entered()
            tasks += [await queued(batcher, "x"), await queued(batcher, "x")]  # or it refuses
            gate.open()
            assert await asyncio.gather(*tasks) == [["X"]] * 3

    run(scenario())


def test_an_idle_batcher_sets_no_timer() -> None:
    """When the last request has its answer, no timer wakes the event loop any more."""

    async def scenario() -> None:
        batcher = MicroBatcher(
            capitals,
            key=distinct,
            runners=2,
            budget=TokenBudget(100),
            max_queue_tokens=100,
            on_batch=lambda report: None,
            on_lag=lambda seconds: None,
            on_loss=lambda: None,
            on_stall=lambda: None,
        )
        assert await ask(batcher, "a") == ["A"]
        await asyncio.sleep(2 * WATCH_S)
        await asyncio.get_running_loop().create_future()  # with a timer, this would be endless

    with pytest.raises(Stuck, match="2 threads idle"):
        Simulation().run(scenario())


# Shutdown


def test_drain_finishes_what_was_admitted_and_admits_no_more() -> None:
    """During drain, submit refuses; running and waiting texts get answers; then the runners end."""

    async def scenario() -> None:
        gate = Gate()
        threads_before = set(threading.enumerate())
        async with batching(gate, runners=2) as batcher:
            runners = set(threading.enumerate()) - threads_before
            tasks = []
            for item in ("first", "second"):
                tasks += [await queued(batcher, item)]
                await gate.entered()
            tasks += [await queued(batcher, "waiting")]
            drained = asyncio.create_task(batcher.drain(PATIENCE_S))
            await asyncio.sleep(0)
            with pytest.raises(ShuttingDown) as refusal:
                await ask(batcher, "new")
            assert refusal.value.retry_after_s == 1.0
            assert not drained.done()
            gate.open()
            await drained
            assert await asyncio.gather(*tasks) == [["FIRST"], ["SECOND"], ["WAITING"]]
            await batcher.drain(PATIENCE_S)
            assert len(runners) == 2
            for runner in runners:
                runner.join(PATIENCE_S)
                assert not runner.is_alive()

    run(scenario())


def test_drain_gives_up_in_time() -> None:
    """When drain's time is over, unfinished texts fail, running or waiting; none hangs."""

    async def scenario() -> None:
        gate = Gate()
        async with batching(gate) as batcher:
            stuck = await queued(batcher, "stuck")
            await gate.entered()
            waiting = await queued(batcher, "a", "b")
            await batcher.drain(0)
            assert kinds(await stuck) == [ShuttingDown]
            assert kinds(await waiting) == [ShuttingDown] * 2
            assert (batcher.queued_texts, batcher.queued_tokens) == (0, 0)
            gate.open()
            await batcher.drain(PATIENCE_S)
        assert gate.batches == [["stuck"]]

    run(scenario())


@pytest.mark.parametrize(("pause_s", "answer"), [(0.01, "A"), (600.0, ShuttingDown)])
def test_drain_ends_with_a_lost_runner(
    pause_s: float, answer: object, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replacement thread computes the waiting texts, or they fail when drain's time is over."""

    async def scenario() -> None:
        monkeypatch.setattr("app.engine.batching.runners.RESTART_PAUSE_S", pause_s)
        raising(monkeypatch, FairQueue, "take_batch", MemoryError, 1)
        async with batching() as batcher:
            await until(lambda: not batcher.runners.complete)
            task = await queued(batcher, "a")
            assert await batcher.drain(PATIENCE_S if pause_s < 1 else 0.1)
            assert kinds(await task) == [answer]

    run(scenario())


def test_drain_ends_with_a_runner_that_hangs(quick: None) -> None:
    """With a hanging runner, drain returns in time and reports that not all runners have ended."""

    async def scenario() -> None:
        gate = Gate()
        async with batching(gate) as batcher:
            stuck = await queued(batcher, "stuck")
            await gate.entered()
            assert kinds(await stuck) == [InferenceFailed]
            assert not await batcher.drain(0.1)

    run(scenario())


def test_a_single_text_is_admitted_beside_a_long_list(clock: Clock) -> None:
    """A single text is admitted by the wait for its own turn, not for everything that waits."""

    async def scenario() -> None:
        gate = Gate(clock.ten_tokens_a_second)
        async with batching(gate, max_batch_tokens=10) as batcher:
            gate.open(1)
            await ask(batcher, "x" * 10)
            await gate.entered()
            running = await queued(batcher, "x")
            await gate.entered()
            bulk = await queued(batcher, *["x" * 10] * 40)  # 40 s of work
            single = await queued(batcher, "x", timeout_s=25)
            assert batcher.queued_texts == 41
            gate.open()
            assert await single == ["X"]
            bulk.cancel()  # on this clock its deadline has passed, but no timer will tell
            await asyncio.wait([running, bulk])

    run(scenario())
