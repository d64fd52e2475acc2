"""The threads that compute batches. One that fails goes on, and one that hangs is detected.

A thread records what it does in plain attributes of its runner, because setting them cannot fail.
"""

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from sentiment_service.engine.batching.fair_queue import Batch, BatchReport
from sentiment_service.engine.host import be_nice

# After this many failures per runner, with no batch done in between, the runners count as unable to
# answer.
HOPELESS_AFTER = 3

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Watch:
    """How runners are watched.

    A runner that failed rests for ``pause_s``. Every ``look_s``, all are looked at. A batch counts
    as hung when it takes ``stuck_factor`` times the predicted time, and at least ``stuck_s``. A
    small batch takes milliseconds, and on a busy machine twenty times as long is nothing unusual.
    """

    pause_s: float = 0.5
    look_s: float = 0.5
    stuck_factor: float = 20
    stuck_s: float = 5.0


WATCH = Watch()


class BatchObserver(Protocol):
    """Gets the reports of a batcher, on its event loop unless they say otherwise."""

    def batch(self, report: BatchReport) -> None:
        """A batch is done. Its runner's thread calls this before the results are delivered."""

    def lag(self, seconds: float) -> None:
        """The results of a batch waited this many seconds for the event loop."""

    def runner_lost(self) -> None:
        """A runner failed outside of inference, and goes on."""

    def batch_stalled(self) -> None:
        """A batch takes far longer than predicted."""


@dataclass(slots=True, eq=False)
class Runner:
    """Computes batches on its thread."""

    name: str
    end: asyncio.Future[None]  # done when its thread has ended
    # Written by its thread:
    batch: Batch = ()  # the items that it has taken, until their results are sent
    expected_s: float = 0.0  # the seconds that the batch should take ...
    limit_s: float = math.inf  # ... and those after which it counts as hung
    idle: bool = True  # it can take a batch
    running: bool = False  # the thread has not ended
    # Set by its thread, and cleared by the event loop:
    failed: bool = False  # something raised, and the batch will have no results
    # Written by the event loop:
    started: bool = False  # it has a thread, or had one
    watched: Batch = ()  # the batch at the latest look ...
    looks: int = 0  # ... and how many looks ago it was first seen
    stuck: bool = False


class Runners:
    """``count`` runners. The thread of each calls ``serve``, which returns when it should end.

    ``on_failure`` is called on the event loop with the batch of a runner that failed or hangs: the
    batch will have no results, or may have none. It is empty if the runner had no batch.
    """

    def __init__(
        self,
        count: int,
        *,
        serve: Callable[[Runner], None],
        on_failure: Callable[[Batch], None],
        observer: BatchObserver,
        watch: Watch | None = None,
    ) -> None:
        self._serve = serve
        self.watch = watch or WATCH
        self._on_failure = on_failure
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        self.all = [
            Runner(f"runner-{number}", self._loop.create_future()) for number in range(count)
        ]
        self.stuck = 0  # number of runners that hang
        self.working = count  # number of runners that do not hang; at least 1
        self.all_stuck = False  # every runner hangs
        self.failures = 0  # of all runners, since the last finished batch

    @property
    def complete(self) -> bool:
        """Whether every runner has a thread, and none hangs."""
        return all(runner.running and not runner.stuck for runner in self.all)

    @property
    def running(self) -> bool:
        """Whether any runner has a thread that has not ended."""
        return any(runner.running for runner in self.all)

    @property
    def hopeless(self) -> bool:
        """Whether no runner can answer: all hang, or fail again before a batch is done."""
        return self.all_stuck or self.failures >= HOPELESS_AFTER * len(self.all)

    def start(self) -> None:
        """Start the threads and look at them regularly. Called on the event loop."""
        self._look_again = self._loop.call_later(self.watch.look_s, self._look)
        self._start_threads()

    async def join(self, timeout_s: float) -> None:
        """Wait until all threads have ended, for at most ``timeout_s`` seconds."""
        if ends := [runner.end for runner in self.all if runner.started]:
            await asyncio.wait(ends, timeout=timeout_s)
        self._look_again.cancel()

    def _start_threads(self) -> None:
        """Start those threads that do not run yet. The next look tries again with the others."""
        for runner in self.all:
            if runner.started:
                continue
            thread = threading.Thread(
                target=self._run, args=(runner,), name=runner.name, daemon=True
            )
            runner.started = runner.running = True
            try:
                thread.start()
            except Exception:  # there are too many threads, or too little memory
                logger.exception("no thread can be started for %s", runner.name)
                runner.started = runner.running = False

    def _look(self) -> None:
        """Find out which runners hang, have failed or have recovered."""
        self._look_again = self._loop.call_later(self.watch.look_s, self._look)
        for runner in self.all:
            self._look_at(runner)
            self._note_failure(runner)  # if there was no memory to tell the event loop
        self._start_threads()

    def _run(self, runner: Runner) -> None:
        be_nice()
        while runner.running:
            try:
                self._serve(runner)
                runner.running = False
            except BaseException:  # even SystemExit: the thread must go on
                runner.idle, runner.failed = False, True
                with suppress(BaseException):  # perhaps out of memory
                    pause_s = self.watch.pause_s
                    logger.exception("%s failed; it goes on in %g s", runner.name, pause_s)
                    self._loop.call_soon_threadsafe(self._note_failure, runner)
                time.sleep(self.watch.pause_s)
                while runner.failed:  # until the event loop has noticed it
                    time.sleep(self.watch.pause_s)
                runner.idle = True
        runner.idle = False
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(runner.end.set_result, None)

    def _note_failure(self, runner: Runner) -> None:
        """Fail the batch of a runner that has failed. May be called repeatedly."""
        if runner.failed:
            batch, runner.batch, runner.failed = runner.batch, (), False
            self.failures += 1
            self._observer.runner_lost()
            self._on_failure(batch)

    def _look_at(self, runner: Runner) -> None:
        batch = runner.batch
        if not batch or batch is not runner.watched:
            if runner.stuck:
                self._count_stuck(-1)
                logger.warning("%s does not hang any more", runner.name)
            runner.watched, runner.looks, runner.stuck = batch, 0, False
            return
        # Looks are counted, not seconds: time in which the whole process stood still does not
        # count for the batch.
        runner.looks += 1
        seconds = runner.looks * self.watch.look_s
        if not runner.stuck and seconds > runner.limit_s:
            runner.stuck = True
            self._count_stuck(1)
            logger.error(
                "%s hangs: a batch of %d texts has taken more than %.1f s, where %.3f s were "
                "expected; its texts fail",
                runner.name,
                len(batch),
                seconds,
                runner.expected_s,
            )
            self._observer.batch_stalled()
            self._on_failure(batch)

    def _count_stuck(self, change: int) -> None:
        self.stuck += change
        self.working = max(1, len(self.all) - self.stuck)
        self.all_stuck = self.stuck == len(self.all)
