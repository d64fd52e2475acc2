"""What the routes share: the served models and whether the service takes work."""

import asyncio
import gc
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import cast

from fastapi import Request

from app.engine.batching.stream_gate import StreamGate
from app.engine.classifier import Classifier
from app.engine.machine.memory import available_memory
from app.engine.worker import Worker
from app.errors import (
    InvalidBundle,
    ModelNotFound,
    NotReady,
    ServiceError,
    ShuttingDown,
    UserError,
)
from app.observability.metrics import Metrics
from app.settings import Settings

# A classifier of the bundle where another one's lies.
Load = Callable[[Classifier], Awaitable[Classifier]]

# A runner that has said its last word still holds its batcher for a moment.
RUNNERS_END_S = 0.1

# Of the memory, for bodies, unless it is set. A body becomes texts and tokens, which take as much
# again, and the model has to fit beside them.
MEMORY_SHARE = 8

logger = logging.getLogger(__name__)


class InflightBytes:
    """The bytes that requests hold in their bodies, all together. For the event loop.

    What is taken is taken from ``within``, too, of which this is a part.
    """

    def __init__(self, limit: int, *, within: "InflightBytes | None" = None) -> None:
        self.limit = limit
        self.taken = 0
        self._within = within

    @property
    def left(self) -> int:
        """Bytes that may still be taken."""
        return self.limit - self.taken

    def take(self, size: int) -> bool:
        """Whether there was room for so many more."""
        if size > self.left or (self._within is not None and not self._within.take(size)):
            return False
        self.taken += size
        return True

    def give(self, size: int) -> None:
        """Give back what was taken."""
        self.taken -= size
        if self._within is not None:
            self._within.give(size)


class Service:
    """The state of one application, from ``create_app`` to the end of its lifespan."""

    def __init__(self, settings: Settings, *, version: str, cpus: float) -> None:
        self.settings = settings
        self.version = version
        self.cpus = cpus
        self.started_at = int(time.time())  # Unix seconds
        self.metrics = Metrics()
        self.classifiers: dict[str, Classifier] = {}
        self.load: Load | None = None  # set while the service runs
        self.worker: Worker  # for what would hold the event loop up, from the start of the service
        least = 2 * settings.max_body_bytes  # a compressed one and what it unpacks to
        share = max(least, available_memory() // MEMORY_SHARE)
        self.inflight = InflightBytes(settings.max_inflight_bytes or share)
        # A line of a stream has no deadline: all streams should not hold all that there is.
        self.stream_inflight = InflightBytes(self.inflight.limit // 2, within=self.inflight)
        self._stream_gates: dict[str, StreamGate] = {}  # by model, whichever load of it
        self._reloading = defaultdict[str, asyncio.Lock](asyncio.Lock)  # by model
        self._loading = asyncio.Lock()  # one model at a time: it takes memory and CPUs
        self._retiring: set[Classifier] = set()  # replaced, with work that they have begun
        self.stopping = False
        self.closing = asyncio.Event()  # what goes on until its client ends it must end now
        self.abandoned = False  # a runner was still computing when the drain's time was over
        self.stop_by = 0.0  # on the clock time.monotonic, once it stops

    @classmethod
    def of(cls, request: Request) -> "Service":
        """The service that a request came to."""
        return cast(Service, request.app.state.service)

    def classifier(self, name: str | None) -> Classifier:
        """The named model, or the first.

        Raises:
            ModelNotFound: there is none of that name.
            NotReady: the service is not started.
        """
        if not self.classifiers:
            raise NotReady("the service is starting", retry_after_s=1.0)
        if name is None:
            return next(iter(self.classifiers.values()))
        try:
            return self.classifiers[name]
        except KeyError:
            raise ModelNotFound(
                f"there is no model of that name; served are: {', '.join(self.classifiers)}"
            ) from None

    @property
    def loading(self) -> bool:
        """Whether a model is being loaded again, on a thread that nobody can interrupt."""
        return self._loading.locked()

    def check_admission(self, *, timeout_s: float) -> None:
        """Return while any model takes work that must be done within so many seconds.

        Raises:
            Overloaded, ShuttingDown: none does.
        """
        refusal: ServiceError | None = None
        for classifier in self.classifiers.values():
            try:
                classifier.check_admission(timeout_s=timeout_s)
                return
            except ServiceError as error:
                refusal = error
        if refusal is not None:
            raise refusal

    def stream_gate(self, model: str | None) -> StreamGate:
        """Where streams wait for the named model, or the first.

        Raises:
            ModelNotFound, NotReady: as ``classifier``.
        """
        name = self.classifier(model).model.name
        gate = StreamGate(lambda: self.classifiers[name].stream_tokens)
        return self._stream_gates.setdefault(name, gate)

    async def reload(self, name: str) -> None:
        """Load the named model's bundle again, beside the model that answers meanwhile.

        Requests go to the new one from the moment when it is warm; those that the old one has
        begun, it finishes.

        Raises:
            ModelNotFound, NotReady, ShuttingDown: there is nothing to reload, or no more.
            InvalidBundle: what lies there now cannot be served; the old model goes on.
        """
        self.classifier(name)  # or an error, before there is a lock of that name
        async with self._reloading[name]:
            old = await self._replace(name)
            # Other models need not wait for what this one has begun; the next of this name does,
            # so that no more than two are in memory.
            longest_ms = max(self.settings.drain_ms, self.settings.deadline_ms)
            self._retiring.add(old)
            await old.retire(longest_ms / 1000)
            self._retiring.discard(old)
            del old
            await asyncio.sleep(RUNNERS_END_S)
            gc.collect()  # it refers to itself, and a model is large

    async def _replace(self, name: str) -> Classifier:
        """Load the named model's bundle and have it answer; gives the one that answered before."""
        async with self._loading:
            if self.stopping:
                raise ShuttingDown()
            old = self.classifier(name)
            if self.load is None:
                raise NotReady("the service is starting", retry_after_s=1.0)
            try:
                new = await self.load(old)
            except UserError as error:
                logger.error("%s was not loaded again: %s", name, error)
                raise InvalidBundle("it cannot be served; the service's log says why") from None
            if self.stopping:
                await new.retire(0)
                raise ShuttingDown()
            self.classifiers[name] = new
            logger.info("%s was loaded again: %s", name, new.plan.summary())
            return old

    def check_live(self) -> None:
        """Return while every model can answer, or can be expected to come back by itself.

        Raises:
            NotReady: the process has to be restarted.
        """
        for classifier in self.classifiers.values():
            classifier.check_live()

    async def check_ready(self) -> None:
        """Return while every model answers.

        Raises:
            NotReady, ShuttingDown: the service is not started, fails or ends.
        """
        if self.stopping:
            raise ShuttingDown()
        if not self.classifiers:
            raise NotReady("the service is starting", retry_after_s=1.0)
        for classifier in self.classifiers.values():
            await classifier.check()

    async def drain(self, until: float) -> bool:
        """Finish what was begun, until that moment of ``time.monotonic``.

        Returns whether all of it was finished.
        """
        self.stop()
        self.closing.set()
        timeout_s = max(0.0, until - time.monotonic())
        classifiers = [*self.classifiers.values(), *self._retiring]
        finished = await asyncio.gather(*(one.retire(timeout_s) for one in classifiers))
        self.abandoned = any(one.computing for one in classifiers)
        return all(finished)

    def summary(self) -> str:
        """The models and what computes them, in a few words."""
        models = (classifier.model for classifier in self.classifiers.values())
        return ", ".join(f"{model.name} ({model.precision}, {model.provider})" for model in models)

    def stop(self) -> None:
        """Be no longer ready and admit nothing more. Safe in a signal handler."""
        if not self.stopping:
            self.stop_by = time.monotonic() + self.settings.drain_ms / 1000
        self.stopping = True
        for classifier in self.classifiers.values():
            classifier.stop()
