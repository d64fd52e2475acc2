"""Batches that fail, memory that runs out, and a device that is lost."""

import asyncio
import gc
import weakref
from collections.abc import Sequence

import pytest
from sentiment_service.engine.batching.batcher import infer_each
from sentiment_service.engine.batching.fair_queue import BatchReport, TokenBudget
from sentiment_service.errors import (
    DeviceLost,
    InferenceFailed,
    NotReady,
    OutOfMemory,
    ServiceError,
)

from tests.support.batching import (
    Clock,
    Gate,
    Infer,
    ask,
    batcher_of,
    batching,
    capitals,
    kinds,
    queued,
)

# Failures


@pytest.mark.parametrize("error", [ValueError, MemoryError, SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("culprits", [{0}, {12}, {3, 4, 9}, set(range(13))])
async def test_only_the_culprits_of_a_failed_batch_fail(
    error: type[BaseException], culprits: set[int], caplog: pytest.LogCaptureFixture
) -> None:
    """An error raised by infer fails only the texts that cause it; the runner goes on."""
    items = ["evil" if index in culprits else "good" for index in range(13)]

    def infer(items: Sequence[str]) -> list[str | ServiceError]:
        if "evil" in items:
            raise error("a secret")
        return capitals(items)

    async with batching(infer) as batcher:
        results = await ask(batcher, *items)
        assert kinds(results) == [InferenceFailed if item == "evil" else "GOOD" for item in items]
        assert all("secret" not in str(result) for result in results)
        assert await ask(batcher, "after") == ["AFTER"]
    [record] = caplog.records  # one for the batch, none for its retries
    assert record.exc_info


@pytest.mark.parametrize("error", [ValueError, OutOfMemory])
def test_a_failed_attempt_is_freed_before_its_halves_are_computed(
    error: type[Exception],
) -> None:
    """What a failed attempt has allocated is freed before the next one, and needs no collector.

    The next one may need this memory: the first may have failed because there was too little.
    """

    class Text(str):  # unlike a plain one, it can be referred to weakly
        def fail(self) -> None:
            attempts.append(weakref.ref(self))
            raise RuntimeError("deep inside")

    attempts: list[weakref.ref[Text]] = []
    kept: list[int] = []

    def infer(items: Sequence[str]) -> list[str | ServiceError]:
        kept.append(sum(attempt() is not None for attempt in attempts))
        try:
            Text("memory").fail()
        except RuntimeError as cause:
            raise error("it failed") from cause
        raise AssertionError

    gc.disable()
    try:
        items = [Text("a"), Text("b")]
        item = weakref.ref(items[0])
        results, raised = infer_each(infer, items, TokenBudget(tokens=8))
        del items
        assert (len(results), len(raised)) == (2, 3)
        assert kept == [0, 0, 0]
        assert [attempt() for attempt in attempts] == [None] * 3
        assert item() is None
    finally:
        gc.enable()


def test_a_closed_loop_does_not_end_the_runner() -> None:
    """Results for a closed event loop are dropped, and the runner takes the next batch."""
    gate = Gate()
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)  # of tasks that never end

    async def scenario() -> list[asyncio.Task[list[str | ServiceError]]]:
        batcher = batcher_of(gate, max_batch_tokens=4)
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


async def test_a_batch_that_does_not_fit_is_computed_in_parts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No text is lost, the budget is lowered, and the log names each size that did not fit."""
    calls, infer = fitting(40)
    reports: list[BatchReport] = []

    budget = TokenBudget(160)
    async with batching(infer, budget=budget, batch=reports.append) as batcher:
        assert await ask(batcher, *["xxxx"] * 40) == ["XXXX"] * 40
        assert budget.tokens == 40
        assert not batcher.failing
    assert calls == [160, 80, 40, 40, 80, 40, 40]
    [report] = reports
    assert [type(error) for error in report.raised] == [OutOfMemory] * 3
    assert (report.out_of_memory, report.failed) == (True, 0)
    assert caplog.messages[0].endswith("CUDA failure 2: out of memory")
    assert len(caplog.messages) == 2  # for 160 tokens and for 80, not again for the other 80


async def test_a_batch_computed_in_parts_tells_nothing_of_the_speed() -> None:
    """Failed attempts take time, which does not count for the predicted wait."""
    clock = Clock()
    first = iter([OutOfMemory("too little memory")])

    def infer(items: Sequence[str]) -> list[str | ServiceError]:
        for error in first:
            clock.now += 1000.0
            raise error
        return clock.ten_tokens_a_second(items)

    async with batching(infer, clock=clock) as batcher:
        await ask(batcher, "x" * 10, "x" * 10)
        await ask(batcher, "x" * 10)
        assert batcher._admission.seconds_per_token == pytest.approx(0.1)


async def test_on_a_lost_device_nothing_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """A batch of 64 texts fails with one call; later requests are refused; one line says why."""
    calls = []

    def infer(items: Sequence[str]) -> list[str | ServiceError]:
        calls.append(len(items))
        if "dead" in items:
            raise DeviceLost("the GPU cannot be used any more")
        return capitals(items)

    async with batching(infer) as batcher:
        assert await ask(batcher, "before") == ["BEFORE"]
        assert batcher.device_lost is None
        assert kinds(await ask(batcher, "dead", *["fine"] * 63)) == [NotReady] * 64
        assert batcher.device_lost == "the GPU cannot be used any more"
        assert batcher.failing
        with pytest.raises(NotReady, match="the GPU cannot be used any more"):
            await ask(batcher, "after")
    assert calls == [1, 64]
    [record] = caplog.records
    assert (record.levelname, bool(record.exc_info)) == ("CRITICAL", True)


async def test_texts_that_wait_for_a_lost_device_get_its_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Two runners and waiting texts: each text is tried once, and the loss is logged once."""

    def infer(items: Sequence[str]) -> list[str | ServiceError]:
        raise DeviceLost("gone")

    gate = Gate(infer)
    async with batching(gate, runners=2, max_batch_tokens=8) as batcher:
        tasks = [await queued(batcher, *["xxxx"] * 8) for _ in range(4)]
        await gate.entered()
        await gate.entered()
        gate.open()
        assert [kinds(results) for results in await asyncio.gather(*tasks)] == [[NotReady] * 8] * 4
    # The number of batches varies: two idle runners share the last texts.
    assert len(gate.items) == 32
    assert [record.levelname for record in caplog.records] == ["CRITICAL"]
