"""Whether one model can answer: its runners, its device, and what its latest batches gave."""

from sentiment_service.engine.batching.batcher import MicroBatcher
from sentiment_service.engine.model.model import Model, Scored
from sentiment_service.engine.text.text_tokenizer import Encoding
from sentiment_service.errors import NotReady, Overloaded, ServiceError

PROBE_TEXT = "ready?"
PROBE_TIMEOUT_S = 1.0


class Health:
    """The health of a model and of the batcher in front of it."""

    def __init__(self, model: Model, batcher: MicroBatcher[Encoding, Scored]) -> None:
        self._model = model
        self._batcher = batcher
        self._runners = batcher.runners

    @property
    def good(self) -> bool:
        """Whether no runner hangs, and inference works. Nothing is tried."""
        return self._runners.complete and not self._batcher.failing

    def check_live(self) -> None:
        """Return if the device works and at least one runner can still answer.

        Raises:
            NotReady: only a new process can help.
        """
        self.check_device()
        if self._runners.hopeless:
            raise NotReady(f"every runner of {self._model.name} hangs or has failed")

    async def check_ready(self) -> None:
        """Return if inference works and no runner hangs.

        After several failed batches, a short text is classified as a test. If that works, the
        service becomes ready again by itself.

        Raises:
            NotReady: the device is lost, a runner hangs or has no thread, or inference keeps
                failing.
        """
        self.check_device()
        if not self._runners.complete:
            raise NotReady(f"a runner of {self._model.name} hangs or has no thread")
        if self._batcher.failing and not await self._probe():
            raise NotReady(f"inference with {self._model.name} keeps failing")

    def check_device(self) -> None:
        """Return unless the device is lost.

        Raises:
            NotReady: only a new process can help.
        """
        if reason := self._batcher.device_lost:
            raise NotReady(f"{self._model.name}: {reason}")

    async def _probe(self) -> bool:
        """Whether a short text gets a result."""
        probe = self._model.tokenizer.encode(PROBE_TEXT)
        try:
            answer = await self._batcher.submit([probe], timeout_s=PROBE_TIMEOUT_S)
        except Overloaded:
            return False
        return not isinstance(answer.results[0], ServiceError)
