"""What the requests of an application share, in which order it starts and ends, and what an adapter
adds to it: the formats of another server, or another protocol.
"""

import asyncio
import hashlib
import importlib.metadata
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence, Set
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from sentiment_service.engine.classifier import Classifier
from sentiment_service.engine.health import Lifecycle
from sentiment_service.engine.host import available_cpus, available_memory
from sentiment_service.engine.loading import Loaded
from sentiment_service.engine.model.model import Model
from sentiment_service.engine.model_registry import ModelRegistry
from sentiment_service.engine.step_thread import StepThread
from sentiment_service.engine.tuning import ServingPlan
from sentiment_service.errors import NotReady, ServiceError, ShuttingDown
from sentiment_service.observability import logs
from sentiment_service.observability.metrics import Metrics
from sentiment_service.observability.observers import ModelObserver, ShadowCounts, Tracer
from sentiment_service.requests.limits import Access, InflightBytes, Paths, Proxies
from sentiment_service.settings.credentials import Credentials
from sentiment_service.settings.settings import Settings
from sentiment_service.shared_memory import Board, WorkerPhase, WorkerStatus, statuses

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

# Unless max_inflight_bytes is set, request bodies may take 1 / MEMORY_SHARE of the memory.
MEMORY_SHARE = 8
MOST_INFLIGHT_BYTES = 256 * 2**20  # of a larger memory as well: room for 128 bodies of full size
TRIES_AGAIN_S = 1.0  # between two tests whether inference works again
COUNTS_S = 1.0  # between two comparisons with the connections of the other workers
MOST_ABOVE = 0.1  # share of their mean by which a worker may have more


@dataclass
class Worker:
    """This process among the workers of its service: unless told otherwise, the only one."""

    board: Board = field(default_factory=Board.alone)
    cpus: float = field(default_factory=available_cpus)  # its share
    gpu_workers: int = 1  # that share a GPU

    async def reload(self, models: ModelRegistry, name: str, *, promote: bool = False) -> None:
        """Load a model again, or its candidate in its place, at all workers of the service."""
        await models.reload(name, promote=promote)


class Service:
    def __init__(
        self,
        settings: Settings,
        paths: Paths,
        *,
        credentials: Credentials | None = None,
        worker: Worker | None = None,
    ) -> None:
        """``paths`` are those of the application and its adapters."""
        self.settings = settings
        self.paths = paths
        self.often_asked = paths.probes | paths.quiet
        self.worker = worker or Worker()
        self.board = board = self.worker.board
        self.workers = statuses(board)
        self.status = self.workers[board.number or 0]
        self.status.pid = os.getpid()
        credentials = credentials or Credentials.read(settings)
        self.access = Access(settings, paths, board, credentials)
        self.proxies = Proxies(settings.trusted_proxies)
        self.version = importlib.metadata.version("sentiment-service")
        self.started_at = int(time.time())  # Unix seconds
        self.connections = 0  # that are open
        self.surplus = 0  # of them: that many answers should end theirs, for another worker
        self._counts_at = 0.0
        self.metrics = Metrics(board)
        self.metrics.certificate_expires.watch(lambda: self.access.credentials.certificate_expires)
        self.lifecycle = Lifecycle(settings.drain_ms / 1000)
        self.config = settings.engine_config(self.worker.gpu_workers)
        shadow_observer_of = partial(ShadowCounts, self.metrics)
        self.models = ModelRegistry(
            self.config, self.lifecycle, self.worker.cpus, self._classifier_of, shadow_observer_of
        )
        self._trying: asyncio.Task[None] | None = None
        self._tries_at = 0.0
        self.step_thread: StepThread  # for work that would block the event loop; set by running()
        endpoint = settings.otlp_endpoint
        self.tracer = Tracer(endpoint, version=self.version) if endpoint else None
        self.logs_requests = False  # set by running()
        least = 2 * settings.max_body_bytes  # a compressed body and its decompressed content
        share = max(least, min(available_memory() // MEMORY_SHARE, MOST_INFLIGHT_BYTES))
        self.inflight = InflightBytes(settings.max_inflight_bytes or share, board.parts("bodies"))
        # Lines of a stream have no deadline, so all streams together get only half of the bytes.
        self.stream_inflight = InflightBytes(
            self.inflight.limit // 2, board.parts("streams"), within=self.inflight
        )

    @asynccontextmanager
    async def running(self, loaded: Mapping[str, Loaded]) -> AsyncIterator[None]:
        """Serve these models. At the end, accepted work is finished, or its time is over."""
        async with AsyncExitStack() as stack:
            stack.callback(self.metrics.registry.publish)
            stack.callback(self.lifecycle.stopped)
            if self.tracer:
                stack.push_async_callback(asyncio.to_thread, self.tracer.close)
            self.logs_requests = logs.logs_requests(self.settings.access_log)
            self.step_thread = StepThread("tokenizer")
            stack.callback(self.step_thread.close)
            stack.push_async_callback(self.models.end)
            self.models.start(loaded)
            self.lifecycle.started()
            yield

    def check_live(self) -> None:
        """Return while at least one worker can answer, or will probably recover."""
        try:
            self.models.check_live()
        except NotReady:
            lost = (WorkerPhase.HOPELESS, WorkerPhase.ENDED)
            if all(other.phase in lost for other in self._others()):
                raise

    async def check_ready(self) -> None:
        """Return while at least one worker answers."""
        try:
            await self.models.check_ready()
        except (NotReady, ShuttingDown):
            if not any(other.phase is WorkerPhase.READY for other in self._others()):
                raise

    def _others(self) -> list[WorkerStatus]:
        return [worker for worker in self.workers if worker is not self.status]

    def show_status(self) -> None:
        """Write on the board what this process is doing, and take from it what others count."""
        status = self.status
        status.connections = self.connections
        status.in_flight = int(self.metrics.requests_in_flight.value)
        models = (classifier.model for classifier in self.models.classifiers.values())
        served = " ".join(f"{model.name} {model.digest}" for model in models)
        status.models = int.from_bytes(hashlib.sha256(served.encode()).digest()[:6])
        status.phase_number = self._phase()
        status.beats += 1
        if len(self.workers) > 1:
            self.metrics.registry.publish()
            self.access.catch_up()
            self._count_surplus()

    def _count_surplus(self) -> None:
        """How many kept connections another worker should have: one that was replaced has none."""
        if (now := time.monotonic()) < self._counts_at:
            return
        self._counts_at = now + COUNTS_S
        ready = [worker.open for worker in self.workers if worker.phase is WorkerPhase.READY]
        mean = sum(ready) / max(1, len(ready))
        self.surplus = int(self.status.open - mean * (1 + MOST_ABOVE) - 1)

    def _phase(self) -> WorkerPhase:
        if self.lifecycle.stopping:
            return WorkerPhase.STOPPING
        try:
            self.models.check_live()
        except NotReady:
            return WorkerPhase.HOPELESS
        if self.models.good:
            return WorkerPhase.READY
        now = time.monotonic()
        if now >= self._tries_at and (self._trying is None or self._trying.done()):
            # Without requests, nothing else would find that inference works again.
            self._tries_at = now + TRIES_AGAIN_S
            self._trying = asyncio.create_task(self._try())
        return WorkerPhase.NOT_READY

    async def _try(self) -> None:
        with suppress(ServiceError):  # it is tried again
            await self.models.check_ready()

    def _classifier_of(self, model: Model, plan: ServingPlan) -> Classifier:
        observer = ModelObserver(self.metrics, self.tracer, model, version=self.version)
        return Classifier(
            model,
            plan,
            self.config,
            observer,
            step_thread=self.step_thread,
            lifecycle=self.lifecycle,
        )


class SideServer(Protocol):
    """A server of another protocol than HTTP, on the same event loop."""

    async def start(self) -> None: ...

    async def stop(self, stop_by: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Adapter:
    """One adapter. ``ADAPTERS`` in ``main.py`` names the modules whose ``ADAPTER`` it is."""

    routes: "Sequence[BaseRoute]" = ()  # of the class ``http.routes.Route``
    paths: Paths = field(default_factory=Paths)
    instances: Set[str] = frozenset()  # the paths that read Vertex AI's form
    # By the path of another route and a field of the body: the route that answers it.
    forms: "Mapping[tuple[str, str], BaseRoute]" = field(default_factory=dict)
    # Makes a server on the event loop; raises UserError if it cannot use its address.
    server: Callable[[Service], SideServer] | None = None
    # The adapter to serve, for one that depends on the settings or on other adapters.
    configured: "Callable[[Settings, Sequence[Adapter]], Adapter] | None" = None
