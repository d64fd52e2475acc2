"""The threads that compute batches: one that ends is replaced, one that hangs is noticed.

A thread writes down what it does in plain attributes of its runner, which cannot fail. The event
loop reads them when a thread has told it to, and now and then while something is computed.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

# Seconds between the end of a thread and the start of the next: a fault that comes back at once
# must not keep a CPU and the log busy.
RESTART_PAUSE_S = 0.5

# Threads lost for each runner, without one batch done since, until none counts as able to answer.
HOPELESS_AFTER = 3

# A batch counts as hung when it takes this many times what was predicted ...
STUCK_FACTOR = 20
# ... and at least so many seconds: before the first batch nothing is predicted, and twenty times
# the milliseconds of a small one is nothing on a busy machine.
STUCK_LEAST_S = 5.0

# Seconds between two looks at the runners.
WATCH_S = 0.5

logger = logging.getLogger(__name__)

Text = TypeVar("Text")


@dataclass(slots=True, eq=False)
class Runner(Generic[Text]):
    """One place at which batches are computed, by one thread after the other."""

    name: str
    end: asyncio.Future[None]  # of all its threads
    # These are written by its thread, and before it starts:
    batch: Sequence[Text] = ()  # that it has taken, until the results are on their way
    idle: bool = False  # it can take a batch
    running: bool = False  # the thread has not ended
    dismissed: bool = False  # it ended as it should
    # These by the event loop:
    restart: asyncio.TimerHandle | None = None
    watched: Sequence[Text] = ()  # the batch at the latest look ...
    looks: int = 0  # ... and how many looks ago it was first seen
    stuck: bool = False


class Runners(Generic[Text]):
    """So many threads; each calls ``serve`` with its runner, which returns when it shall end.

    ``expected_s`` predicts how long one of them takes for a batch. ``pending`` says whether there
    are requests without an answer: only then, and while a batch is computed, the runners are
    watched. ``on_failure`` is called on the event loop with a batch that will have no results,
    or may have none, because its thread ended or hangs (an empty one where the thread had none);
    ``on_loss`` whenever a thread ended by an exception, or could not be started.
    """

    def __init__(
        self,
        count: int,
        *,
        serve: Callable[[Runner[Text]], None],
        expected_s: Callable[[Sequence[Text]], float],
        pending: Callable[[], bool],
        on_failure: Callable[[Sequence[Text]], None],
        on_loss: Callable[[], None],
    ) -> None:
        self._serve = serve
        self._expected_s = expected_s
        self._pending = pending
        self._on_failure = on_failure
        self._on_loss = on_loss
        self._loop = asyncio.get_running_loop()
        self._all = [
            Runner[Text](f"runner-{number}", self._loop.create_future()) for number in range(count)
        ]
        self.stuck = 0  # how many hang
        self._losses = 0  # since a batch was done
        self._watching: asyncio.TimerHandle | None = None
        self._given_up = False

    @property
    def idle(self) -> int:
        """How many can take a batch."""
        return sum(runner.idle for runner in self._all)

    @property
    def working(self) -> int:
        """How many do not hang; at least 1."""
        return max(1, len(self._all) - self.stuck)

    @property
    def all_stuck(self) -> bool:
        """Whether every one hangs."""
        return self.stuck == len(self._all)

    @property
    def complete(self) -> bool:
        """Whether every one has a thread, and none hangs."""
        return all(runner.running and not runner.stuck for runner in self._all)

    @property
    def running(self) -> bool:
        """Whether any has a thread that has not ended."""
        return any(runner.running for runner in self._all)

    @property
    def hopeless(self) -> bool:
        """Whether none is left that can answer: all hang, or end without one batch done."""
        return self.all_stuck or self._losses >= HOPELESS_AFTER * len(self._all)

    def start(self) -> None:
        """Start the threads."""
        for runner in self._all:
            self._start(runner)

    def done(self, runner: Runner[Text]) -> None:
        """On its thread: it has computed a batch, and can take another."""
        runner.idle = True
        self._losses = 0

    def watch(self) -> None:
        """Look at the runners from now on, until no request is pending and no batch computed."""
        if self._watching is None and not self._given_up:
            self._watching = self._loop.call_later(WATCH_S, self._look)

    async def join(self, timeout_s: float) -> bool:
        """Wait until all have ended; after ``timeout_s`` seconds no lost thread is waited for.

        Returns whether all have ended.
        """
        await asyncio.wait([runner.end for runner in self._all], timeout=timeout_s)
        self._given_up = True
        if self._watching is not None:
            self._watching.cancel()
        for runner in self._all:
            if not runner.running:
                self._end(runner)
        return not self.running

    def call_on_loop(self, callback: Callable[..., object], *arguments: object) -> None:
        """Have the event loop call it soon, unless it is closed: nobody is left to tell then."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _start(self, runner: Runner[Text]) -> None:
        runner.restart = None
        runner.running = runner.idle = True
        try:
            threading.Thread(
                target=self._run, args=(runner,), name=runner.name, daemon=True
            ).start()
        except Exception:  # there are too many threads, or there is no memory for one
            logger.exception("no thread can be started for %s", runner.name)
            runner.running = runner.idle = False
            self._replace(runner)

    def _run(self, runner: Runner[Text]) -> None:
        """A thread's life."""
        try:
            self._serve(runner)
            runner.dismissed = True
        except BaseException:  # even SystemExit: there is work for another thread
            logger.exception("the thread of %s ended; another takes its place", runner.name)
        finally:
            runner.running = runner.idle = False
            self.call_on_loop(self._replace, runner)

    def _replace(self, runner: Runner[Text]) -> None:
        """Start another thread soon, unless the runner shall end. May be called again."""
        if runner.running or runner.restart is not None:
            return
        if runner.dismissed or self._given_up:
            self._end(runner)
            return
        self._losses += 1
        self._on_loss()
        runner.restart = self._loop.call_later(RESTART_PAUSE_S, self._start, runner)
        batch, runner.batch = runner.batch, ()
        self._on_failure(batch)

    def _end(self, runner: Runner[Text]) -> None:
        if not runner.end.done():
            runner.end.set_result(None)

    def _look(self) -> None:
        """See which runners hang, and which are back."""
        self._watching = None
        for runner in self._all:
            self._look_at(runner)
            # It has told so itself, unless there was no memory even for that.
            self._replace(runner)
        if self._pending() or any(runner.batch for runner in self._all):
            self.watch()

    def _look_at(self, runner: Runner[Text]) -> None:
        batch = runner.batch
        if not batch or batch is not runner.watched:
            if runner.stuck:
                self.stuck -= 1
                logger.warning("%s does not hang any more", runner.name)
            runner.watched, runner.looks, runner.stuck = batch, 0, False
            return
        # Looks are counted, not seconds: those in which the whole process stood still are none of
        # the batch's.
        runner.looks += 1
        seconds = runner.looks * WATCH_S
        expected_s = self._expected_s(batch)
        if not runner.stuck and seconds > max(STUCK_LEAST_S, STUCK_FACTOR * expected_s):
            runner.stuck = True
            self.stuck += 1
            logger.error(
                "%s hangs: a batch of %d texts has taken more than %.1f s, where %.3f s were "
                "expected; its texts fail",
                runner.name,
                len(batch),
                seconds,
                expected_s,
            )
            self._on_failure(batch)
