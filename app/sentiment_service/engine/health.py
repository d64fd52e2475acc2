"""Whether the service can answer: the phase of its process, and the health of each model."""

import asyncio
import math
import time
from enum import IntEnum, auto

from sentiment_service.engine.batching.batcher import MicroBatcher
from sentiment_service.engine.model.model import Model, Scored
from sentiment_service.engine.text.text_tokenizer import Encoding
from sentiment_service.errors import NotReady, Overloaded, ServiceError, ShuttingDown


class Phase(IntEnum):
    """The phases of the service, in the order in which they happen."""

    STARTING = auto()
    READY = auto()
    STOPPING = auto()  # new requests are refused; requests in progress are finished
    CLOSING = auto()  # long-lived streams must end, too
    STOPPED = auto()


class Lifecycle:
    """The current phase, and whether the service could stop in time.

    Use it on the event loop only; ``stop`` may also be called in a signal handler.
    """

    def __init__(self, drain_s: float) -> None:
        self._drain_s = drain_s
        self.phase = Phase.STARTING
        self.stopping = False
        self.closing = asyncio.Event()  # set when long-lived streams must end
        self.stop_by = math.inf  # a time of time.monotonic: the end of the drain time
        self.results_lost = False  # time ran out before every accepted request had a result
        self.failure = ""  # what the process cannot repair
        self.computing = False  # time ran out while a runner was still inside inference

    def check(self) -> None:
        """Raise ``NotReady`` while the service starts, and ``ShuttingDown`` once it stops."""
        if self.phase is Phase.STARTING:
            raise NotReady("the service is starting")
        if self.stopping:
            raise ShuttingDown()

    def check_recovers(self) -> None:
        """Raise ``NotReady`` if something failed that only a new process can repair."""
        if self.failure:
            raise NotReady(self.failure)

    def started(self) -> None:
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
        """Record that everything has ended."""
        self.phase, self.stopping = Phase.STOPPED, True


PROBE_TEXT = "ready?"
PROBE_TIMEOUT_S = 1.0


class Health:
    def __init__(self, model: Model, batcher: MicroBatcher[Encoding, Scored]) -> None:
        self._model = model
        self._batcher = batcher
        self._runners = batcher.runners

    @property
    def good(self) -> bool:
        """Whether no runner hangs, and inference works. Nothing is tried."""
        return self._runners.complete and not self._batcher.failing

    def check_live(self) -> None:
        """Raise ``NotReady`` if the device is lost or no runner can answer any more."""
        self.check_device()
        if self._runners.hopeless:
            raise NotReady(f"every runner of {self._model.name} hangs or has failed")

    async def check_ready(self) -> None:
        """Raise ``NotReady`` if inference does not work, or a runner hangs or has no thread.

        After several failed batches, a short text is classified as a test. If that works, the
        service becomes ready again by itself.
        """
        self.check_device()
        if not self._runners.complete:
            raise NotReady(f"a runner of {self._model.name} hangs or has no thread")
        if self._batcher.failing and not await self._probe():
            raise NotReady(f"inference with {self._model.name} keeps failing")

    def check_device(self) -> None:
        if reason := self._batcher.device_lost:
            raise NotReady(f"{self._model.name}: {reason}")

    async def _probe(self) -> bool:
        probe = self._model.tokenizer.encode(PROBE_TEXT)
        try:
            answer = await self._batcher.submit([probe], timeout_s=PROBE_TIMEOUT_S)
        except Overloaded:
            return False
        return not isinstance(answer.results[0], ServiceError)
