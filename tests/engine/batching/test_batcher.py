"""The batcher: equal texts and reports. test_batcher_simulation.py proves the rest of it."""

import asyncio
from collections.abc import Sequence

import pytest

from app.engine.batching.budget import TokenBudget
from app.engine.batching.inference import BatchReport
from app.errors import DeadlineExceeded, InferenceFailed, ServiceError
from tests.support.batching import (
    PATIENCE_S,
    Clock,
    Gate,
    ask,
    batching,
    begun,
    capitals,
    jump,
    kinds,
    measured,
    queued,
    until,
)

# Equal texts


async def test_equal_texts_that_wait_are_computed_once() -> None:
    """Equal texts of several requests and of one list are one row, and each gets the result."""
    reports: list[BatchReport] = []
    gate = Gate()
    async with batching(gate, key=str, on_batch=reports.append) as batcher:
        first = await begun(batcher, gate, "first")
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


@pytest.mark.parametrize("expires", [False, True])
@pytest.mark.parametrize("leaving", [0, 1])
@pytest.mark.parametrize("computing", [False, True])
async def test_one_of_two_equal_texts_leaves(
    *, expires: bool, leaving: int, computing: bool
) -> None:
    """Whichever client leaves or has its deadline, before or during the batch: the other one is
    answered."""
    gate = Gate()
    async with batching(gate, key=str) as batcher:
        first = await begun(batcher, gate, "first")
        times = [10.0**6] * 2
        times[leaving] = 5.0
        tasks = [await queued(batcher, "a", timeout_s=timeout_s) for timeout_s in times]
        if computing:
            gate.open(1)
            await gate.entered()
        if expires:
            jump(5)
            assert kinds(await tasks[leaving]) == [DeadlineExceeded]
        else:
            tasks[leaving].cancel()
            with pytest.raises(asyncio.CancelledError):
                await tasks[leaving]
        gate.open()
        assert await tasks[1 - leaving] == ["A"]
        await first
    assert gate.batches == [["first"], ["a"]]


async def test_equal_texts_fail_together_and_alone_of_their_batch() -> None:
    """If a row fails, each text that shares it gets the error, and the other rows are computed."""
    calls: list[list[str]] = []

    def infer(items: Sequence[str]) -> list[str | ServiceError]:
        calls.append(list(items))
        if "evil" in items:
            raise ValueError
        return capitals(items)

    async with batching(infer, key=str) as batcher:
        results = await ask(batcher, "good", "evil", "evil", "good", "fine")
        expected = ["GOOD", InferenceFailed, InferenceFailed, "GOOD", "FINE"]
        assert kinds(results) == expected
        assert await ask(batcher, "after") == ["AFTER"]
    assert calls[0] == ["good", "evil", "fine"]


async def test_equal_texts_of_a_hanging_runner_fail(quick: None, clock: Clock) -> None:
    """The time that a batch may take is that of its rows, however many texts share them."""
    async with measured(clock, key=str) as (batcher, gate):
        first = await begun(batcher, gate, "first")
        shared = await queued(batcher, *["a"] * 500)  # a tenth of a second in one row
        gate.open(1)
        await first
        await gate.entered()
        assert kinds(await shared) == [InferenceFailed] * 500
        assert batcher.runners.stuck == 1
        gate.open()
        await until(lambda: batcher.runners.complete)


async def test_the_time_of_a_shared_row_counts_for_each_request(clock: Clock) -> None:
    """Each request of a shared row has its inference time and is named in the batch's report."""
    reports: list[BatchReport] = []
    gate = Gate(clock.ten_tokens_a_second)
    async with batching(gate, key=str, on_batch=reports.append) as batcher:
        first = await begun(batcher, gate, "first")
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


# Reports


async def test_a_batch_is_reported(clock: Clock) -> None:
    """The hook gets the batch's sizes and cost, and whether others waited for its end."""
    reports: list[BatchReport] = []
    gate = Gate(clock.ten_tokens_a_second)
    async with batching(gate, on_batch=reports.append) as batcher:
        tasks = [await begun(batcher, gate, "x" * 10)]
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


async def test_batches_follow_the_budget(clock: Clock) -> None:
    """While much waits, one batch in eight has half or twice the current budget, and says so."""
    reports: list[BatchReport] = []
    budget = TokenBudget(20, fixed=False, least=10, most=40)
    gate = Gate()
    async with batching(
        gate, budget=budget, max_queue_tokens=10**6, on_batch=reports.append
    ) as batcher:
        first = await begun(batcher, gate, "a")
        tasks = [await queued(batcher, "x" * 5) for _ in range(200)]
        gate.open()
        await asyncio.gather(first, *tasks)
    full = [report for report in reports if report.others_waited]
    assert {report.max_tokens for report in full} == {10, 20, 40}
    assert all(report.padded_tokens <= report.max_tokens for report in reports)
    assert {report.padded_tokens for report in full[1:]} == {10, 20, 40}


@pytest.mark.parametrize("error", [ValueError("hook"), SystemExit(1)])
async def test_a_raising_hook_costs_nobody_an_answer(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """An error raised by on_batch is logged; this batch and the next one are still answered."""

    def on_batch(report: BatchReport) -> None:
        raise error

    async with batching(on_batch=on_batch) as batcher:
        assert await ask(batcher, "a") == ["A"]
        assert await ask(batcher, "b") == ["B"]
    assert [record.exc_info[1] for record in caplog.records if record.exc_info] == [error] * 2
