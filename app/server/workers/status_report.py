"""What this worker says of itself on the board."""

import asyncio
import hashlib
import os
import time
from contextlib import suppress

from uvicorn.server import ServerState

from app.errors import NotReady, ServiceError
from app.service import Service
from app.shared_memory.worker_status import WorkerStage, WorkerStatus

# Seconds between two tests whether inference works again.
TRIES_AGAIN_S = 1.0


class StatusReport:
    """Writes the worker's status, as often as its server calls ``write``."""

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
        status.stage_number = self._stage()
        status.beats += 1
        if self._service.board.workers > 1:
            self._service.sync_workers()

    def _stage(self) -> WorkerStage:
        models = self._service.models
        if self._service.lifecycle.stopping:
            return WorkerStage.STOPPING
        try:
            models.check_live()
        except NotReady:
            return WorkerStage.HOPELESS
        if models.good:
            return WorkerStage.READY
        self._try_again()
        return WorkerStage.NOT_READY

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
        # The manifest has what changes answers: calibration and labels, and digests of all files.
        served = " ".join(f"{model.name} {model.manifest_digest}" for model in models)
        return int.from_bytes(hashlib.sha256(served.encode()).digest()[:6])
