"""The served models: find them by name, reload them while they answer, drain them at the end."""

import asyncio
import errno
import gc
import logging
import math
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from sentiment_service.engine.classifier import Classifier, Classifiers
from sentiment_service.engine.health import Lifecycle
from sentiment_service.engine.host import give_back_memory
from sentiment_service.engine.loading import Loaded, load_again
from sentiment_service.engine.model.model import Model
from sentiment_service.engine.options import EngineConfig
from sentiment_service.engine.shadow import Shadow, ShadowObserver
from sentiment_service.engine.step_thread import StepThread
from sentiment_service.engine.tuning import ServingPlan
from sentiment_service.errors import (
    DeviceLost,
    InvalidBundle,
    NoMemory,
    NotFound,
    NotReady,
    OutOfMemory,
    ServiceError,
    UserError,
    first_line,
)

# The pause before the memory of a replaced model is given back: a runner whose thread is ending
# keeps its batcher, and so the model, in memory a moment longer.
FREE_AFTER_S = 0.1

# What the system says when nothing is wrong with a file: the process, or the machine, lacks file
# descriptors or memory.
LACKS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)

Use = Callable[[], Coroutine[Any, Any, None]]  # what lets a new model answer

logger = logging.getLogger(__name__)


class ModelRegistry:
    """The classifiers that answer, and those that are replaced. Use it on the event loop only.

    ``shadow_observer_of`` makes the observer of a candidate that is tried beside the first model.
    """

    def __init__(
        self,
        config: EngineConfig,
        lifecycle: Lifecycle,
        cpus: float,
        classifier_of: Callable[[Model, ServingPlan], Classifier],
        shadow_observer_of: Callable[[Model, str], ShadowObserver],
    ) -> None:
        self._config = config
        self._lifecycle = lifecycle
        self._cpus = cpus
        self._classifier_of = classifier_of
        self._shadow_observer_of = shadow_observer_of
        self._candidate = config.shadow  # until it is the model
        self.classifiers = Classifiers(lifecycle)
        self._reloading = defaultdict[str, asyncio.Lock](asyncio.Lock)  # by model
        self._loading = asyncio.Lock()  # one load at a time: it takes memory and CPUs
        self._loader: StepThread | None = None  # of the latest reload
        self._retiring: set[Classifier] = set()  # replaced, but not finished yet

    def start(self, loaded: Mapping[str, Loaded]) -> None:
        """Create the classifiers of the loaded models. They answer from now on."""
        for name, (model, plan) in loaded.items():
            self.classifiers[name] = self._classifier_of(model, plan)
        self._try_candidate()

    @property
    def shadow(self) -> Shadow | None:
        """The candidate that is tried beside the first model."""
        return self.classifiers.of(None).shadow

    def _try_candidate(self) -> None:
        """Start the candidate of the first model, if it has none; all models go before it."""
        first = self.classifiers.of(None)
        if self._candidate and first.shadow is None:
            observer_of = partial(self._shadow_observer_of, first.model)
            try:
                first.shadow = Shadow(self._candidate, first.model, self._config, observer_of)
            except (OSError, RuntimeError) as error:  # a limit of the system
                logger.error("no candidate is tried beside %s: %s", first.model.name, error)
        for classifier in self.classifiers.values():
            classifier.shadow = first.shadow

    def candidate_of(self, name: str) -> Path:
        """The bundle that is tried beside the named model."""
        classifier = self.classifiers.of(name)
        if self._candidate is None or classifier is not self.classifiers.of(None):
            raise NotFound(
                f"no candidate is tried beside {name}; start the service with --shadow to try one"
            )
        if classifier.shadow is None or classifier.shadow.loaded is None:
            raise NotReady("the candidate is not loaded; the service's log says why, or when it is")
        return self._candidate

    def check_admission(self, name: str | None, *, timeout_s: float) -> None:
        """Return if the model admits work that must be done within ``timeout_s`` seconds.

        Without the name of a served model, any may. If none does, the last one's error is raised.
        """
        self.classifiers.of(None)  # raises while there is none
        named = self.classifiers.get(name or "")
        *others, last = [named] if named else self.classifiers.values()
        for classifier in others:
            with suppress(ServiceError):
                classifier.check_admission(timeout_s=timeout_s)
                return
        last.check_admission(timeout_s=timeout_s)

    def check_live(self) -> None:
        """Return if every model can answer, or will probably recover by itself."""
        self._lifecycle.check_recovers()
        for classifier in self.classifiers.values():
            classifier.health.check_live()

    async def check_ready(self) -> None:
        self._lifecycle.check()
        self._lifecycle.check_recovers()
        for classifier in self.classifiers.values():
            await classifier.health.check_ready()

    @property
    def good(self) -> bool:
        """Whether every model can answer as far as is known. Nothing is tried."""
        return all(classifier.health.good for classifier in self.classifiers.values())

    @property
    def loading(self) -> bool:
        """Whether a thread is loading a model, perhaps for a reload that was cancelled."""
        return self._loader is not None and self._loader.busy

    async def reload(self, name: str, *, promote: bool = False) -> None:
        """Load the named model's bundle again, while the old model answers.

        With ``promote``, the new model is the candidate, under the same name.

        Raises:
            InvalidBundle: the bundle's present content cannot be served; the old model stays.
            OutOfMemory: there is no memory for both models; the old one stays.
            NotFound: there is no candidate.
            NotReady: it is not loaded yet, or cannot be; or there is no file descriptor or thread.
        """
        async with self.replacement(name, promote=promote) as use:
            await use()

    @asynccontextmanager
    async def replacement(self, name: str, *, promote: bool = False) -> AsyncIterator[Use]:
        """Load the named model's bundle again or its candidate; give what lets that answer.

        That waits until the old one has finished. If it is not called within the block, the old
        model stays. The next reload waits for the end of the block: at most two versions are in
        memory.
        """
        self.classifiers.of(name)  # raises for an unknown name, before a lock is created for it
        async with self._reloading[name]:
            candidate = self.candidate_of(name) if promote else None
            async with self._loading:
                new = [await self._load_again(name, candidate)]
            try:
                yield partial(self._use, name, new, candidate)
            finally:
                new.clear()
                give_back_memory()

    async def _use(self, name: str, new: list[Loaded], candidate: Path | None) -> None:
        model, plan = new.pop()
        old, self.classifiers[name] = self.classifiers[name], self._classifier_of(model, plan)
        if candidate is not None:
            self._candidate = None
        self._try_candidate()
        logger.info(
            "%s was loaded again from %s: %s, %s",
            *(name, model.path, model.short_digest, plan.summary()),
        )
        self._retiring.add(old)
        await old.retire(self._config.retire_ms / 1000)
        self._retiring.discard(old)
        del old
        await asyncio.sleep(FREE_AFTER_S)
        gc.collect()  # the old classifier refers to itself, and its model is large

    async def _load_again(self, name: str, candidate: Path | None) -> Loaded:
        self._lifecycle.check()
        old = self.classifiers.of(name)
        old.health.check_device()
        try:
            new = await self._load(old, candidate)
        except UserError as error:
            logger.error("%s could not be reloaded: %s", name, error)
            if isinstance(error, DeviceLost):
                raise NotReady(f"{name} could not be reloaded: {error}") from None
            if isinstance(error, NoMemory):
                raise OutOfMemory(
                    "there is no memory for the new model beside the old one; the old one stays"
                ) from None
            cause = error.__cause__
            if isinstance(cause, OSError) and cause.errno in LACKS:
                raise NotReady(
                    f"the new bundle cannot be read now: {first_line(cause)}; try again later"
                ) from None
            raise InvalidBundle(
                "the new bundle cannot be served; the service's log says why"
            ) from None
        self._lifecycle.check()
        return new

    async def _load(self, old: Classifier, candidate: Path | None) -> Loaded:
        # Not on one of the event loop's own threads: the loop would wait for it when it ends.
        self._loader = loader = StepThread("loader", nice=True)
        try:
            steps = load_again(old.model, self._config, self._cpus, old.plan, candidate)
            model, plan = await loader.run(steps, deadline=math.inf)
        finally:
            loader.close()
        if model.name != old.model.name:
            raise UserError(
                f"{model.path} now holds a model named {model.name}; start the service with "
                f"--served-name {old.model.name} to serve any bundle under that name"
            )
        if candidate and (old.shadow is None or model.digest != old.shadow.digest):
            raise UserError(f"{model.path} is not what was tried: it was changed since")
        return model, plan

    async def drain(self, until: float) -> bool:
        """Finish the requests in progress, until the time ``until`` of ``time.monotonic``.

        May be called again. Returns whether all were finished.
        """
        self._lifecycle.close()
        timeout_s = max(0.0, until - time.monotonic())
        classifiers = [*self.classifiers.values(), *self._retiring]
        finished = await asyncio.gather(
            *(classifier.retire(timeout_s) for classifier in classifiers)
        )
        self._lifecycle.computing = any(classifier.computing for classifier in classifiers)
        return all(finished)

    async def end(self) -> None:
        """Finish the requests in progress in the time that is left, and free the models."""
        self._lifecycle.stop()
        await self.drain(self._lifecycle.stop_by)
        self.classifiers.clear()

    def summary(self) -> str:
        models = (classifier.model for classifier in self.classifiers.values())
        return ", ".join(
            f"{model.name} ({model.precision}, {model.provider}, {model.short_digest})"
            for model in models
        )
