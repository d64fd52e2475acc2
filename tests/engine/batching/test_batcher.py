"""The batcher's reports. test_batcher_simulation.py proves the rest of it."""

import asyncio

import pytest
from sentiment_service.engine.batching.fair_queue import BatchReport

from tests.support.batching import (
    Clock,
    Gate,
    ask,
    batching,
    begun,
    queued,
)


async def test_a_batch_is_reported() -> None:
    """The hook gets the batch's sizes and cost."""
    clock = Clock()
    reports: list[BatchReport] = []
    gate = Gate(clock.ten_tokens_a_second)
    async with batching(gate, clock=clock, batch=reports.append) as batcher:
        tasks = [await begun(batcher, gate, "x" * 10)]
        clock.now += 1
        tasks += [await queued(batcher, "x" * 19)]
        clock.now += 2
        tasks += [await queued(batcher, "x" * 21)]
        gate.open()
        await asyncio.gather(*tasks)
    assert reports == [
        BatchReport(1, 10, 10, started=1000.0, ended=1004.0, failed=0),
        BatchReport(2, 40, 42, started=1004.0, ended=1008.0, failed=0),
    ]


@pytest.mark.parametrize("error", [ValueError("hook"), SystemExit(1)])
async def test_a_raising_hook_costs_nobody_an_answer(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """An error raised by the observer is logged; this batch and the next one are still answered."""

    def on_batch(report: BatchReport) -> None:
        raise error

    async with batching(batch=on_batch) as batcher:
        assert await ask(batcher, "a") == ["A"]
        assert await ask(batcher, "b") == ["B"]
    assert [record.exc_info[1] for record in caplog.records if record.exc_info] == [error] * 2
