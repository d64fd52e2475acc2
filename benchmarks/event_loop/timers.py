"""Divides the CPU time of one thread among parts, in a file that other processes can read."""

import asyncio
import inspect
import mmap
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np

# The timers' own cost is measured with this many calls, several times. The lowest value counts,
# because other processes can only add time.
CALLS, TIMES = 5_000, 9


class Timers:
    """Timers of the thread that makes them. Calls on other threads are not timed.

    The file holds the nanoseconds of each part and then those of the timers, as int64. A part
    within another part is not counted twice. The time in which no part is timed is not counted.
    """

    def __init__(self, path: Path, parts: Sequence[str]) -> None:
        self._numbers = {part: number for number, part in enumerate(parts)}
        size = 8 * (len(parts) + 1)
        path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._ns = memoryview(mmap.mmap(file.fileno(), size)).cast("q")
        self._outside = len(parts)  # in place of a part: the timers, where no part is timed
        self._stack = [self._outside]
        self._since = 0
        self._thread = threading.get_ident()
        # What one switch into a part and back costs: inside the part, and outside.
        self._call = self._step = (0, 0)
        self._call = self._cost(self.timed(_nothing, parts[0]), _nothing)
        self._step = self._cost(self.timed(_nothing_async, parts[0]), _nothing_async)
        self._ns[:] = memoryview(bytes(size)).cast("q")

    def timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        """The function, whose CPU time is counted for the part."""
        number = self._numbers[part]
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def stepped(*arguments: Any, **options: Any) -> Any:
                return await _Steps(self, number, function(*arguments, **options))

            return stepped

        @wraps(function)
        def called(*arguments: Any, **options: Any) -> Any:
            if threading.get_ident() != self._thread:
                return function(*arguments, **options)
            self.enter(number)
            try:
                return function(*arguments, **options)
            finally:
                self.leave(self._call)

        return called

    def step(self, number: int, work: Callable[[Any], Any], value: Any) -> Any:
        """One step of a coroutine, counted for the part."""
        self.enter(number)
        try:
            return work(value)
        finally:
            self.leave(self._step)

    def enter(self, number: int) -> None:
        """Begin to count for a part."""
        now = time.thread_time_ns()
        outer = self._stack[-1]
        if outer != self._outside:
            self._ns[outer] += now - self._since
        self._stack.append(number)
        self._since = now

    def leave(self, cost: tuple[int, int]) -> None:
        """Count for the part before again. ``cost`` is that of the timers, which is taken off."""
        now = time.thread_time_ns()
        inside, outside = cost
        self._ns[self._stack.pop()] += now - self._since - inside
        self._ns[self._outside] += inside + outside
        if self._stack[-1] != self._outside:
            self._ns[self._stack[-1]] -= outside
        self._since = now

    def _cost(self, timed: Callable[[], Any], function: Callable[[], Any]) -> tuple[int, int]:
        """What the timers add inside and outside for each call."""
        whole = min(_cpu_ns(timed) for _ in range(TIMES)) - min(
            _cpu_ns(function) for _ in range(TIMES)
        )
        inside = []
        for _ in range(TIMES):
            self._ns[0] = 0
            _cpu_ns(timed)
            inside.append(self._ns[0])
        return min(inside) // CALLS, (whole - min(inside)) // CALLS


class _Steps:
    """Awaits a coroutine and times each of its steps."""

    def __init__(self, timers: Timers, number: int, work: Coroutine[Any, Any, Any]) -> None:
        self._timers, self._number, self._work = timers, number, work

    def __await__(self) -> Generator[Any, Any, Any]:
        step, value = self._work.send, None
        while True:
            try:
                waiting_for = self._timers.step(self._number, step, value)
            except StopIteration as end:
                return end.value
            try:
                step, value = self._work.send, (yield waiting_for)
            except BaseException as error:
                step, value = self._work.throw, error


def _cpu_ns(function: Callable[[], Any]) -> int:
    """The CPU time of many calls; coroutines are awaited."""
    is_async = inspect.iscoroutinefunction(function)

    async def repeat() -> int:
        started = time.thread_time_ns()
        for _ in range(CALLS):
            if is_async:
                await function()
            else:
                function()
        return time.thread_time_ns() - started

    with asyncio.Runner() as runner:
        return runner.run(repeat())


def _nothing() -> None:
    """Take no time."""


async def _nothing_async() -> None:
    """Take no time."""


def read(path: Path) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The nanoseconds until now: [parts + 1], those of the timers last."""
    return np.fromfile(path, dtype=np.int64)
