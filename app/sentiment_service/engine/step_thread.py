"""One thread for the long work of many requests, which take turns on it.

If the thread did one request after the other, a short list of texts would wait behind megabytes of
text. So the work of a request is a job of small steps, and the thread takes one step of each job in
turn. There is only one such thread, so that the event loop competes with only one.
"""

import asyncio
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from sentiment_service.errors import DeadlineExceeded, ShuttingDown

T = TypeVar("T")

# Work that may be stopped at each yield. It returns its result at the end.
Steps = Generator[None, None, T]


def finish(steps: Steps[T]) -> T:
    """Run all the steps now, on this thread, and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


class StepThread:
    """Runs jobs on its own thread, which starts with the first job and ends after ``close``.

    ``busy`` says whether it takes a step at this moment. A step cannot be interrupted.
    """

    def __init__(self, name: str) -> None:
        self.busy = False
        self._thread = ThreadPoolExecutor(1, name)
        self._closed = False

    async def run(self, steps: Steps[T], *, deadline: float) -> T:
        """Run the steps on the thread. Return their result, or raise what one of them raises.

        If this call is cancelled, or when ``deadline`` (on the event loop's clock) has passed, no
        further step is taken.

        Raises:
            DeadlineExceeded: the steps were not done in time.
            ShuttingDown: this thread is closed.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(deadline) as limit:
                while not self._closed:
                    # The next step waits behind those of the other jobs.
                    result = await loop.run_in_executor(self._thread, self._take_step, steps)
                    if result is not None:
                        return result[0]  # type: ignore[no-any-return]
        except TimeoutError:
            if not limit.expired():  # a step raised it
                raise
            raise DeadlineExceeded("the request was not prepared in the time allowed") from None
        raise ShuttingDown()

    def close(self) -> None:
        """Take no further step. Callers get ``ShuttingDown`` when the present step is over."""
        self._closed = True
        self._thread.shutdown(wait=False)

    def _take_step(self, steps: Steps[Any]) -> tuple[Any] | None:
        """Take one step, on the thread. If it was the last, return the result of the steps."""
        if self._closed:
            raise ShuttingDown()
        self.busy = True
        try:
            return next(steps)
        except StopIteration as end:  # itself would be in a cycle with its frames, until collected
            return (end.value,)
        except Exception:
            raise
        except BaseException as error:  # it would end the event loop
            raise RuntimeError(f"a step raised {error!r}") from error
        finally:
            self.busy = False
