"""Runners that fail, runners that hang, and the end of all runners."""

import asyncio
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
from sentiment_service.engine.batching.fair_queue import (
    CAUTION,
    Admission,
    BatchReport,
    FairQueue,
)
from sentiment_service.engine.batching.runners import HOPELESS_AFTER
from sentiment_service.engine.host import NICE
from sentiment_service.errors import InferenceFailed, NotReady, Overloaded, ShuttingDown

from tests.support.batching import (
    PATIENCE_S,
    QUICK,
    Clock,
    Gate,
    ask,
    batching,
    begun,
    kinds,
    measured,
    queued,
    raising,
    until,
)


@pytest.fixture
def rest(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """A runner that has failed rests until this is set."""
    rest = threading.Event()
    resting = SimpleNamespace(sleep=lambda seconds: rest.wait(PATIENCE_S))
    monkeypatch.setattr("sentiment_service.engine.batching.runners.time", resting)
    return rest


@pytest.mark.skipif(sys.platform != "linux", reason="a thread has no priority of its own")
async def test_runners_leave_the_cpu_to_the_event_loop() -> None:
    """A runner's thread is nicer than that of the event loop, which keeps its priority."""
    nices: list[int] = []

    def infer(items: Sequence[str]) -> list[str]:
        nices.append(os.getpriority(os.PRIO_PROCESS, 0))
        return [*items]

    before = os.getpriority(os.PRIO_PROCESS, 0)
    async with batching(infer) as batcher:
        await ask(batcher, "a")
    assert nices == [min(before + NICE, 19)]
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


# Runners that fail, and runners that hang


@pytest.mark.parametrize("error", [ValueError, MemoryError, SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("runners", [1, 2])
async def test_a_runner_that_fails_while_it_waits_goes_on(
    error: type[BaseException],
    runners: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The failure is counted and logged with its traceback; then the text is answered."""
    lost: list[None] = []

    async with batching(
        watch=QUICK, runners=runners, runner_lost=lambda: lost.append(None)
    ) as batcher:
        assert await ask(batcher, "before") == ["BEFORE"]
        raising(monkeypatch, FairQueue, "take_batch", error, 2)
        assert await ask(batcher, "a", "b") == ["A", "B"]
        await until(lambda: batcher.runners.complete)
        assert not batcher.failing
        assert (len(batcher.queue), batcher.queue.tokens) == (0, 0)
    assert len(lost) == 2
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [error] * 2


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


async def test_what_a_runner_that_fails_was_woken_for_another_takes(
    rest: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text does not wait for the runner that rests if another one is free."""
    async with batching(runners=2) as batcher:
        assert await ask(batcher, "before") == ["BEFORE"]
        raising(monkeypatch, FairQueue, "take_batch", MemoryError, 1)
        assert await ask(batcher, "a") == ["A"]
        rest.set()


async def test_a_runner_that_cannot_tell_its_failure_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If a runner cannot notify the event loop, for lack of memory, the next check finds it."""
    async with batching(watch=QUICK) as batcher:
        assert await ask(batcher, "before") == ["BEFORE"]
        raising(monkeypatch, asyncio.BaseEventLoop, "call_soon_threadsafe", MemoryError, 2)
        results = await ask(batcher, "a")  # this has a result that cannot be told, either
        assert kinds(results) == [InferenceFailed]
        assert await ask(batcher, "b") == ["B"]


async def test_a_thread_that_cannot_be_started_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If a thread cannot start, at first or later, texts are answered as soon as one can."""
    raising(monkeypatch, threading.Thread, "start", RuntimeError, 2)
    async with batching(watch=QUICK) as batcher:
        assert not batcher.runners.complete
        assert await ask(batcher, "a") == ["A"]
        assert batcher.runners.complete


async def test_the_batch_of_a_runner_that_fails_has_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its batch fails at once; then it computes the waiting texts."""
    gate = Gate()
    async with batching(gate, watch=QUICK) as batcher:
        first = await begun(batcher, gate, "a", "b")
        waiting = await queued(batcher, "c")
        raising(monkeypatch, Admission, "learn", MemoryError, 1)
        gate.open()
        assert kinds(await first) == [InferenceFailed] * 2
        assert await waiting == ["C"]


async def test_without_hope_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the runner fails again and again, texts fail, until a batch succeeds."""
    async with batching(watch=QUICK) as batcher:
        # Exactly as often as it takes: a failure that came later would fail the next text as well.
        raising(monkeypatch, FairQueue, "take_batch", MemoryError, HOPELESS_AFTER)
        assert kinds(await ask(batcher, "a", "b")) == [NotReady] * 2
        assert batcher.runners.hopeless
        assert batcher.failing
        assert await ask(batcher, "c") == ["C"]
        assert not batcher.runners.hopeless
        await until(lambda: batcher.runners.complete)


async def test_a_batch_that_hangs_fails_before_its_deadline(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A hanging batch's texts get an error, logged and counted once; none is admitted meanwhile.

    If the runner returns, its results are dropped, and everything works again.
    """
    stalls: list[None] = []

    gate = Gate()
    async with batching(gate, watch=QUICK, batch_stalled=lambda: stalls.append(None)) as batcher:
        assert not stalls
        stuck = await begun(batcher, gate, "a", "b", timeout_s=10**6)
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
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert len(stalls) == 1


async def test_a_batch_that_is_expected_to_take_long_does_not_hang() -> None:
    """A batch may take many times the duration that the measured speed predicts."""
    clock = Clock()
    async with measured(clock, watch=QUICK) as (batcher, gate):
        slow = await queued(batcher, "x" * 10)  # about 1 s
        await asyncio.sleep(0.8)
        gate.open()
        assert await slow == ["X" * 10]


async def test_the_predicted_wait_is_that_for_the_runners_that_work() -> None:
    """If one of two runners hangs, the predicted wait is twice as long."""
    clock = Clock()
    async with measured(clock, watch=replace(QUICK, stuck_factor=1), runners=2) as (batcher, gate):
        await ask(batcher, "stuck")
        await gate.entered()
        running = await begun(batcher, gate, "x")
        waiting = await queued(batcher, "x" * 30)
        with pytest.raises(Overloaded) as refusal:
            await ask(batcher, "x", timeout_s=1)
        assert refusal.value.retry_after_s == pytest.approx(7.1 * CAUTION - 1)
        gate.open()
        await asyncio.gather(running, waiting)


async def test_time_in_which_the_process_stood_still_is_not_the_batchs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After SIGCONT, or after the machine wakes up, a running batch may go on and is answered."""
    gate = Gate()
    async with batching(gate, watch=QUICK) as batcher:
        task = await queued(batcher, "a")
        gate.wait_entered()
        time.sleep(0.6)  # noqa: ASYNC251 - nothing moves meanwhile
        gate.open()
        assert await task == ["A"]
    assert caplog.records == []


async def test_a_pause_of_the_process_is_not_learnt_as_its_speed() -> None:
    """After SIGCONT, requests are not refused because of the time in which nothing moved."""
    clock = Clock()
    async with measured(clock, watch=QUICK) as (batcher, gate):
        task = await begun(batcher, gate, "x")
        clock.now += 1000
        gate.open(1)
        assert await task == ["X"]
        tasks = [await begun(batcher, gate, "x")]
        tasks += [await queued(batcher, "x"), await queued(batcher, "x")]  # or it refuses
        gate.open()
        assert await asyncio.gather(*tasks) == [["X"]] * 3


async def test_a_hang_tells_nothing_of_the_speed() -> None:
    """A batch that hung and returned does not change the predicted speed."""
    clock = Clock()
    gate = Gate()
    async with batching(gate, clock=clock, watch=QUICK) as batcher:
        gate.open(1)
        await ask(batcher, "x")
        await gate.entered()
        stuck = await begun(batcher, gate, "x")
        assert kinds(await stuck) == [InferenceFailed]
        clock.now += 1000
        gate.open(1)
        await until(lambda: batcher.runners.complete)
        tasks = [await begun(batcher, gate, "x")]
        tasks += [await queued(batcher, "x"), await queued(batcher, "x")]  # or it refuses
        gate.open()
        assert await asyncio.gather(*tasks) == [["X"]] * 3


# Shutdown


@pytest.mark.parametrize("in_time", [True, False])
async def test_drain_ends_with_a_runner_that_failed(
    in_time: bool, rest: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its rest it computes the waiting texts, or they fail when drain's time is over."""
    raising(monkeypatch, FairQueue, "take_batch", MemoryError, 1)
    lost = asyncio.Event()
    async with batching(runner_lost=lost.set) as batcher:
        await lost.wait()
        task = await queued(batcher, "a")
        if in_time:
            rest.set()
        assert await batcher.drain(PATIENCE_S if in_time else 0.1) == in_time
        assert kinds(await task) == ["A" if in_time else ShuttingDown]
        rest.set()


async def test_drain_ends_with_a_runner_that_hangs() -> None:
    """Drain does not wait longer for a runner that hangs; every request has had its error."""
    gate = Gate()
    async with batching(gate, watch=QUICK) as batcher:
        stuck = await begun(batcher, gate, "stuck")
        assert kinds(await stuck) == [InferenceFailed]
        assert await batcher.drain(0.1)
        assert batcher.runners.running
