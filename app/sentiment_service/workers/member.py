"""A worker's side of what the workers of a service do together: report, reload models, and end."""

import asyncio
import errno
import logging
import os
import signal
import socket
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from typing import cast

from sentiment_service import errors, main
from sentiment_service.engine.model_registry import ModelRegistry
from sentiment_service.errors import first_line
from sentiment_service.requests.service import Worker
from sentiment_service.server import process
from sentiment_service.server.server import Server, serve
from sentiment_service.settings.credentials import Credentials
from sentiment_service.settings.settings import Settings
from sentiment_service.shared_memory import Board
from sentiment_service.workers import channels
from sentiment_service.workers.worker_process import Assignment, take_share

STATUS_S = 0.1  # between two reports to the supervisor and the other workers
# The errors of reloads, by their codes.
ERRORS = {
    error.code: error
    for error in (errors.InvalidBundle, errors.NotFound, errors.NotReady, errors.OutOfMemory)
}

logger = logging.getLogger(__name__)


def run(settings: Settings, credentials: Credentials, assignment: Assignment) -> int:
    """Serve as one of several workers until the supervisor says so; returns the exit code."""
    hangup = process.hangups()
    number, workers = assignment.number, assignment.workers
    with ExitStack() as sockets:
        control, *sites = [
            sockets.enter_context(socket.socket(fileno=descriptor))
            for descriptor in (assignment.control, *assignment.sites)
        ]
        board = Board.open(assignment.board, workers, number)
        settings, cpus, gpu_workers = take_share(settings, number, workers)
        member = Member(control, board, cpus, gpu_workers)
        app = main.create_app(settings, credentials, worker=member)
        return serve(app, sites, hangup, WorkerServer)


class Member(Worker):
    """A worker of several. The Unix socket ``control`` leads to the supervisor."""

    def __init__(self, control: socket.socket, board: Board, cpus: float, gpu_workers: int) -> None:
        super().__init__(board, cpus, gpu_workers)
        self._socket = control
        self._requests: dict[str, asyncio.Future[channels.Fault | None]] = {}
        # By the number of a reload: whether to switch to the new model, once that is decided.
        self._decisions: dict[int, asyncio.Future[bool]] = {}
        self._preparing: set[asyncio.Task[None]] = set()
        self._stopping = False

    def join(
        self,
        models: ModelRegistry,
        *,
        hang_up: Callable[[], None],
        take: Callable[[Credentials], None],
        stop: Callable[[], None],
    ) -> None:
        """Listen to the supervisor: let all models be loaded again, take keys and certificate, or
        stop, because it has ended or this worker must.
        """
        self._models, self._hang_up, self._take, self._stop = models, hang_up, take, stop
        self._control = channels.Control(self._socket, self._on_message, stop)

    async def reload(self, models: ModelRegistry, name: str, *, promote: bool = False) -> None:
        """Have all workers load the model. If one of them cannot, all keep the old one."""
        models.classifiers.of(name)  # raises for an unknown name
        if promote:
            models.candidate_of(name)  # raises if there is none
        if self._stopping:
            raise errors.ShuttingDown()
        # Unique, because the answer may reach the next worker of this number.
        request = uuid.uuid4().hex
        self._requests[request] = reloaded = asyncio.get_running_loop().create_future()
        self._control.send(channels.Reload(name, request, promote))
        try:
            fault = await reloaded
        finally:
            del self._requests[request]
        if fault is not None:
            raise ERRORS.get(fault.code, errors.NotReady)(fault.detail)

    def stop(self) -> None:
        """Give up reloads: the service stops."""
        self._stopping = True
        for reloaded in self._requests.values():
            if not reloaded.done():
                reloaded.set_exception(errors.ShuttingDown())
        for decision in self._decisions.values():
            if not decision.done():
                decision.set_result(False)

    def _on_message(self, message: channels.Message, descriptor: int | None) -> None:
        match message:
            case channels.HangUp():
                self._hang_up()
            case channels.NewCredentials():
                self._take_credentials(descriptor)
            case channels.Reloaded(request, fault):
                reloaded = self._requests.get(request)
                if reloaded is not None and not reloaded.done():
                    reloaded.set_result(fault)
            case channels.Prepare(number, model, promote):
                task = asyncio.create_task(self._prepare(model, number, promote=promote))
                self._preparing.add(task)
                task.add_done_callback(self._preparing.discard)
            case channels.Decided(number, switch):
                decision = self._decisions.get(number)
                if decision is not None and not decision.done():
                    decision.set_result(switch)

    def _take_credentials(self, descriptor: int | None) -> None:
        """Take what is in force from now on, or end: keys may have been revoked."""
        try:
            if descriptor is None:  # the system drops it if the process has no room for it
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            self._take(Credentials.of_descriptor(descriptor))
        except Exception as error:
            logger.error(
                "new keys and certificate cannot be taken: %s; this worker ends", first_line(error)
            )
            self._stop()

    async def _prepare(self, name: str, number: int, *, promote: bool) -> None:
        """Load the model, say so, and do then what is decided. Each step that fails is answered."""
        self._decisions[number] = decision = asyncio.get_running_loop().create_future()
        try:
            async with self._models.replacement(name, promote=promote) as use:
                self._answer(number, None)
                if self._stopping and not decision.done():
                    decision.set_result(False)
                if await decision:
                    await use()
                    self._answer(number, None)
        except errors.ServiceError as error:
            self._answer(number, channels.Fault(error.code, error.detail))
        except Exception:
            logger.exception("%s could not be reloaded", name)
            fault = "a worker failed; the service's log says why"
            self._answer(number, channels.Fault(errors.NotReady.code, fault))
        finally:
            del self._decisions[number]

    def _answer(self, number: int, fault: channels.Fault | None) -> None:
        self._control.send(channels.Done(number, fault))


class WorkerServer(Server):
    """The server of a worker: its connections come from the supervisor, which sees its status."""

    arrivals = channels.HandedOver

    @property
    def _member(self) -> Member:
        return cast(Member, self._service.worker)

    def _tell_ready(self, models: str) -> None:
        logger.info("ready to serve %s", models)
        self._member.join(
            self._service.models,
            hang_up=self._hangup.set,
            take=self.take,
            stop=lambda: self.handle_exit(signal.SIGTERM, None),
        )
        self._tasks.append(asyncio.create_task(self._show_status()))

    async def _show_status(self) -> None:
        while True:
            self._service.status.answered = self.server_state.total_requests
            self._service.show_status()
            await asyncio.sleep(STATUS_S)

    def _read_files(self) -> None:
        """The supervisor reads them."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._member.stop()
        await super().shutdown(sockets)

    async def _accept_no_more(self) -> None:
        """The supervisor ends the channel."""
