"""The models that are served: found by name, loaded again while they answer, drained at the end."""

import asyncio
import gc
import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping

from app.engine.batching.stream_gate import StreamGate
from app.engine.classifier import Classifier
from app.engine.loading import Loaded, load_again
from app.engine.machine.memory import give_back_memory
from app.engine.model import Model
from app.engine.tuning import Plan
from app.engine.worker import Worker
from app.errors import InvalidBundle, ModelNotFound, ServiceError, UserError
from app.lifecycle import Lifecycle
from app.settings import Settings

# A runner whose thread is ending holds its batcher a moment longer.
RUNNERS_END_S = 0.1

logger = logging.getLogger(__name__)


class ServedModels:
    """Classifiers by name; the first answers requests that name none. For the event loop.

    ``classifier_of`` makes the classifier of a loaded model.
    """

    def __init__(
        self,
        settings: Settings,
        lifecycle: Lifecycle,
        cpus: float,
        classifier_of: Callable[[Model, Plan], Classifier],
    ) -> None:
        self._settings = settings
        self._lifecycle = lifecycle
        self._cpus = cpus
        self._classifier_of = classifier_of
        self.classifiers: dict[str, Classifier] = {}
        self._stream_gates: dict[str, StreamGate] = {}  # kept when a model is loaded again
        self._reloading = defaultdict[str, asyncio.Lock](asyncio.Lock)  # by model
        self._loading = asyncio.Lock()  # one model at a time: it takes memory and CPUs
        self._retiring: set[Classifier] = set()  # replaced, with work that they have begun

    def start(self, loaded: Mapping[str, Loaded]) -> None:
        """Have these answer."""
        for name, (model, plan) in loaded.items():
            self.classifiers[name] = self._classifier_of(model, plan)

    def classifier(self, name: str | None) -> Classifier:
        """The named model, or the first.

        Raises:
            ModelNotFound: there is none of that name.
            NotReady, ShuttingDown: no model is there yet, or no more.
        """
        if not self.classifiers:
            self._lifecycle.check()
        if name is None:
            return next(iter(self.classifiers.values()))
        try:
            return self.classifiers[name]
        except KeyError:
            raise ModelNotFound(
                f"there is no model of that name; served are: {', '.join(self.classifiers)}"
            ) from None

    def stream_gate(self, model: str | None) -> StreamGate:
        """Where streams wait for the named model, or the first.

        Raises:
            ModelNotFound, NotReady, ShuttingDown: as ``classifier``.
        """
        name = self.classifier(model).model.name
        gate = StreamGate(lambda: self.classifiers[name].stream_tokens)
        return self._stream_gates.setdefault(name, gate)

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

    def check_live(self) -> None:
        """Return while every model can answer, or can be expected to recover by itself.

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
        self._lifecycle.check()
        for classifier in self.classifiers.values():
            await classifier.check()

    @property
    def loading(self) -> bool:
        """Whether a model is being loaded again, on a thread that nobody can interrupt."""
        return self._loading.locked()

    async def reload(self, name: str) -> None:
        """Load the named model's bundle again, beside the model that answers meanwhile.

        Requests go to the new one from the moment when it is warm. The old one finishes what it
        has begun.

        Raises:
            ModelNotFound, NotReady, ShuttingDown: there is nothing to reload, or no more.
            InvalidBundle: what lies there now cannot be served; the old model goes on.
        """
        self.classifier(name)  # or an error, before there is a lock of that name
        async with self._reloading[name]:
            old = await self._replace(name)
            # Other models need not wait for what this one has begun; the next of this name does,
            # so that no more than two are in memory.
            longest_ms = max(self._settings.drain_ms, self._settings.deadline_ms)
            self._retiring.add(old)
            await old.retire(longest_ms / 1000)
            self._retiring.discard(old)
            del old
            await asyncio.sleep(RUNNERS_END_S)
            gc.collect()  # it refers to itself, and a model is large
            give_back_memory()

    async def _replace(self, name: str) -> Classifier:
        """Load the named model's bundle and have it answer; gives the one that answered before."""
        async with self._loading:
            self._lifecycle.check()
            old = self.classifier(name)
            try:
                new = await self._load(old)
            except UserError as error:
                logger.error("%s was not loaded again: %s", name, error)
                raise InvalidBundle("it cannot be served; the service's log says why") from None
            if self._lifecycle.stopping:
                await new.retire(0)
                self._lifecycle.check()
            self.classifiers[name] = new
            logger.info("%s was loaded again: %s", name, new.plan.summary())
            return old

    async def _load(self, old: Classifier) -> Classifier:
        # Not a thread of the event loop, which would wait for it at its end.
        loader = Worker("loader")
        try:
            steps = load_again(old.model.path, self._settings, self._cpus, old.plan)
            model, plan = await loader.run(steps, deadline=math.inf)
        finally:
            loader.close()
        if model.name != old.model.name:
            raise UserError(f"{model.path} now holds a model named {model.name}")
        return self._classifier_of(model, plan)

    async def drain(self, until: float) -> bool:
        """Finish what was begun, until that moment of ``time.monotonic``; may be called again.

        Returns whether all of it was finished.
        """
        self._lifecycle.close()
        timeout_s = max(0.0, until - time.monotonic())
        classifiers = [*self.classifiers.values(), *self._retiring]
        finished = await asyncio.gather(*(one.retire(timeout_s) for one in classifiers))
        self._lifecycle.computing = any(one.computing for one in classifiers)
        return all(finished)

    async def end(self) -> None:
        """Finish what was begun, in the time that is left, and free the models."""
        self._lifecycle.stop()
        await self.drain(self._lifecycle.stop_by)
        self.classifiers.clear()
        self._stream_gates.clear()

    def summary(self) -> str:
        """The models and what computes them, in a few words."""
        models = (classifier.model for classifier in self.classifiers.values())
        return ", ".join(f"{model.name} ({model.precision}, {model.provider})" for model in models)
