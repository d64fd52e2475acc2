"""Batches that fail, memory that runs out, and a device that is lost."""

import asyncio
import gc
import weakref
from collections.abc import Sequence
from copy import copy

import pytest
from sentiment_service.engine.batching.batcher import infer_each
from sentiment_service.engine.batching.fair_queue import TokenBudget
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

NO_MEMORY = OutOfMemory("CUDA failure 2: out of memory")


def test_memory_that_ran_out_lowers_the_budget_for_good(caplog: pytest.LogCaptureFixture) -> None:
    """The budget is halved until it is smaller than the batch, but not below one token.

    One line has both budgets, the cure and ONNX Runtime's reason. A reloaded model starts with the
    lowered budget, and lowers only its own.
    """
    budget = TokenBudget(512)
    budget.lower([250, 100], NO_MEMORY)
    assert (budget.tokens, budget.start) == (256, 512)
    [line] = caplog.messages
    assert "memory ran out in a batch of 500 tokens" in line
    assert "batches have at most 256 tokens, not 512" in line
    assert "start with --max-batch-tokens 256" in line
    assert line.endswith(": CUDA failure 2: out of memory")
    budget.lower([65, 65], NO_MEMORY)
    assert budget.tokens == 128
    reloaded = copy(budget)
    assert (reloaded.tokens, reloaded.start) == (128, 512)
    reloaded.lower([1, 1], NO_MEMORY)
    assert (reloaded.tokens, budget.tokens) == (1, 128)


def test_padding_counts_if_it_is_computed() -> None:
    """Three texts take their tokens of the budget, and with padding three times the longest."""
    assert TokenBudget(512).taken_by([3, 500, 7]) == 1500
    assert TokenBudget(512, max_padding=None).taken_by([3, 500, 7]) == 510


def test_a_batch_formed_before_memory_ran_out_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A larger batch of another runner that fails later says nothing new, and is not logged."""
    budget = TokenBudget(256)
    budget.lower([100, 100], NO_MEMORY)
    budget.lower([125, 125], NO_MEMORY)
    assert budget.tokens == 128
    assert len(caplog.messages) == 1


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
