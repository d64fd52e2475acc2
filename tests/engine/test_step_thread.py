"""The thread on which jobs take turns: its order, how it ends, and what it survives."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
from sentiment_service.engine.step_thread import Steps, StepThread, finish
from sentiment_service.errors import DeadlineExceeded, ShuttingDown

from tests.support.serving import eventually

NAME = "a thread in a test"


def _threads() -> int:
    return sum(thread.name.startswith(NAME) for thread in threading.enumerate())


@pytest.fixture
def thread() -> Iterator[StepThread]:
    """A thread that ends with the test."""
    thread = StepThread(NAME)
    yield thread
    thread.close()
    eventually(lambda: not _threads())


class Log:
    """Jobs that record their steps."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def job(self, name: str, steps: int) -> Steps[str]:
        """A job of so many steps that returns its name."""
        for _ in range(steps):
            self.steps.append(name)
            yield
        return name


class Gated:
    """A job that waits in its first step until the test releases it."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()
        self.steps = 0

    def job(self) -> Steps[None]:
        """A job with endless steps."""
        while True:
            self.steps += 1
            self.begun.set()
            assert self.go.wait(30), "the test never let it go"
            yield


def _later(seconds: float = 30) -> float:
    return asyncio.get_running_loop().time() + seconds


async def _begin(thread: StepThread, gated: Gated, seconds: float = 30) -> asyncio.Task[None]:
    """The job's task, once the job has begun its first step."""
    task = asyncio.create_task(thread.run(gated.job(), deadline=_later(seconds)))
    await asyncio.to_thread(gated.begun.wait, 30)
    return task


async def test_jobs_take_turns(thread: StepThread) -> None:
    """Jobs take turns step by step, so a short job does not wait for long ones."""
    log, gated = Log(), Gated()
    first = await _begin(thread, gated)
    jobs = [("long", 4), ("longer", 5), ("short", 1)]
    tasks = [
        asyncio.create_task(thread.run(log.job(name, steps), deadline=_later()))
        for name, steps in jobs
    ]
    await asyncio.sleep(0)  # they queue
    gated.go.set()
    first.cancel()
    assert await asyncio.gather(*tasks) == ["long", "longer", "short"]
    assert log.steps[:7] == ["long", "longer", "short", "long", "longer", "long", "longer"]
    assert len(log.steps) == 10


def test_all_steps_at_once_give_the_same(thread: StepThread) -> None:
    """A small job, run at once without the thread, gives the same result."""
    log = Log()
    assert finish(log.job("small", 3)) == "small"
    assert log.steps == ["small"] * 3


@pytest.mark.parametrize("expires", [False, True])
async def test_who_leaves_takes_no_further_step(thread: StepThread, *, expires: bool) -> None:
    """A job that is cancelled, or has its deadline, takes no step after its current one."""
    gated = Gated()
    task = await _begin(thread, gated, 0.05 if expires else 30)
    if not expires:
        task.cancel()
    with pytest.raises(DeadlineExceeded if expires else asyncio.CancelledError):
        await task
    gated.go.set()
    await thread.run(Log().job("next", 3), deadline=_later())
    assert gated.steps <= 1


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (ValueError, ValueError),
        (MemoryError, MemoryError),
        (TimeoutError, TimeoutError),  # not taken for the deadline
        (SystemExit, RuntimeError),  # in a future it would end the event loop
        (KeyboardInterrupt, RuntimeError),
    ],
)
async def test_what_a_step_raises_fails_its_job_only(
    thread: StepThread, raised: type[BaseException], expected: type[Exception]
) -> None:
    """Whatever a step raises fails its own job alone; other and later jobs are done."""

    def failing() -> Steps[None]:
        yield
        raise raised

    beside = asyncio.create_task(thread.run(Log().job("beside", 5), deadline=_later()))
    with pytest.raises(expected):
        await thread.run(failing(), deadline=_later())
    assert await beside == "beside"
    assert await thread.run(Log().job("next", 1), deadline=_later()) == "next"


async def test_closed_it_tells_whoever_waits(thread: StepThread) -> None:
    """Closing fails running, waiting and later jobs, and ends the thread."""
    gated = Gated()
    tasks = [
        await _begin(thread, gated),
        asyncio.create_task(thread.run(Log().job("waits", 1), deadline=_later())),
    ]
    await asyncio.sleep(0)
    thread.close()
    gated.go.set()
    for task in tasks:
        with pytest.raises(ShuttingDown):
            await task
    with pytest.raises(ShuttingDown):
        await thread.run(Log().job("late", 1), deadline=_later())
    assert gated.steps == 1
    eventually(lambda: not _threads())


def test_it_survives_the_event_loop_of_a_job(thread: StepThread) -> None:
    """If the event loop of a job closes, the thread and other jobs go on."""
    gated = Gated()

    async def leave() -> None:
        (await _begin(thread, gated)).cancel()

    async def work() -> None:
        assert await thread.run(Log().job("next", 2), deadline=_later()) == "next"

    asyncio.run(leave())
    gated.go.set()
    asyncio.run(work())
