"""A worker's side of what the workers of a service do together: report, reload models, and end."""

import asyncio
import hashlib
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import suppress

from uvicorn.server import ServerState

from sentiment_service.engine.model_registry import ModelRegistry
from sentiment_service.errors import (
    InvalidBundle,
    NotReady,
    OutOfMemory,
    ServiceError,
    ShuttingDown,
)
from sentiment_service.requests.service import Service
from sentiment_service.settings.credentials import Credentials
from sentiment_service.shared_memory import WorkerPhase, WorkerStatus
from sentiment_service.workers.channels import (
    Control,
    Done,
    Drop,
    Fault,
    HangUp,
    Message,
    NewCredentials,
    Prepare,
    Reload,
    Reloaded,
    Switch,
)

# Seconds between two tests whether inference works again.
TRIES_AGAIN_S = 1.0
# The errors of reloads, by their codes.
ERRORS = {error.code: error for error in (InvalidBundle, NotReady, OutOfMemory)}

logger = logging.getLogger(__name__)


class Member:
    """Listens to the supervisor on the Unix socket ``control``. Create it on the event loop.

    ``hang_up`` is called when all models are to be loaded again, and ``stop`` when the supervisor
    has ended. ``take`` gets new keys and a new certificate.
    """

    def __init__(
        self,
        control: socket.socket,
        models: ModelRegistry,
        *,
        hang_up: Callable[[], None],
        take: Callable[[Credentials], None],
        stop: Callable[[], None],
    ) -> None:
        self._models = models
        self._hang_up = hang_up
        self._take = take
        self._requests: dict[str, asyncio.Future[Fault | None]] = {}
        # By the number of a reload: whether to switch to the new model, once that is decided.
        self._decisions: dict[int, asyncio.Future[bool]] = {}
        self._preparing: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._control = Control(control, self._on_message, stop)

    async def reload(self, name: str) -> None:
        """Have all workers load the named model's bundle again.

        Raises:
            ModelNotFound, NotReady, ShuttingDown: there is no such model to reload now.
            InvalidBundle: a worker cannot serve the bundle's present content; the old model stays
                at all of them.
            OutOfMemory: a worker has no memory for both models; the old model stays likewise.
        """
        self._models.classifier(name)  # raises for an unknown name
        if self._stopping:
            raise ShuttingDown()
        # Unique, because the answer may reach the next worker of this number.
        request = uuid.uuid4().hex
        self._requests[request] = reloaded = asyncio.get_running_loop().create_future()
        self._control.send(Reload(name, request))
        try:
            fault = await reloaded
        finally:
            del self._requests[request]
        if fault is not None:
            raise ERRORS.get(fault.code, NotReady)(fault.detail)

    def stop(self) -> None:
        """Give up reloads: the service stops."""
        self._stopping = True
        for reloaded in self._requests.values():
            if not reloaded.done():
                reloaded.set_exception(ShuttingDown())
        for decision in self._decisions.values():
            if not decision.done():
                decision.set_result(False)

    def _on_message(self, message: Message, descriptor: int | None) -> None:
        match message:
            case HangUp():
                self._hang_up()
            case NewCredentials():
                if descriptor is not None:  # else the process has no descriptor left for it
                    self._take(Credentials.of_descriptor(descriptor))
            case Reloaded(request, fault):
                reloaded = self._requests.get(request)
                if reloaded is not None and not reloaded.done():
                    reloaded.set_result(fault)
            case Prepare(number, model):
                task = asyncio.create_task(self._prepare(model, number))
                self._preparing.add(task)
                task.add_done_callback(self._preparing.discard)
            case Switch(number) | Drop(number):
                decision = self._decisions.get(number)
                if decision is not None and not decision.done():
                    decision.set_result(isinstance(message, Switch))

    async def _prepare(self, name: str, number: int) -> None:
        """Load the model, say so, and do then what is decided. Each step that fails is answered."""
        self._decisions[number] = decision = asyncio.get_running_loop().create_future()
        try:
            async with self._models.replacement(name) as use:
                self._answer(number, None)
                if self._stopping and not decision.done():
                    decision.set_result(False)
                if await decision:
                    await use()
                    self._answer(number, None)
        except ServiceError as error:
            self._answer(number, Fault(error.code, error.detail))
        except Exception:
            logger.exception("%s could not be reloaded", name)
            fault = "a worker failed; the service's log says why"
            self._answer(number, Fault(NotReady.code, fault))
        finally:
            del self._decisions[number]

    def _answer(self, number: int, fault: Fault | None) -> None:
        self._control.send(Done(number, fault))


class StatusReport:
    """What this process says of itself on the board, as often as its server calls ``write``."""

    def __init__(self, service: Service, state: ServerState) -> None:
        self._service = service
        self._state = state
        self.status: WorkerStatus = service.status
        self.status.pid = os.getpid()
        self._trying: asyncio.Task[None] | None = None
        self._tries_at = 0.0

    def write(self) -> None:
        """Write the present state. Call it on the event loop, several times a second."""
        status = self.status
        status.connections = len(self._state.connections)
        status.answered = self._state.total_requests
        status.in_flight = int(self._service.metrics.requests_in_flight.value)
        status.models = self._digest()
        status.phase_number = self._phase()
        status.beats += 1
        if self._service.board.workers > 1:
            self._service.sync_workers()

    def _phase(self) -> WorkerPhase:
        models = self._service.models
        if self._service.lifecycle.stopping:
            return WorkerPhase.STOPPING
        try:
            models.check_live()
        except NotReady:
            return WorkerPhase.HOPELESS
        if models.good:
            return WorkerPhase.READY
        self._try_again()
        return WorkerPhase.NOT_READY

    def _try_again(self) -> None:
        """Classify a text as a test. Without requests, nothing else would find that it works."""
        now = time.monotonic()
        if now >= self._tries_at and (self._trying is None or self._trying.done()):
            self._tries_at = now + TRIES_AGAIN_S
            self._trying = asyncio.create_task(self._try())

    async def _try(self) -> None:
        with suppress(ServiceError):  # it is tried again
            await self._service.models.check_ready()

    def _digest(self) -> int:
        models = (classifier.model for classifier in self._service.models.classifiers.values())
        served = " ".join(f"{model.name} {model.digest}" for model in models)
        return int.from_bytes(hashlib.sha256(served.encode()).digest()[:6])
