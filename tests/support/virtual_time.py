"""The batcher's real threads and event loop code in virtual time, under a deterministic schedule.

A runner thread moves only while the event loop's thread stands still for it: from the moment it
is woken, or its simulated work ends, until it waits or works again. Time passes only when the
loop would sleep and every runner is still: it jumps to the next timer or the next end of work.
"""

import asyncio
import heapq
import math
import selectors
import threading
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from functools import partial
from itertools import count
from types import SimpleNamespace, TracebackType
from typing import Any, TypeVar
from unittest.mock import patch

# Where `threading` and `time` are replaced by what stands under virtual time.
PATCHED = {
    "sentiment_service.engine.batching.batcher": ("threading", "time"),
    "sentiment_service.engine.batching.runners": ("threading", "time"),
}

# Real seconds; far beyond what a runner takes, so that only one that is lost comes to it.
PATIENCE_S = 10.0

T = TypeVar("T")


class Stuck(AssertionError):
    """Nothing will ever happen any more, and somebody still waits."""


class Simulation:
    """One clock for an event loop and the threads started under it.

    Two choices stand for what the real scheduler may do. ``eager``: a woken runner comes before
    the event loop's next step, else only once the loop would sleep. ``work_first``: where an end
    of work and a timer fall on one instant, the work ends before the timer fires.
    """

    def __init__(self, *, eager: bool = True, work_first: bool = True) -> None:
        self.now = 0.0
        self.before_advance: Callable[[], None] = lambda: None  # all is still, and time will pass
        self.threads: list[threading.Thread] = []
        self.ended_threads = 0
        self.errors: list[object] = []  # what ended a thread, or was raised in a loop's callback
        self.eager = eager
        self.over = False
        self._work_first = work_first
        self._moving = 0
        self._still = threading.Condition()
        self._works: list[tuple[float, int, threading.Event]] = []  # ends, in order of start
        self._starts = count()
        self.conditions: list[_Condition] = []

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Like ``asyncio.run``, in virtual time; no thread started within survives it."""
        standing_in: dict[str, Any] = {
            "threading": SimpleNamespace(
                Condition=partial(_Condition, self), Thread=partial(_Thread, self)
            ),
            "time": SimpleNamespace(monotonic=lambda: self.now, sleep=self.work),
        }
        with ExitStack() as stack:
            for module, names in PATCHED.items():
                replaced = {name: standing_in[name] for name in names}
                stack.enter_context(patch.multiple(module, **replaced))
            stack.callback(self._end)
            runner = asyncio.Runner(loop_factory=partial(_Loop, self))
            return stack.enter_context(runner).run(main)

    def work(self, seconds: float) -> None:
        """On a runner's thread: return when that much virtual time has passed."""
        if self.over:
            raise SystemExit
        ended = threading.Event()
        heapq.heappush(self._works, (self.now + seconds, next(self._starts), ended))
        self.stands_still()
        ended.wait()
        if self.over:
            raise SystemExit

    @property
    def idle_threads(self) -> int:
        """Threads that wait in a condition."""
        return sum(condition.waiting for condition in self.conditions)

    def moves(self) -> None:
        """A thread is about to run; told by whoever lets it."""
        with self._still:
            self._moving += 1

    def stands_still(self) -> None:
        """A thread does no more until it is woken; told by itself."""
        with self._still:
            self._moving -= 1
            self._still.notify_all()

    def settle(self) -> bool:
        """Let those that were notified run, one after the other; whether there were any."""
        self._await_stillness()
        any_woken = False
        while any(condition.wake_one() for condition in self.conditions):
            any_woken = True
            self._await_stillness()
        return any_woken

    def sleep(self, timeout: float | None) -> None:
        """What the event loop does for want of anything to do."""
        if (timeout is not None and timeout <= 0) or self.settle():
            return
        timer = math.inf if timeout is None else self.now + timeout
        end = self._works[0][0] if self._works else math.inf
        if timer == end == math.inf:
            raise Stuck(f"at {self.now:g} s, with {self.idle_threads} threads idle")
        if min(timer, end) > self.now:
            self.before_advance()
            self.now = min(timer, end)
        if end < timer or (end == timer and self._work_first):
            _, _, ended = heapq.heappop(self._works)
            self.moves()
            ended.set()
            self.settle()

    def _await_stillness(self) -> None:
        with self._still:
            if not self._still.wait_for(lambda: self._moving == 0, PATIENCE_S):
                raise Stuck("a thread neither waits nor works nor ends")

    def _end(self) -> None:
        """Whatever still waits or works after a failure raises SystemExit there."""
        self.over = True
        for condition in self.conditions:
            condition.wake_all()
        for _, _, ended in self._works:
            ended.set()
        for thread in self.threads:
            thread.join(PATIENCE_S)


class _Condition(threading.Condition):
    """Wakes the notified when the simulation says so. ``waiting`` does not count the woken."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__()
        self.waiting = 0
        self._notified = 0
        self._simulation = simulation
        simulation.conditions.append(self)

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is None, "waiting with a timeout is not simulated"
        if not self._simulation.over:
            self.waiting += 1
            self._simulation.stands_still()
            super().wait()
        if self._simulation.over:
            raise SystemExit
        return True

    def notify(self, n: int = 1) -> None:
        self._notified = min(self._notified + n, self.waiting)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, traceback)
        on_loop = threading.current_thread() not in self._simulation.threads
        if on_loop and self._simulation.eager:
            self._simulation.settle()

    def wake_one(self) -> bool:
        if not self._notified:
            return False
        self.acquire()  # not `with self`, which settles
        self._notified -= 1
        self.waiting -= 1
        self._simulation.moves()
        super().notify()
        self.release()
        return True

    def wake_all(self) -> None:
        self.acquire()
        super().notify(self.waiting)
        self.release()


class _Thread(threading.Thread):
    """Runs up to where it first stands still before ``start`` returns."""

    def __init__(self, simulation: Simulation, **options: Any) -> None:
        super().__init__(**options)
        self._simulation = simulation

    def start(self) -> None:
        self._simulation.threads.append(self)
        self._simulation.moves()
        super().start()
        self._simulation.settle()

    def run(self) -> None:
        try:
            super().run()
        except BaseException as error:
            if not self._simulation.over:
                self._simulation.errors.append(error)
        finally:
            self._simulation.ended_threads += 1
            self._simulation.stands_still()


class _Selector(selectors.SelectSelector):
    def __init__(self, simulation: Simulation) -> None:
        super().__init__()
        self._simulation = simulation

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._simulation.sleep(timeout)
        return []


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        super().__init__(_Selector(simulation))
        self.set_exception_handler(lambda loop, context: simulation.errors.append(context))

    def time(self) -> float:
        return self._simulation.now
