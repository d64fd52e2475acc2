"""What the routes share: the served models and whether the service takes work."""

import asyncio
import gc
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import cast

from fastapi import Request

from app.api.classifier import Classifier
from app.errors import InvalidBundle, ModelNotFound, NotReady, ShuttingDown, UserError
from app.metrics import Metrics
from app.settings import Settings

# A classifier of the bundle where another one's lies.
Load = Callable[[Classifier], Awaitable[Classifier]]

# A runner that has said its last word still holds its batcher for a moment.
RUNNERS_END_S = 0.1

logger = logging.getLogger(__name__)


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
        self._reloading = defaultdict[str, asyncio.Lock](asyncio.Lock)  # by model
        self._loading = asyncio.Lock()  # one model at a time: it takes memory and CPUs
        self.stopping = False
        self.closing = asyncio.Event()  # what goes on until its client ends it must end now
        self.abandoned = False  # a runner was still computing when the drain's time was over
        self._stop_by = 0.0

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
            await old.retire(longest_ms / 1000)
            del old
            await asyncio.sleep(RUNNERS_END_S)
            gc.collect()  # it refers to itself, and a model is large

    async def _replace(self, name: str) -> Classifier:
        """Load the named model's bundle and have it answer; gives the one that answered before."""
        async with self._loading:
            if self.stopping:
                raise ShuttingDown("the service is shutting down", retry_after_s=1.0)
            old = self.classifier(name)
            if self.load is None:
                raise NotReady("the service is starting", retry_after_s=1.0)
            try:
                new = await self.load(old)
            except UserError as error:
                logger.error("%s was not loaded again: %s", name, error)
                raise InvalidBundle("it cannot be served; the service's log says why") from None
            if self.stopping:
                await new.drain(0)
                raise ShuttingDown("the service is shutting down", retry_after_s=1.0)
            self.classifiers[name] = new
            logger.info("%s was loaded again: %s", name, new.plan.summary())
            return old

    async def check_ready(self) -> None:
        """Return while every model answers.

        Raises:
            NotReady, ShuttingDown: the service is not started, fails or ends.
        """
        if self.stopping:
            raise ShuttingDown("the service is shutting down", retry_after_s=1.0)
        if not self.classifiers:
            raise NotReady("the service is starting", retry_after_s=1.0)
        for classifier in self.classifiers.values():
            await classifier.check()

    async def drain(self) -> None:
        """Finish what was admitted, within ``drain_ms`` of the first ``stop``."""
        self.stop()
        # The server may have used it up, but runners without work end in a moment.
        timeout_s = max(0.2, self._stop_by - time.monotonic())
        ended = await asyncio.gather(*(c.drain(timeout_s) for c in self.classifiers.values()))
        self.abandoned = not all(ended)

    def summary(self) -> str:
        """The models and what computes them, in a few words."""
        models = (classifier.model for classifier in self.classifiers.values())
        return ", ".join(f"{model.name} ({model.precision}, {model.provider})" for model in models)

    def stop(self) -> None:
        """Be no longer ready and admit nothing more. Safe in a signal handler."""
        if not self.stopping:
            self._stop_by = time.monotonic() + self.settings.drain_ms / 1000
        self.stopping = True
        for classifier in self.classifiers.values():
            classifier.stop()
