"""Runs the workers of a service: starts them, deals them connections, replaces those that end.

The supervisor knows nothing of texts, models and HTTP, and imports no package for them.
"""

import asyncio
import logging
import math
import os
import signal
import socket
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from types import FrameType

import uvloop

from sentiment_service.errors import NotReady, ShuttingDown, UserError
from sentiment_service.server.arrivals import ACCEPTING_SHARE, QUIET_S, Quiet
from sentiment_service.server.process import announce, bind_sites
from sentiment_service.settings.credentials import Credentials, read_again
from sentiment_service.settings.settings import Settings
from sentiment_service.shared_memory import Board, WorkerPhase
from sentiment_service.workers import channels
from sentiment_service.workers.worker_process import (
    HANGS_S,
    LOADING_S,
    WorkerProcess,
    with_shared_cache,
)

logger = logging.getLogger(__name__)

TICK_S = 0.1  # between two looks at the workers
# Seconds beyond drain-ms after which a worker that stops is killed.
EXIT_S = 5.0
# The service ends when nobody serves and starts have failed this many times for each worker.
MOST_FAILED_STARTS = 3
# The longest pause before a start while nobody serves.
UNSERVED_PAUSE_S = 2.0


def run(settings: Settings, credentials: Credentials, workers: int) -> int:
    """Serve with so many workers until SIGTERM or SIGINT; the worst of their exit codes."""
    with ExitStack() as stack:
        sites = [stack.enter_context(site) for site in bind_sites(settings)]
        settings = with_shared_cache(settings, stack)
        return uvloop.run(Supervisor(settings, credentials, workers, sites).run())


class Supervisor:
    """The workers of a service whose ports are the bound ``sites``."""

    def __init__(
        self, settings: Settings, credentials: Credentials, workers: int, sites: list[socket.socket]
    ) -> None:
        self._settings = settings
        self._credentials = credentials.to_descriptor()  # in force; each worker gets a copy
        self._drain_s = settings.drain_ms / 1000
        self._sites = sites
        self._board, descriptor = Board.create(workers)
        self._woken = asyncio.Event()
        self._workers: list[WorkerProcess] = []
        self._reloads = GroupReload(self._workers)
        self._workers += [
            WorkerProcess(
                number,
                self._board,
                descriptor,
                lambda: self._credentials,
                len(sites),
                settings,
                self._reloads.on_message,
                self._woken.set,
            )
            for number in range(workers)
        ]
        self._dealer = channels.Dealer(sites, self._workers)
        self._stopping = 0  # the signal that stops the service
        self._failed_starts = 0  # of all workers, while none is serving
        self._hung_up = False  # by SIGHUP

    async def run(self) -> int:
        """Serve until a signal; the exit code."""
        # Not the event loop's handlers: it removes them when it ends, and a late signal would kill
        # this process.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGHUP, self._note_hangup)
        reloading = asyncio.create_task(self._reloads.run())
        try:
            if not await self._start_all():
                return 128 + self._stopping if self._stopping else 1
            self._dealer.listen()
            announce(f"with {len(self._workers)} workers", self._sites, self._settings)
            while not self._stopping:
                await self._look()
            return await self._shut_down()
        finally:
            await self._end_all(time.monotonic())
            reloading.cancel()

    # Start

    async def _start_all(self) -> bool:
        """Start the first worker, which measures, and then the others; whether all are ready.

        If not, a signal came, or a worker has said why it failed.
        """
        for together in (self._workers[:1], self._workers[1:]):
            for worker in together:
                worker.start()
            while any(worker.phase is WorkerPhase.STARTING for worker in together):
                await self._pause()
                for worker in together:
                    worker.look()
                    self._check(worker)
                if self._stopping:
                    return False
                if failed := [worker for worker in together if not worker.alive]:
                    if killed := [worker for worker in failed if worker.was_killed]:
                        raise UserError(killed[0].last_end)
                    return False
        return True

    # While it serves

    async def _look(self) -> None:
        """Wait a moment, or until something happens, and see to the workers."""
        await self._pause()
        for worker in self._workers:
            was_alive = worker.alive
            worker.look()
            if was_alive and not worker.alive:
                self._reloads.ended(worker)
                self._note_end(worker, worker.last_end)
            elif worker.alive:
                self._check(worker)
            elif not self._stopping and time.monotonic() >= worker.start_at:
                self._start_again(worker)
        if any(worker.reachable for worker in self._workers):
            self._failed_starts = 0
        self._dealer.look()
        self._reloads.check_models()
        if self._hung_up:
            self._hung_up = False
            self._read_files()
            self._reloads.reload_all()

    def _read_files(self) -> None:
        """Let all workers, also those that are started later, take the new keys and certificate."""
        if read := read_again(self._settings):
            os.close(self._credentials)
            self._credentials = read.to_descriptor()
            for worker in self._workers:
                if not worker.send(channels.NewCredentials(), self._credentials):
                    worker.fault = "did not get the new keys and certificate"

    def _check(self, worker: WorkerProcess) -> None:
        """End the worker if it cannot recover, and kill it if it does not end or hangs."""
        now = time.monotonic()
        if worker.silent_s > HANGS_S and worker.phase is not WorkerPhase.STOPPING:
            worker.kill(f"it was silent for {HANGS_S:g} s")
        elif worker.phase is WorkerPhase.STARTING and now > worker.started_at + LOADING_S:
            worker.kill(f"it was not ready within {LOADING_S:g} s")
        elif now > worker.end_by:
            worker.kill("it did not end in time")
        elif self._stopping or worker.end_by < math.inf:
            pass  # it is ending already
        elif worker.fault or worker.phase is WorkerPhase.HOPELESS:
            what = worker.fault or "cannot recover"
            logger.error("worker %d %s and is replaced", worker.number, what)
            worker.end_connections()
            worker.end(now + self._drain_s + EXIT_S)
        elif worker.phase is WorkerPhase.STOPPING:  # someone sent it SIGTERM
            worker.end_connections()
            worker.end_by = now + self._drain_s + EXIT_S

    def _start_again(self, worker: WorkerProcess) -> None:
        try:
            worker.start()
        except UserError as error:
            self._note_end(worker, str(error))
        else:
            worker.status.restarts += 1

    def _note_end(self, worker: WorkerProcess, how: str) -> None:
        if self._stopping:
            return
        now = time.monotonic()
        if not any(other.reachable for other in self._workers):
            self._failed_starts += worker.failed
            if self._failed_starts >= MOST_FAILED_STARTS * len(self._workers):
                raise UserError(f"no worker can start: {how}")
            logger.error("no worker is left: requests get 503 until one is ready")
            for other in self._workers:
                other.start_at = min(other.start_at, now + UNSERVED_PAUSE_S)
        logger.warning("%s; it is started again in %.1f s", how, worker.start_at - now)

    def _note_hangup(self, number: int, frame: FrameType | None) -> None:
        self._hung_up = True

    # End

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self._stopping and number == signal.SIGINT:  # a second Ctrl-C
            for worker in self._workers:
                worker.kill("second Ctrl-C")
            os._exit(128 + number)
        self._stopping = self._stopping or number

    async def _shut_down(self) -> int:
        """Deal what arrives until it is quiet, while the workers finish; the exit code."""
        logger.info("shutting down")
        stopped_at = time.monotonic()
        # The end of one that had ended before says nothing of this shutdown.
        serving = [
            worker
            for worker in self._workers
            if worker.alive and worker.phase is not WorkerPhase.STARTING
        ]
        for worker in self._workers:
            worker.end(stopped_at + self._drain_s + EXIT_S)
        quiet = Quiet()
        await self._look_while(
            lambda: quiet.seconds(self._arrived()) < QUIET_S,
            stopped_at + ACCEPTING_SHARE * self._drain_s,
        )
        await self._dealer.close()
        await self._look_while(lambda: self._dealer.waiting, stopped_at + self._drain_s)
        await self._end_all(stopped_at + self._drain_s + EXIT_S)
        codes = [worker.exit_code for worker in serving if worker.exit_code is not None]
        for worker in serving:
            if worker.was_killed:
                logger.error("%s", worker.last_end)
        logger.info("stopped")
        return max((code if code >= 0 else 1 for code in codes), default=0)

    async def _look_while(self, going_on: Callable[[], bool], until: float) -> None:
        while time.monotonic() < until and self._any_alive() and going_on():
            await self._look()

    def _any_alive(self) -> bool:
        return any(worker.alive for worker in self._workers)

    def _arrived(self) -> int:
        """A number that grows with each connection and each answer."""
        return self._dealer.accepted + sum(worker.status.answered for worker in self._workers)

    async def _end_all(self, by: float) -> None:
        """Wait until all workers have ended; those that have not by then are killed."""
        self._stopping = self._stopping or signal.SIGTERM
        for worker in self._workers:
            worker.end_connections()
            if worker.alive:
                worker.end(by)
        while self._any_alive():
            await self._look()

    async def _pause(self) -> None:
        """Wait a moment, or until a worker ends."""
        timer = asyncio.get_running_loop().call_later(TICK_S, self._woken.set)
        await self._woken.wait()
        self._woken.clear()
        timer.cancel()


# Seconds in which workers may serve different models: while they switch to new ones.
MIXED_S = 2.0
# A worker that ends does not hold up the others: the next one loads the new bundle as it starts.
LEFT = channels.Fault(ShuttingDown.code, "the worker ends")
NONE_LEFT = channels.Fault(NotReady.code, "no worker could load the model")
LATE = channels.Fault(NotReady.code, "no worker loaded the model in the time allowed")


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
        self._requests: asyncio.Queue[tuple[WorkerProcess, channels.Reload]] = asyncio.Queue()
        self._number = 0  # of the present reload
        self._ended: set[WorkerProcess] = set()  # since it began
        self._mixed_since = 0.0
        self._mixed: set[int] = set()  # the models when all were loaded again for the last time
        # Those whose answer is awaited.
        self._answers: dict[WorkerProcess, asyncio.Future[channels.Fault | None]] = {}

    def on_message(self, worker: WorkerProcess, message: channels.Message) -> None:
        """A worker requests a reload, or reports that it has done its part of the present one."""
        if isinstance(message, channels.Reload):
            self._requests.put_nowait((worker, message))
        elif isinstance(message, channels.Done) and message.reload == self._number:
            self._answered(worker, message.fault)

    def ended(self, worker: WorkerProcess) -> None:
        self._ended.add(worker)
        self._answered(worker, LEFT)

    def check_models(self) -> None:
        """Have all workers load their models again if they serve different ones.

        A worker that was replaced has loaded a bundle that had changed on the disk. If that did not
        help, it is not tried again until other models are served.
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
        min(self._workers, key=lambda worker: worker.rank).send(channels.HangUp())

    async def run(self) -> None:
        while True:
            requester, asked = await self._requests.get()
            fault = await self._reload(asked.model, promote=asked.promote)
            requester.send(channels.Reloaded(asked.request, fault))

    async def _reload(self, model: str, *, promote: bool) -> channels.Fault | None:
        """Have all workers that answer load the model again; why that failed, or None.

        One that is silent is left out: it ends, or ``check_models`` sees to it.
        """
        self._number += 1
        self._ended.clear()
        answering = (WorkerPhase.READY, WorkerPhase.NOT_READY)
        workers = [
            worker for worker in self._workers if worker.phase in answering and not worker.silent
        ]
        faults = await self._have_done(
            channels.Prepare(self._number, model, promote), workers, self._loading_s
        )
        fault = _common(faults.values())
        if fault is not None:
            for worker in workers:
                worker.send(channels.Decided(self._number, switch=False))
            return fault
        prepared = [worker for worker in workers if faults[worker] is None]
        if promote:
            for worker in self._workers:
                worker.promote(model, loads=worker not in prepared)
        switch = channels.Decided(self._number, switch=True)
        return _common((await self._have_done(switch, prepared, None)).values())

    async def _have_done(
        self,
        order: channels.Prepare | channels.Decided,
        workers: Sequence[WorkerProcess],
        limit_s: float | None,
    ) -> dict[WorkerProcess, channels.Fault | None]:
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

    def _answered(self, worker: WorkerProcess, fault: channels.Fault | None) -> None:
        answer = self._answers.get(worker)
        if answer is not None and not answer.done():
            answer.set_result(fault)


def _common(faults: Collection[channels.Fault | None]) -> channels.Fault | None:
    """The fault of all workers together: the first of one that goes on, or that none does."""
    if all(fault and fault.code == LEFT.code for fault in faults):
        return NONE_LEFT
    return next((fault for fault in faults if fault and fault.code != LEFT.code), None)
