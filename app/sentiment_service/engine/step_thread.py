"""One thread for the long work of many requests. It admits what it can finish.

There is only one such thread, so that the event loop competes with only one for Python's lock. The
work of a request is a job of small steps. Long jobs are done one after the other, and so are short
ones; if there are both, the thread takes a step of each in turn. If all jobs shared the thread
instead, none of many would be done by its deadline.
"""

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from sentiment_service.engine.host import be_nice
from sentiment_service.errors import DeadlineExceeded, NotReady, Overloaded, ShuttingDown

T = TypeVar("T")

# Work that may be stopped at each yield. It returns its result at the end.
Steps = Generator[None, None, T]

# A job that probably takes less is a short one.
SHORT_S = 0.05
# What may wait before a job and itself: this share of the time that it has. It is less than half
# because the thread also does jobs of the other length, and because a text may still have to be
# classified.
WAITING_SHARE = 0.4
# How much the measured speed of a kind of jobs remembers: this share of it after each job.
MEMORY = 0.9
NO_THREAD = (
    "the thread %s cannot be started: %s; raise the limit of threads (ulimit -u, the pids of the "
    "container) or of memory (ulimit -v)"
)

logger = logging.getLogger(__name__)


def finish(steps: Steps[T]) -> T:
    """Run all the steps now, on this thread, and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


@dataclass(slots=True)
class Kind:
    """A kind of jobs, whose time grows with their size. The first speed is a guess."""

    seconds_per_unit: float
    _seconds: float = 0.0
    _units: float = 0.0

    def learn(self, size: float, seconds: float) -> None:
        self._seconds = self._seconds * MEMORY + seconds
        self._units = self._units * MEMORY + size
        self.seconds_per_unit = self._seconds / self._units


@dataclass(eq=False, slots=True)
class _Job:
    steps: Steps[Any]
    done: asyncio.Future[Any]
    expected_s: float
    spent_s: float = 0.0

    def settle(self, result: Any, error: Exception | None) -> None:
        """On the event loop: tell who waits."""
        if self.done.done():
            return
        if error is not None:
            self.done.set_exception(error)
        else:
            self.done.set_result(result)


class StepThread:
    """Runs jobs on its own thread, which starts with the first job and ends after ``close``.

    ``busy`` says whether it takes a step at this moment. A step cannot be interrupted. A ``nice``
    thread leaves the CPU to others, as runners do.
    """

    def __init__(self, name: str, *, nice: bool = False) -> None:
        self.busy = False
        self._name = name
        self._nice = nice
        self._thread: threading.Thread | None = None
        self._condition = threading.Condition()
        # Short jobs and long ones in the order of their arrival. The first of each is being done.
        self._short, self._long = deque[_Job](), deque[_Job]()
        self._closed = False

    async def run(
        self, steps: Steps[T], *, deadline: float, kind: Kind | None = None, size: float = 0.0
    ) -> T:
        """Run the steps on the thread. Return their result, or raise what one of them raises.

        A job of a ``kind`` is refused if those before it and itself would take too long. If this
        call is cancelled, or when ``deadline`` (on the event loop's clock) has passed, no further
        step is taken.

        Raises:
            Overloaded: the thread cannot finish the job in time.
            DeadlineExceeded: the steps were not done in time.
            ShuttingDown: this thread is closed.
            NotReady: the thread cannot be started.
        """
        loop = asyncio.get_running_loop()
        expected_s = kind.seconds_per_unit * size if kind else 0.0
        job = _Job(steps, loop.create_future(), expected_s)
        jobs = self._short if expected_s < SHORT_S else self._long
        self._add(job, jobs, most_s=WAITING_SHARE * (deadline - loop.time()) if kind else math.inf)
        try:
            async with asyncio.timeout_at(deadline) as limit:
                return await job.done  # type: ignore[no-any-return]
        except TimeoutError:
            if not limit.expired():  # a step raised it
                raise
            raise DeadlineExceeded("the request was not prepared in the time allowed") from None
        finally:
            with self._condition:
                if job in jobs:
                    jobs.remove(job)
            # What ended early says only that it might have taken as long as it did.
            ended = job.done.cancelled() or not job.done.done() or job.done.exception()
            if kind and (not ended or job.spent_s > expected_s):
                kind.learn(size, job.spent_s)

    def close(self) -> None:
        """Take no further step. Callers get ``ShuttingDown`` when the present step is over."""
        with self._condition:
            self._closed = True
            self._condition.notify()

    def _add(self, job: _Job, jobs: deque[_Job], *, most_s: float) -> None:
        with self._condition:
            if self._closed:
                raise ShuttingDown()
            before_s = sum(max(0.0, other.expected_s - other.spent_s) for other in jobs)
            # A job alone may take all the time that it has.
            if jobs and before_s + job.expected_s > most_s:
                raise Overloaded(
                    f"the work of the requests before this one takes {before_s:.1f} s, and it can "
                    "wait no longer",
                    reason="deadline",
                    retry_after_s=before_s,
                )
            if self._thread is None:
                thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # the next job tries it again
                    logger.error(NO_THREAD, self._name, error)
                    raise NotReady(
                        "the service cannot start a thread for this work; its log says why"
                    ) from None
                self._thread = thread
            jobs.append(job)
            self._condition.notify()

    def _work(self) -> None:
        """Take steps of the first short job and of the first long one, in turn, until closed."""
        if self._nice:
            be_nice()
        turn = self._long
        while self._wait():
            turn = self._short if turn is self._long else self._long
            self._take_step(turn)
        for job in (*self._short, *self._long):
            self._tell(job, None, ShuttingDown())

    def _wait(self) -> bool:
        """Wait for a job. Returns False when no more steps are to be taken."""
        with self._condition:
            while not (self._short or self._long or self._closed):
                self._condition.wait()
            return not self._closed

    def _take_step(self, jobs: deque[_Job]) -> None:
        with self._condition:
            if not jobs:
                return
            job = jobs[0]
        self.busy = True
        begun = time.perf_counter()
        result, error = None, None
        try:
            next(job.steps)
            return
        except StopIteration as end:
            result = end.value
        except Exception as raised:
            error = raised
        except BaseException as raised:  # it would end the event loop
            error = RuntimeError(f"a step raised {raised!r}")
            error.__cause__ = raised
        finally:
            job.spent_s += time.perf_counter() - begun
            self.busy = False
        with self._condition:
            if job in jobs:  # its request may have left
                jobs.remove(job)
        self._tell(job, result, error)
        error = None  # its traceback has this frame: a cycle until the next collection

    def _tell(self, job: _Job, result: Any, error: Exception | None) -> None:
        with suppress(RuntimeError):  # the loop is closed
            job.done.get_loop().call_soon_threadsafe(job.settle, result, error)
