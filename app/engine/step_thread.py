"""One thread for the long work of many requests, which take turns on it.

If the thread did one request after the other, a short list of texts would wait behind megabytes of
text. So the work of a request is a job of small steps, and the thread takes one step of each job in
turn. There is only one such thread, so that the event loop competes with only one.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from app.errors import DeadlineExceeded, ShuttingDown

T = TypeVar("T")

# Work that may be stopped at each yield. It returns its result at the end.
Steps = Generator[None, None, T]

logger = logging.getLogger(__name__)


def finish(steps: Steps[T]) -> T:
    """Run all the steps now, on this thread, and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    steps: Steps[Any]
    result: asyncio.Future[Any]  # belongs to the event loop that waits for it


class StepThread:
    """Runs jobs on its own thread. The thread starts at once and ends after ``close``."""

    def __init__(self, name: str) -> None:
        self._condition = threading.Condition()
        self._jobs: deque[_Job] = deque()  # the first one is next
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread has not ended. After ``close``, it ends when its step is over."""
        return self._thread.is_alive()

    async def run(self, steps: Steps[T], *, deadline: float) -> T:
        """Run the steps on the thread. Return their result, or raise what one of them raises.

        If this call is cancelled, or when ``deadline`` (on the event loop's clock) has passed, no
        further step is taken.

        Raises:
            DeadlineExceeded: the steps were not done in time.
            ShuttingDown: this thread is closed.
        """
        job = _Job(steps, asyncio.get_running_loop().create_future())
        with self._condition:
            if self._closed:
                raise ShuttingDown()
            self._jobs.append(job)
            self._condition.notify()
        try:
            async with asyncio.timeout_at(deadline) as limit:
                return await job.result  # type: ignore[no-any-return]
        except TimeoutError:
            if not limit.expired():  # a step raised it
                raise
            raise DeadlineExceeded("the request was not prepared in the time allowed") from None

    def close(self) -> None:
        """Take no further step. Waiting callers get ``ShuttingDown`` at once; the thread ends."""
        with self._condition:
            self._closed = True
            self._condition.notify()

    def _run(self) -> None:
        more = True
        while more:
            try:
                more = self._take_turn()
            except Exception:  # perhaps out of memory: the job's deadline will pass
                with suppress(MemoryError):
                    logger.exception("a job was lost")

    def _take_turn(self) -> bool:
        """Wait for a job and take one step of it. Returns False when no more jobs will come."""
        with self._condition:
            while not self._jobs and not self._closed:
                self._condition.wait()
            if not self._jobs:
                return False
            job = self._jobs.popleft()
        self._take_step(job)
        return True

    def _take_step(self, job: _Job) -> None:
        if job.result.done():  # cancelled: nobody waits for it
            return
        if self._closed:
            _settle(job, error=ShuttingDown())
            return
        try:
            next(job.steps)
        except StopIteration as end:
            _settle(job, result=end.value)
        except Exception as error:
            _settle(job, error=error)
        except BaseException as error:  # it would end the event loop, or this thread
            _settle(job, error=RuntimeError(f"a step raised {error!r}"))
        else:
            with self._condition:
                self._jobs.append(job)


def _settle(job: _Job, *, result: object = None, error: Exception | None = None) -> None:
    def settle() -> None:
        if job.result.done():
            return
        if error is None:
            job.result.set_result(result)
        else:
            job.result.set_exception(error)

    with suppress(RuntimeError):  # the loop is closed: nothing waits for the result
        job.result.get_loop().call_soon_threadsafe(settle)
