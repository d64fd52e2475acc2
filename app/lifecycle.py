"""Where a service is between its start and its end: one object, which everyone asks."""

import asyncio
import math
import time
from enum import IntEnum, auto

from app.errors import NotReady, ShuttingDown


class Stage(IntEnum):
    """In their order."""

    STARTING = auto()
    READY = auto()
    STOPPING = auto()  # nothing new is admitted; what was begun is finished
    CLOSING = auto()  # streams end, which would go on as long as their clients send
    STOPPED = auto()


class Lifecycle:
    """The stage, and how the end went. For the event loop; ``stop`` is safe in a signal handler."""

    def __init__(self, drain_s: float) -> None:
        self._drain_s = drain_s
        self._begin()

    def _begin(self) -> None:
        self.stage = Stage.STARTING
        self.closing = asyncio.Event()  # set when streams must end
        self.stop_by = math.inf  # on the clock time.monotonic
        self.results_lost = False  # the time was over before each accepted request had its result
        self.computing = False  # a runner was still inside inference when the time was over

    def restart(self) -> None:
        """Begin another run where one has ended."""
        if self.stage is Stage.STOPPED:
            self._begin()

    @property
    def stopping(self) -> bool:
        """Whether nothing new is admitted any more."""
        return self.stage >= Stage.STOPPING

    def check(self) -> None:
        """Return while the service admits requests.

        Raises:
            NotReady: it is not started.
            ShuttingDown: it ends.
        """
        if self.stage is Stage.STARTING:
            raise NotReady("the service is starting", retry_after_s=1.0)
        if self.stopping:
            raise ShuttingDown()

    def started(self) -> None:
        """Admit requests, unless a signal came before."""
        if not self.stopping:
            self.stage = Stage.READY

    def stop(self) -> None:
        """Admit nothing more. The time in which all must end begins with the first call."""
        if not self.stopping:
            self.stage = Stage.STOPPING
            self.stop_by = time.monotonic() + self._drain_s

    def close(self) -> None:
        """Have streams end."""
        self.stop()
        self.stage = max(self.stage, Stage.CLOSING)
        self.closing.set()

    def stopped(self) -> None:
        """Everything has ended; another run may start."""
        self.stage = Stage.STOPPED
