"""What one application is made of, and in which order that starts and ends."""

import asyncio
import importlib.metadata
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import cast

from fastapi import Request

from app.api.inflight import InflightBytes
from app.engine.classifier import Classifier
from app.engine.loading import Loaded
from app.engine.machine.cpu import available_cpus
from app.engine.machine.memory import available_memory
from app.engine.model import Model
from app.engine.served_models import ServedModels
from app.engine.tuning import Plan
from app.engine.worker import Worker
from app.lifecycle import Lifecycle
from app.observability.metrics import Metrics
from app.observability.observer import ModelObserver
from app.observability.traces import Tracer
from app.settings import Settings

# The part of the memory that request bodies may take, unless it is set. A body becomes texts and
# tokens, which take as much again, and the model has to fit beside them.
MEMORY_SHARE = 8


class Service:
    """Everything that the routes of an application share."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.version = importlib.metadata.version("sentiment-service")
        self.cpus = available_cpus()
        self.started_at = int(time.time())  # Unix seconds
        self.metrics = Metrics()
        self.lifecycle = Lifecycle(settings.drain_ms / 1000)
        self.models = ServedModels(settings, self.lifecycle, self.cpus, self._classifier_of)
        self.worker: Worker  # for work that would hold up the event loop, while the service runs
        self.tracer: Tracer | None = None
        least = 2 * settings.max_body_bytes  # a compressed one and what it unpacks to
        share = max(least, available_memory() // MEMORY_SHARE)
        self.inflight = InflightBytes(settings.max_inflight_bytes or share)
        # A line of a stream has no deadline: all streams should not hold all that there is.
        self.stream_inflight = InflightBytes(self.inflight.limit // 2, within=self.inflight)

    @classmethod
    def of(cls, request: Request) -> "Service":
        """The service that a request came to."""
        return cast(Service, request.app.state.service)

    @asynccontextmanager
    async def running(self, loaded: Mapping[str, Loaded]) -> AsyncIterator[None]:
        """Serve these models; at the end all that was begun is finished, or its time is over.

        Raises:
            UserError: traces are asked for and their package is not installed.
        """
        async with AsyncExitStack() as stack:
            self.lifecycle.restart()
            stack.callback(self.lifecycle.stopped)
            if self.settings.otlp_endpoint:
                self.tracer = Tracer(self.settings.otlp_endpoint, version=self.version)
                stack.push_async_callback(asyncio.to_thread, self.tracer.close)
            self.worker = Worker("tokenizer")
            stack.callback(self.worker.close)
            stack.push_async_callback(self.models.end)
            self.models.start(loaded)
            self.lifecycle.started()
            yield

    def _classifier_of(self, model: Model, plan: Plan) -> Classifier:
        observer = ModelObserver(self.metrics, self.tracer, model, version=self.version)
        return Classifier(
            model, plan, self.settings, observer, worker=self.worker, lifecycle=self.lifecycle
        )
