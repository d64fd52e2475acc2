"""The lifecycle of the service: one shared object holds its phase, from start to stop."""

import asyncio
import math
import time
from enum import IntEnum, auto

from sentiment_service.errors import NotReady, ShuttingDown


class Phase(IntEnum):
    """The phases of the service, in the order in which they happen."""

    STARTING = auto()
    READY = auto()
    STOPPING = auto()  # new requests are refused; requests in progress are finished
    CLOSING = auto()  # long-lived streams must end, too
    STOPPED = auto()


class Lifecycle:
    """The current phase, and whether the service could stop in time.

    From ``stopping`` on, no new request is admitted. Use it on the event loop only. ``stop`` may
    also be called in a signal handler.
    """

    def __init__(self, drain_s: float) -> None:
        self._drain_s = drain_s
        self._begin()

    def _begin(self) -> None:
        self.phase = Phase.STARTING
        self.stopping = False
        self.closing = asyncio.Event()  # set when long-lived streams must end
        self.stop_by = math.inf  # a time of time.monotonic: the end of the drain time
        self.results_lost = False  # time ran out before every accepted request had a result
        self.failure = ""  # what the process cannot repair
        self.computing = False  # time ran out while a runner was still inside inference

    def restart(self) -> None:
        """Go back to the first phase if the service has stopped; otherwise do nothing."""
        if self.phase is Phase.STOPPED:
            self._begin()

    def check(self) -> None:
        """Return if the service admits requests.

        Raises:
            NotReady: the service is still starting.
            ShuttingDown: the service is stopping or has stopped.
        """
        if self.phase is Phase.STARTING:
            raise NotReady("the service is starting")
        if self.stopping:
            raise ShuttingDown()

    def check_recovers(self) -> None:
        """Return unless something failed that the process cannot repair.

        Raises:
            NotReady: it must be restarted.
        """
        if self.failure:
            raise NotReady(self.failure)

    def started(self) -> None:
        """Admit requests from now on, unless the service is already stopping."""
        if not self.stopping:
            self.phase = Phase.READY

    def stop(self) -> None:
        """Admit no more requests. The first call starts the drain time."""
        if not self.stopping:
            self.phase, self.stopping = Phase.STOPPING, True
            self.stop_by = time.monotonic() + self._drain_s

    def close(self) -> None:
        """Stop, and tell long-lived streams to end."""
        self.stop()
        self.phase = max(self.phase, Phase.CLOSING)
        self.closing.set()

    def stopped(self) -> None:
        """Record that everything has ended. The service may then be started again."""
        self.phase, self.stopping = Phase.STOPPED, True
