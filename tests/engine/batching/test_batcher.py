"""The batcher's reports. test_batcher_simulation.py proves the rest of it."""

import asyncio

import pytest

from app.engine.batching.budget import TokenBudget
from app.engine.batching.inference import BatchReport
from tests.support.batching import (
    Clock,
    Gate,
    ask,
    batching,
    begun,
    queued,
)


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
