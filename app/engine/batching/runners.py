"""The threads that compute batches. A lost thread is replaced, and a hanging one is detected.

A thread records what it does in plain attributes of its runner, because setting them cannot fail.
The event loop reads them when a thread tells it to, and regularly while a batch is computed.
"""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic

from app.engine.batching.batches import Batch, BatchObserver, Item, Result

# Seconds between the end of a thread and the start of the next. Without the pause, a fault that
# comes back at once would keep a CPU and the log busy.
RESTART_PAUSE_S = 0.5

# After this many lost threads per runner, with no batch done in between, the runners count as
# unable to answer.
HOPELESS_AFTER = 3

# A batch counts as hung when it takes this many times the predicted time ...
STUCK_FACTOR = 20
# ... and at least this many seconds. Before the first batch there is no prediction. A small batch
# takes milliseconds, and on a busy machine twenty times as long is nothing unusual.
STUCK_LEAST_S = 5.0

# How much nicer the runners are than the event loop, which needs little time, but at once: it
# answers probes, and feeds the runners. With as many runners as CPUs, it would wait for a CPU for
# half of the time.
NICE = 5

# Seconds between two looks at the runners.
WATCH_S = 0.5

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Runner(Generic[Item, Result]):
    """Computes batches on one thread at a time. If the thread is lost, a new one follows."""

    name: str
    end: asyncio.Future[None]  # done when its last thread has ended
    # Written by its thread, and by the event loop while it has no thread:
    batch: Batch[Item, Result] = ()  # the items that it has taken, until their results are sent
    expected_s: float = 0.0  # the seconds that the batch should take
    idle: bool = False  # it can take a batch
    running: bool = False  # the thread has not ended
    dismissed: bool = False  # the thread ended normally, and needs no successor
    # Written by the event loop:
    restart: asyncio.TimerHandle | None = None
    watched: Batch[Item, Result] = ()  # the batch at the latest look ...
    looks: int = 0  # ... and how many looks ago it was first seen
    stuck: bool = False


class Runners(Generic[Item, Result]):
    """``count`` runners. The thread of each calls ``serve``, which returns when it should end.

    ``pending`` says whether there are requests without an answer. The runners are watched only
    then, and while a batch is computed. ``on_failure`` is called on the event loop with the batch
    of a thread that has ended or hangs: the batch will have no results, or may have none. It is
    empty if the thread had no batch.
    """

    def __init__(
        self,
        count: int,
        *,
        serve: Callable[[Runner[Item, Result]], None],
        pending: Callable[[], bool],
        on_failure: Callable[[Batch[Item, Result]], None],
        observer: BatchObserver,
    ) -> None:
        self._serve = serve
        self._pending = pending
        self._on_failure = on_failure
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        self.all = [
            Runner[Item, Result](f"runner-{number}", self._loop.create_future())
            for number in range(count)
        ]
        self.stuck = 0  # number of runners that hang
        self.working = count  # number of runners that do not hang; at least 1
        self.all_stuck = False  # every runner hangs
        self._losses = 0  # threads lost since the last finished batch
        self._watching: asyncio.TimerHandle | None = None
        self._given_up = False

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
        """Whether no runner can answer: all hang, or their threads end before a batch is done."""
        return self.all_stuck or self._losses >= HOPELESS_AFTER * len(self.all)

    def start(self) -> None:
        """Start the threads."""
        for runner in self.all:
            self._start(runner)

    def done(self, runner: Runner[Item, Result]) -> None:
        """Called on the runner's thread: it has computed a batch and can take another."""
        runner.idle = True
        self._losses = 0

    def watch(self) -> None:
        """Check the runners regularly, until no request is pending and no batch is computed."""
        if self._watching is None and not self._given_up:
            self._watching = self._loop.call_later(WATCH_S, self._look)

    async def join(self, timeout_s: float) -> None:
        """Wait until all runners have ended, for at most ``timeout_s`` seconds.

        After that, a runner whose thread was lost counts as ended.
        """
        await asyncio.wait([runner.end for runner in self.all], timeout=timeout_s)
        self._given_up = True
        if self._watching is not None:
            self._watching.cancel()
        for runner in self.all:
            if not runner.running:
                self._end(runner)

    def call_on_loop(self, callback: Callable[..., object], *arguments: object) -> None:
        """Make the event loop call ``callback`` soon. If the loop is closed, do nothing."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _start(self, runner: Runner[Item, Result]) -> None:
        runner.restart = None
        runner.running = runner.idle = True
        try:
            threading.Thread(
                target=self._run, args=(runner,), name=runner.name, daemon=True
            ).start()
        except Exception:  # there are too many threads, or too little memory
            logger.exception("no thread can be started for %s", runner.name)
            runner.running = runner.idle = False
            self._replace(runner)

    def _run(self, runner: Runner[Item, Result]) -> None:
        """What each thread runs, from its start to its end."""
        try:
            if sys.platform == "linux":  # elsewhere, the whole process would be nicer
                with suppress(OSError):  # a sandbox may forbid it
                    os.nice(NICE)
            self._serve(runner)
            runner.dismissed = True
        except BaseException:  # even SystemExit: another thread must go on
            logger.exception("the thread of %s ended; another takes its place", runner.name)
        finally:
            runner.running = runner.idle = False
            self.call_on_loop(self._replace, runner)

    def _replace(self, runner: Runner[Item, Result]) -> None:
        """Start another thread soon if the runner lost its thread. May be called repeatedly."""
        if runner.running or runner.restart is not None:
            return
        if runner.dismissed or self._given_up:
            self._end(runner)
            return
        self._losses += 1
        self._observer.runner_lost()
        runner.restart = self._loop.call_later(RESTART_PAUSE_S, self._start, runner)
        batch, runner.batch = runner.batch, ()
        self._on_failure(batch)

    def _end(self, runner: Runner[Item, Result]) -> None:
        if not runner.end.done():
            runner.end.set_result(None)

    def _look(self) -> None:
        """Find out which runners hang, and which have recovered."""
        self._watching = None
        for runner in self.all:
            self._look_at(runner)
            # A thread that ends asks for this itself, unless there was no memory even for that.
            self._replace(runner)
        if self._pending() or any(runner.batch for runner in self.all):
            self.watch()

    def _look_at(self, runner: Runner[Item, Result]) -> None:
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
        seconds = runner.looks * WATCH_S
        limit = max(STUCK_LEAST_S, STUCK_FACTOR * runner.expected_s)
        if not runner.stuck and seconds > limit:
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
