"""Listening sockets: bound before the models are loaded, with our own accept loop.

libuv, which uvloop uses, accepts one connection in each turn of the event loop. When turns are
long, connections wait in the kernel's queue for seconds, including the probes of an orchestrator.
"""

import asyncio
import errno
import logging
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from app.errors import UserError
from app.server.linux_sockets import take_no_handshake, unread

# Connections that the kernel completes while the service is busy. The kernel's own limit applies
# if it is lower.
BACKLOG = 2048
# Connections accepted in one turn of the event loop, and connections with a POST that begin in one.
# To accept one takes some microseconds, and to begin it some tenths of a millisecond.
ACCEPTED_A_TURN = 512
BEGUN_A_TURN = 16
# Seconds before the next try when the process has no file descriptor left.
PAUSE_S = 0.25
# Seconds for a handshake to complete after its first packet has arrived.
HANDSHAKE_S = 0.1
OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

logger = logging.getLogger(__name__)


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet: no client can connect before the models are warm.

    Raises:
        UserError: the address cannot be used.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setblocking(False)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from error
    return listener


class Listener:
    """Accepts connections on a bound socket, many per turn. Create it on the event loop.

    A connection whose first request is a POST waits for its turn; another one begins at once. So
    probes do not wait behind the connections of a flood.

    ``protocol`` makes the protocol of a connection from its socket.

    Raises:
        UserError: another process listens on this address.
    """

    def __init__(
        self, listener: socket.socket, protocol: Callable[[socket.socket], asyncio.Protocol]
    ) -> None:
        self._socket = listener
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[socket.socket] = deque()  # they have sent a POST
        self._beginning: set[asyncio.Task[None]] = set()
        self._resume: asyncio.TimerHandle | None = None
        self.accepted = 0
        try:
            # Two servers can bind one address while neither listens; then this call fails for the
            # second one.
            listener.listen(BACKLOG)
        except OSError as error:
            host, port = listener.getsockname()[:2]
            raise _cannot_listen(host, port, error) from error
        self._loop.add_reader(listener, self._accept)

    async def close(self) -> None:
        """Accept every connection that the kernel has completed, then stop listening.

        May be called more than once.
        """
        if self._socket.fileno() >= 0:
            take_no_handshake(self._socket)
            await asyncio.sleep(HANDSHAKE_S)
            if self._resume is not None:
                self._resume.cancel()
            self._loop.remove_reader(self._socket)
            with suppress(OSError):  # no file descriptor is left
                while self._accept_some():
                    pass
            self._socket.close()
        self._begin_some(len(self._waiting))
        if self._beginning:
            await asyncio.wait(self._beginning)

    def _accept(self) -> None:
        self._resume = None
        try:
            self._accept_some()
        except OSError as error:
            logger.warning(
                "no connection can be accepted: %s; those that wait are tried again in %g s",
                error.strerror,
                PAUSE_S,
            )
            self._loop.remove_reader(self._socket)
            self._resume = self._loop.call_later(PAUSE_S, self._listen_again)

    def _listen_again(self) -> None:
        self._loop.add_reader(self._socket, self._accept)

    def _accept_some(self) -> bool:
        """Accept some connections; return whether there may be more."""
        for _ in range(ACCEPTED_A_TURN):
            try:
                connection, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return False
            except OSError as error:
                if error.errno in OUT_OF_RESOURCES:
                    raise
                continue  # an error of this one connection
            connection.setblocking(False)
            self.accepted += 1
            if unread(connection, 4) == b"POST":
                if not self._waiting:
                    self._loop.call_soon(self._begin_some)
                self._waiting.append(connection)
            else:
                self._start(connection)
        return True

    def _begin_some(self, count: int = BEGUN_A_TURN) -> None:
        """Begin some of the connections that wait, and others in the next turns."""
        for _ in range(min(count, len(self._waiting))):
            self._start(self._waiting.popleft())
        if self._waiting:
            self._loop.call_soon(self._begin_some)

    def _start(self, connection: socket.socket) -> None:
        task = self._loop.create_task(self._begin(connection))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    async def _begin(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: self._protocol(connection), connection)
        except OSError:  # it is gone already
            connection.close()


def _cannot_listen(host: str, port: int, error: OSError) -> UserError:
    taken = error.errno == errno.EADDRINUSE
    advice = "; choose another with --port (--metrics-port, --grpc-port)" if taken else ""
    return UserError(f"cannot listen on {host} port {port}: {error.strerror}{advice}")
