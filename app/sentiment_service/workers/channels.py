"""The Unix sockets between the supervisor and a worker: for messages, and for connections.

A connection that waits in such a socket would end with the worker. So the supervisor keeps the
worker's end open, too, and takes back what a worker that has ended or hangs has not taken.
"""

import asyncio
import os
import socket
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from sentiment_service.errors import NotReady
from sentiment_service.server.arrivals import Arrivals

if TYPE_CHECKING:
    from sentiment_service.workers.worker_process import WorkerProcess

MESSAGE_BYTES = 65_536  # at most; the longest name the served models
# What goes with a connection, because the kernel passes no descriptor without a byte.
MESSAGE = b"c"


class Fault(Struct, frozen=True):
    """Why a reload failed: the code and the detail of a ServiceError."""

    code: str
    detail: str


class Reload(Struct, frozen=True, tag=True):
    """A worker asks that all workers load a model again, or its candidate in its place.

    ``request`` is in the answer.
    """

    model: str
    request: str
    promote: bool


class Reloaded(Struct, frozen=True, tag=True):
    """The answer."""

    request: str
    fault: Fault | None


class Prepare(Struct, frozen=True, tag=True):
    """The supervisor has a worker load it; ``reload`` is the number of the reload."""

    reload: int
    model: str
    promote: bool


class Decided(Struct, frozen=True, tag=True):
    """Whether all can: then the worker lets its new model answer, else it keeps the old one."""

    reload: int
    switch: bool


class Done(Struct, frozen=True, tag=True):
    """A worker has done what it was told last, or could not."""

    reload: int
    fault: Fault | None


class HangUp(Struct, frozen=True, tag=True):
    """The worker asks to have each of its models loaded again."""


class NewCredentials(Struct, frozen=True, tag=True):
    """Keys and certificate that are in force from now on; their file comes with the message."""


Message = Reload | Reloaded | Prepare | Decided | Done | HangUp | NewCredentials
DECODER = msgspec.json.Decoder(Message)


class Control:
    """One end of the socket for messages, which come in order, perhaps with a file descriptor."""

    def __init__(
        self,
        channel: socket.socket,
        on_message: Callable[[Message, int | None], None],
        on_end: Callable[[], None],
    ) -> None:
        self._channel = channel
        self._on_message = on_message
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        channel.setblocking(False)
        self._loop.add_reader(channel, self._read)

    def send(self, message: Message, *descriptors: int) -> bool:
        """Send a message; False if it is lost: the other end has ended, or reads nothing."""
        try:
            socket.send_fds(self._channel, [msgspec.json.encode(message)], descriptors)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Send and read no more; may be called more than once."""
        if self._channel.fileno() >= 0:
            self._loop.remove_reader(self._channel)
            self._channel.close()

    def _read(self) -> None:
        try:
            received, descriptors, _, _ = socket.recv_fds(self._channel, MESSAGE_BYTES, 1)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if received:
            self._on_message(DECODER.decode(received), next(iter(descriptors), None))
        else:
            self.close()
            self._on_end()


class Channel:
    """Both ends of a socket for connections: the supervisor's, and the one a worker inherits."""

    def __init__(self) -> None:
        self._end, self.worker_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # The worker has a copy of its end's descriptor, so for both it is one that does not block.
        for end in (self._end, self.worker_end):
            end.setblocking(False)

    def give(self, connection: socket.socket) -> bool:
        """Send the connection to the worker and close it here; False if the channel is full."""
        try:
            socket.send_fds(self._end, [MESSAGE], [connection.fileno()])
        except OSError:
            return False
        connection.close()
        return True

    def end(self) -> None:
        """Give no more connections. The worker sees the end when it has taken those that it has."""
        self._end.shutdown(socket.SHUT_WR)

    def take_back(self) -> list[socket.socket]:
        """What the worker has not taken. The worker may take some at the same time."""
        returned: list[socket.socket] = []
        with suppress(OSError):  # nothing is left, or no file descriptor
            while (received := _receive(self.worker_end))[0]:
                returned += received[1]
        return returned

    def close(self) -> None:
        """The worker has ended. What it has not taken is lost, unless it was taken back before."""
        self._end.close()
        self.worker_end.close()


class HandedOver(Arrivals):
    """The connections that arrive at a worker through its end. The supervisor ends the channel."""

    def _listen(self) -> None:
        """Connections come from the start."""

    def _next(self) -> socket.socket:
        message, connections = _receive(self._site)
        if connections:
            return connections[0]
        if not message:
            self._loop.remove_reader(self._site)
            self._site.close()
        raise BlockingIOError

    async def _refuse_more(self) -> None:
        """This is the supervisor's part."""


def _receive(worker_end: socket.socket) -> tuple[bytes, list[socket.socket]]:
    """The next message with its connection; no message if no more will come."""
    # The kernel would drop a connection for which there is no descriptor, so look first.
    os.close(os.dup(worker_end.fileno()))
    message, descriptors, _, _ = socket.recv_fds(worker_end, len(MESSAGE), 1)
    return message, [socket.socket(fileno=descriptor) for descriptor in descriptors]


# Seconds that a client gets to send its request and to read the answer.
MOST_S = 5.0
READ_BYTES = 65_536
TLS_HANDSHAKE = b"\x16"  # the first byte of a record (RFC 8446, section 5.1)


class Dealer:
    """Accepts connections at the ``sites``, and gives each to a worker.

    Of the workers that are ready and answer, the one with the fewest open connections gets the
    next. While no worker takes one, connections wait here; while there is no worker, they get 503.
    Call ``look`` several times a second.
    """

    def __init__(self, sites: Sequence[socket.socket], workers: "Sequence[WorkerProcess]") -> None:
        self._sites = sites
        self._workers = [*workers]  # the one that got a connection last is at the end
        self._arrivals: list[Arrivals] = []
        self._undealt: deque[tuple[int, socket.socket]] = deque()  # with their sites
        self._refusing: set[asyncio.Task[None]] = set()

    @property
    def accepted(self) -> int:
        return sum(arrivals.accepted for arrivals in self._arrivals)

    @property
    def waiting(self) -> bool:
        """Whether connections were accepted that no worker could be given yet."""
        return bool(self._undealt)

    def listen(self) -> None:
        for site, listener in enumerate(self._sites):
            self._arrivals.append(Arrivals(listener, partial(self._deal, site)))

    def look(self) -> None:
        """Deal what waits, or was dealt to a worker that has ended."""
        for worker in self._workers:
            self._undealt += worker.returned()
        while self._undealt and self._try(*self._undealt[0]):
            self._undealt.popleft()

    async def close(self) -> None:
        """Accept what the kernel has completed, then stop; call ``look`` until none is waiting."""
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
        for worker in sorted(reachable, key=lambda one: (one.rank, one.status.open)):
            if worker.give(site, connection):
                self._workers.remove(worker)
                self._workers.append(worker)
                return True
        return False


async def _refuse(connection: socket.socket) -> None:
    """Answer the connection's request with 503, and end it."""
    loop = asyncio.get_running_loop()
    with connection, suppress(OSError):
        async with asyncio.timeout(MOST_S):
            received = await loop.sock_recv(connection, READ_BYTES)
            if received.startswith(TLS_HANDSHAKE):
                return  # an answer in plain text would look like a wrong version of TLS
            if received:
                answer = NotReady("no worker is ready").last_answer(uuid.uuid4().hex, ())
                await loop.sock_sendall(connection, answer)
                connection.shutdown(socket.SHUT_WR)
            # The kernel would reset a connection with unread bytes, and the client would not see
            # the answer.
            while await loop.sock_recv(connection, READ_BYTES):
                pass
