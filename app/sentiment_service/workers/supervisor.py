"""Runs the workers of a service: starts them, deals them connections, replaces those that end.

A worker is the whole service of one process. The supervisor knows nothing of texts, models and
HTTP, and imports no package for them.
"""

import asyncio
import json
import logging
import math
import os
import signal
import socket
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count
from types import FrameType

import uvloop

from sentiment_service.errors import NotReady, UserError
from sentiment_service.server.arrivals import ACCEPTING_SHARE, QUIET_S, Arrivals, Quiet
from sentiment_service.server.process import announce, bind_sites
from sentiment_service.settings.credentials import Credentials, read_again
from sentiment_service.settings.settings import Settings
from sentiment_service.shared_memory import Board, WorkerPhase
from sentiment_service.workers.channels import NewCredentials
from sentiment_service.workers.group_reload import GroupReload
from sentiment_service.workers.worker_process import (
    HANGS_S,
    LOADING_S,
    WorkerProcess,
    with_shared_cache,
)

logger = logging.getLogger(__name__)


# Seconds that a client gets to send its request and to read the answer.
MOST_S = 5.0
READ_BYTES = 65_536
HEAD = """\
HTTP/1.1 503 Service Unavailable\r
content-type: application/problem+json\r
content-length: {length}\r
retry-after: {retry_after_s:.0f}\r
x-request-id: {request_id}\r
connection: close\r
\r
"""


class Dealer:
    """Accepts connections at the ``sites``, and gives each to a worker.

    Of the workers that are ready and answer, the one with the fewest open connections gets the
    next; if several have as many, they take turns. While no worker takes one, connections wait
    here; while there is no worker, they get 503. Call ``look`` several times a second.
    """

    def __init__(self, sites: Sequence[socket.socket], workers: Sequence[WorkerProcess]) -> None:
        self._sites = sites
        self._workers = workers
        self._turns = count(1)
        self._latest = dict.fromkeys(range(len(workers)), 0)  # turn, by the worker's number
        self._arrivals: list[Arrivals] = []
        self._undealt: deque[tuple[int, socket.socket]] = deque()  # with their sites
        self._refusing: set[asyncio.Task[None]] = set()

    @property
    def accepted(self) -> int:
        """The number of connections until now."""
        return sum(arrivals.accepted for arrivals in self._arrivals)

    @property
    def waiting(self) -> bool:
        """Whether connections were accepted that no worker could be given yet."""
        return bool(self._undealt)

    def listen(self) -> None:
        """Accept connections from now on.

        Raises:
            UserError: another process listens on one of the addresses.
        """
        for site, listener in enumerate(self._sites):
            self._arrivals.append(Arrivals(listener, partial(self._deal, site)))

    def look(self) -> None:
        """Deal what waits, or was dealt to a worker that has ended."""
        for worker in self._workers:
            self._undealt += worker.returned()
        while self._undealt and self._try(*self._undealt[0]):
            self._undealt.popleft()

    async def close(self) -> None:
        """Accept every connection that the kernel has completed, then stop listening.

        Call ``look`` until none is ``waiting``.
        """
        for arrivals in self._arrivals:
            await arrivals.close()

    def _deal(self, site: int, connection: socket.socket) -> None:
        if self._undealt or not self._try(site, connection):
            self._undealt.append((site, connection))

    def _try(self, site: int, connection: socket.socket) -> bool:
        """Give the connection to a worker, or refuse it if there is none; False: it must wait."""
        reachable = [worker for worker in self._workers if worker.reachable]
        if not reachable:
            refusing = asyncio.create_task(_refuse(connection))
            self._refusing.add(refusing)
            refusing.add_done_callback(self._refusing.discard)
            return True
        return any(
            self._give(worker, site, connection) for worker in sorted(reachable, key=self._order)
        )

    def _give(self, worker: WorkerProcess, site: int, connection: socket.socket) -> bool:
        self._latest[worker.number] = next(self._turns)
        return worker.give(site, connection)

    def _order(self, worker: WorkerProcess) -> tuple[bool, int, int, int]:
        return *worker.rank, worker.status.open, self._latest[worker.number]


async def _refuse(connection: socket.socket) -> None:
    """Answer the connection's request with 503, and end it."""
    loop = asyncio.get_running_loop()
    with connection, suppress(OSError):
        async with asyncio.timeout(MOST_S):
            if await loop.sock_recv(connection, READ_BYTES):
                await loop.sock_sendall(connection, _answer())
                connection.shutdown(socket.SHUT_WR)
            # The kernel would reset a connection with unread bytes, and the client would not see
            # the answer.
            while await loop.sock_recv(connection, READ_BYTES):
                pass


def _answer() -> bytes:
    error, request_id = NotReady("no worker is ready"), uuid.uuid4().hex
    body = json.dumps(error.document(error.detail, request_id))
    head = HEAD.format(length=len(body), retry_after_s=error.retry_after_s, request_id=request_id)
    return (head + body).encode()


TICK_S = 0.1  # between two looks at the workers
# Seconds beyond drain-ms after which a worker that stops is killed.
EXIT_S = 5.0
# The service ends when nobody serves and starts have failed this many times for each worker.
MOST_FAILED_STARTS = 3
# The longest pause before a start while nobody serves.
UNSERVED_PAUSE_S = 2.0


def run(settings: Settings, credentials: Credentials, workers: int) -> int:
    """Serve with this number of workers until SIGTERM or SIGINT, then let them finish.

    Returns the exit code: the worst of the workers'.

    Raises:
        UserError: an address cannot be used, or no worker can start.
    """
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
        self._dealer = Dealer(sites, self._workers)
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
        """Start the first worker, which measures, and then the others, which use what it measured.

        Returns whether all are ready. If not, a signal came, or a worker has said why it failed.

        Raises:
            UserError: a worker was killed, or could not be started.
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
                worker.send(NewCredentials(), self._credentials)

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
