"""Deals the connections of the service to its workers: each to the one that has the fewest."""

import asyncio
import json
import socket
import uuid
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import count

from sentiment_service.errors import NotReady
from sentiment_service.server.arrivals import Arrivals
from sentiment_service.server.workers.worker_process import WorkerProcess

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
