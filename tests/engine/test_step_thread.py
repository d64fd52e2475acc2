"""The thread on which jobs take turns: its order, how it ends, and what it survives."""

import asyncio
import math
import os
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from sentiment_service.engine.host import NICE
from sentiment_service.engine.step_thread import Kind, Steps, StepThread, finish
from sentiment_service.errors import DeadlineExceeded, NotReady, Overloaded, ShuttingDown

from tests.support.batching import raising
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


async def test_a_thread_that_cannot_be_started_is_tried_again(
    thread: StepThread, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At the limit of threads a job is refused; the next one gets a thread when there is one.

    The log has one line, without a traceback, that names the limits.
    """
    with monkeypatch.context() as full:
        raising(full, threading.Thread, "start", RuntimeError, 1)
        with pytest.raises(NotReady, match="cannot start a thread"):
            await thread.run(Log().job("first", 1), deadline=math.inf)
    (line,) = caplog.records
    assert "ulimit -u" in line.getMessage()
    assert not line.exc_info
    assert await thread.run(Log().job("second", 1), deadline=math.inf) == "second"


@pytest.mark.skipif(sys.platform != "linux", reason="a thread has no priority of its own")
@pytest.mark.parametrize("nice", [False, True])
async def test_a_nice_thread_leaves_the_cpu_to_the_event_loop(nice: bool) -> None:
    """Models are loaded on one while requests are answered."""

    def job() -> Steps[int]:
        yield
        return os.getpriority(os.PRIO_PROCESS, 0)

    before, thread = os.getpriority(os.PRIO_PROCESS, 0), StepThread(NAME, nice=nice)
    found = await thread.run(job(), deadline=math.inf)
    thread.close()
    assert found == (min(before + NICE, 19) if nice else before)


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


async def test_a_short_job_does_not_wait_for_long_ones(thread: StepThread) -> None:
    """Short jobs and long ones take turns step by step; those of a length are done in order."""
    log, gated, kind = Log(), Gated(), Kind(0.01)
    first = await _begin(thread, gated)
    jobs = [("long", 4), ("longer", 5), ("short", 1), ("shorter", 1)]
    tasks = [
        asyncio.create_task(
            thread.run(log.job(name, steps), deadline=_later(), kind=kind, size=4 * steps)
        )
        for name, steps in jobs
    ]
    first.cancel()
    await asyncio.wait([first])  # the others have queued, and its job has left
    gated.go.set()
    assert await asyncio.gather(*tasks) == ["long", "longer", "short", "shorter"]
    assert log.steps.index("short") < log.steps.index("shorter") < 6
    assert [name for name in log.steps if "l" in name] == ["long"] * 4 + ["longer"] * 5


async def test_it_admits_what_it_can_finish(thread: StepThread) -> None:
    """A job that would wait too long is refused at once, and says when to come again.

    A job alone is tried, however long it may take. One whose caller leaves makes room.
    """
    log, gated, kind = Log(), Gated(), Kind(1.0)

    def job(size: float) -> asyncio.Task[str]:
        work = thread.run(log.job("job", 1), deadline=_later(10), kind=kind, size=size)
        return asyncio.create_task(work)

    first = asyncio.create_task(thread.run(gated.job(), deadline=_later(), kind=kind, size=2))
    await asyncio.to_thread(gated.begun.wait, 30)
    admitted, refused, small = job(1.5), job(1.5), job(0.25)
    with pytest.raises(Overloaded, match=r"takes 3\.5 s") as error:
        await refused
    assert (error.value.rejection, error.value.retry_after_s) == ("deadline", 3.5)
    first.cancel()
    await asyncio.sleep(0)
    after = job(1.5)
    gated.go.set()
    assert [*await asyncio.gather(admitted, small, after)] == ["job"] * 3
    assert await job(1_000) == "job"


async def test_it_learns_how_long_a_kind_of_job_takes(thread: StepThread) -> None:
    """The first guess is forgotten with the first job; what fails early says nothing."""

    def fails() -> Steps[None]:
        raise ValueError("early")
        yield

    kind = Kind(1e-9)
    for _ in range(2):
        await thread.run(_sleeps(0.02), deadline=_later(), kind=kind, size=10)
    assert 0.002 <= kind.seconds_per_unit < 0.2
    known = kind.seconds_per_unit
    with pytest.raises(ValueError, match="early"):
        await thread.run(fails(), deadline=_later(), kind=kind, size=1_000)
    assert kind.seconds_per_unit == known
    with pytest.raises(DeadlineExceeded):
        await thread.run(_sleeps(0.2), deadline=_later(0.1), kind=kind, size=1e-9)
    await thread.run(Log().job("next", 1), deadline=_later())  # behind it
    assert kind.seconds_per_unit >= known


def _sleeps(seconds: float) -> Steps[None]:
    time.sleep(seconds)
    yield


class Counted:
    """A result that counts how often somebody writes it out."""

    written = 0

    def __repr__(self) -> str:
        self.written += 1
        return "a long text"


async def test_a_result_is_never_written_out(thread: StepThread) -> None:
    """A job's end does not cost the text of its result, which no message needs.

    That is long for a list of texts: on a machine with a GPU it was a tenth of the event loop.
    """

    def job() -> Steps[list[Counted]]:
        yield
        return [Counted()]

    (result,) = await thread.run(job(), deadline=asyncio.get_running_loop().time() + 30)
    assert not result.written


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
