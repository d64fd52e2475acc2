"""Reloads of a model by all workers: prepared by all, then switched by all, or by none."""

import asyncio
import logging
import time
from collections.abc import Collection, Sequence

from sentiment_service.errors import NotReady, ShuttingDown
from sentiment_service.server.workers.channels import (
    Done,
    Drop,
    Fault,
    HangUp,
    Message,
    Prepare,
    Reload,
    Reloaded,
    Switch,
)
from sentiment_service.server.workers.worker_process import LOADING_S, WorkerProcess
from sentiment_service.shared_memory import WorkerPhase

# Seconds in which workers may serve different models: while they switch to new ones.
MIXED_S = 2.0
# A worker that ends does not hold up the others: the next one loads the new bundle as it starts.
LEFT = Fault(ShuttingDown.code, "the worker ends")
NONE_LEFT = Fault(NotReady.code, "no worker could load the model")
LATE = Fault(NotReady.code, "no worker loaded the model in the time allowed")

logger = logging.getLogger(__name__)


class GroupReload:
    """Carries out the reloads that workers request, one after another, while ``run`` runs."""

    def __init__(
        self,
        workers: Sequence[WorkerProcess],
        *,
        loading_s: float = LOADING_S,
        mixed_s: float = MIXED_S,
    ) -> None:
        self._workers = workers
        self._loading_s, self._mixed_s = loading_s, mixed_s
        self._requests: asyncio.Queue[tuple[WorkerProcess, Reload]] = asyncio.Queue()
        self._number = 0  # of the present reload
        self._ended: set[WorkerProcess] = set()  # since it began
        self._mixed_since = 0.0
        self._mixed: set[int] = set()  # the models when all were loaded again for the last time
        # Those whose answer is awaited.
        self._answers: dict[WorkerProcess, asyncio.Future[Fault | None]] = {}

    def on_message(self, worker: WorkerProcess, message: Message) -> None:
        """A worker requests a reload, or reports that it has done its part of the present one."""
        if isinstance(message, Reload):
            self._requests.put_nowait((worker, message))
        elif isinstance(message, Done) and message.reload == self._number:
            self._answered(worker, message.fault)

    def ended(self, worker: WorkerProcess) -> None:
        """A worker has ended."""
        self._ended.add(worker)
        self._answered(worker, LEFT)

    def check_models(self) -> None:
        """Have all workers load their models again if they serve different ones.

        A bundle may have changed on the disk, and a worker that was replaced has then loaded it.
        If that did not help, it is not tried again until other models are served.
        """
        now = time.monotonic()
        models = {worker.status.models for worker in self._workers}
        ready = all(worker.phase is WorkerPhase.READY for worker in self._workers)
        if ready and len(models) == 1:
            self._mixed = set()
        if len(models) == 1 or not ready or self._answers or not self._requests.empty():
            self._mixed_since = now
        elif now - self._mixed_since > self._mixed_s and models != self._mixed:
            self._mixed_since, self._mixed = now, models
            logger.warning("the workers serve different models: all load them again")
            self.reload_all()

    def reload_all(self) -> None:
        """Have all models loaded again. A worker requests it, because it knows their names."""
        min(self._workers, key=lambda worker: worker.rank).send(HangUp())

    async def run(self) -> None:
        """Carry out reloads until this is cancelled."""
        while True:
            requester, asked = await self._requests.get()
            fault = await self._reload(asked.model)
            requester.send(Reloaded(asked.request, fault))

    async def _reload(self, model: str) -> Fault | None:
        """Have all workers that answer load the model again; why that failed, or None."""
        self._number += 1
        self._ended.clear()
        answering = (WorkerPhase.READY, WorkerPhase.NOT_READY)
        workers = [worker for worker in self._workers if worker.phase in answering]
        faults = await self._have_done(Prepare(self._number, model), workers, self._loading_s)
        fault = _common(faults.values())
        if fault is not None:
            for worker in workers:
                worker.send(Drop(self._number))
            return fault
        prepared = [worker for worker in workers if faults[worker] is None]
        return _common((await self._have_done(Switch(self._number), prepared, None)).values())

    async def _have_done(
        self, order: Prepare | Switch, workers: Sequence[WorkerProcess], limit_s: float | None
    ) -> dict[WorkerProcess, Fault | None]:
        """Send an order to the workers; what each reports when it has carried it out.

        One that is late must be replaced. But if all are late, all go on: they serve the old model.
        """
        loop = asyncio.get_running_loop()
        self._answers = {worker: loop.create_future() for worker in workers}
        for worker in workers:
            if worker in self._ended:  # its successor knows nothing of this reload
                self._answered(worker, LEFT)
            else:
                worker.send(order)
        if workers:
            await asyncio.wait(self._answers.values(), timeout=limit_s)
        late = [worker for worker, answer in self._answers.items() if not answer.done()]
        for worker in late:
            if len(late) < len(workers):
                worker.fault = "did not load a model in the time allowed"
            self._answered(worker, LEFT if worker.fault else LATE)
        faults = {worker: answer.result() for worker, answer in self._answers.items()}
        self._answers = {}
        return faults

    def _answered(self, worker: WorkerProcess, fault: Fault | None) -> None:
        answer = self._answers.get(worker)
        if answer is not None and not answer.done():
            answer.set_result(fault)


def _common(faults: Collection[Fault | None]) -> Fault | None:
    """The fault of all workers together: the first of one that goes on, or that none does."""
    if all(fault and fault.code == LEFT.code for fault in faults):
        return NONE_LEFT
    return next((fault for fault in faults if fault and fault.code != LEFT.code), None)
