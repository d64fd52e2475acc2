"""A batcher for tests: items are strings, a letter is a token, the result is in capitals."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from typing import Any

import pytest
from sentiment_service.engine.batching.batcher import MicroBatcher
from sentiment_service.engine.batching.fair_queue import TokenBudget
from sentiment_service.engine.batching.runners import Watch
from sentiment_service.errors import ServiceError

from tests.support.serving import eventually

# Far beyond what a test takes, so that only a hang comes to it.
PATIENCE_S = 30.0

# Hanging runners are found, and failed ones go on, within a test.
QUICK = Watch(pause_s=0.01, look_s=0.05, stuck_s=0.3)

Infer = Callable[[Sequence[str]], Sequence[str | ServiceError]]


def capitals(items: Sequence[str]) -> list[str | ServiceError]:
    return [item.upper() for item in items]


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
    """A clock for a batcher, which moves when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def ten_tokens_a_second(self, items: Sequence[str]) -> list[str | ServiceError]:
        """An infer that takes time on this clock: one second for ten tokens."""
        self.now += sum(map(len, items)) / 10
        return capitals(items)


def jump(seconds: float) -> None:
    """Move the running event loop's clock forward; timers that are then due fire."""
    loop = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + seconds  # type: ignore[method-assign]


@dataclass
class Hooks:
    """An observer of a batcher, made of functions."""

    batch: Callable[..., Any] = lambda report: None
    lag: Callable[..., Any] = lambda seconds: None
    runner_lost: Callable[..., Any] = lambda: None
    batch_stalled: Callable[..., Any] = lambda: None


def batcher_of(infer: Infer = capitals, **options: Any) -> MicroBatcher[str, str]:
    """A batcher with one runner and hooks that do nothing, where ``options`` say nothing else."""
    hooks = {one.name: options.pop(one.name) for one in fields(Hooks) if one.name in options}
    usual: dict[str, Any] = {
        "runners": 1,
        "budget": TokenBudget(options.pop("max_batch_tokens", 1000)),
        "max_queue_tokens": 1000,
    }
    return MicroBatcher(infer, Hooks(**hooks), **usual | options)


@asynccontextmanager
async def batching(
    infer: Infer = capitals, **options: Any
) -> AsyncIterator[MicroBatcher[str, str]]:
    """A batcher with these options. It is drained at the end."""
    batcher = batcher_of(infer, **options)
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


async def begun(
    batcher: MicroBatcher[str, str], gate: Gate, *items: str, timeout_s: float = PATIENCE_S
) -> asyncio.Task[list[str | ServiceError]]:
    """Submit in a new task; a batch has begun, that of the items, when this returns."""
    task = await queued(batcher, *items, timeout_s=timeout_s)
    await gate.entered()
    return task


@asynccontextmanager
async def measured(
    clock: Clock, **options: Any
) -> AsyncIterator[tuple[MicroBatcher[str, str], Gate]]:
    """A batcher that has measured its speed, ten tokens a second, and its closed gate."""
    gate = Gate(clock.ten_tokens_a_second)
    async with batching(gate, clock=clock, **options) as batcher:
        gate.open(1)
        await ask(batcher, "x" * 10)
        await gate.entered()
        yield batcher, gate


def kinds(results: Sequence[str | ServiceError]) -> list[object]:
    """The results, with each error replaced by its class."""
    return [type(result) if isinstance(result, ServiceError) else result for result in results]


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
