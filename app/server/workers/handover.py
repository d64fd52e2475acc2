"""How the supervisor hands a connection that it has accepted to a worker: over a Unix socket.

A connection in such a socket would end with the worker. So the supervisor keeps its own copy until
the worker has taken the connection, and can hand it to another one. The worker counts on the board
what it has taken; its message says only that the supervisor should look.
"""

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from app.server.arrivals import Arrivals

# A message has a byte, because the kernel passes no descriptor without one.
MESSAGE = b"c"

logger = logging.getLogger(__name__)


class Channel:
    """The supervisor's end of such a socket. Create it on the event loop.

    ``taken`` gives how many connections the worker has taken. Call ``release`` several times a
    second: it is not told of each of them.
    """

    def __init__(self, end: socket.socket, taken: Callable[[], int]) -> None:
        self._end = end
        self._taken = taken
        self._released = 0
        self._untaken: deque[socket.socket] = deque()
        self._loop = asyncio.get_running_loop()
        end.setblocking(False)
        self._loop.add_reader(end, self._read)

    def give(self, connection: socket.socket) -> bool:
        """Send the connection to the worker; False if it cannot take it now."""
        try:
            socket.send_fds(self._end, [MESSAGE], [connection.fileno()])
        except OSError:  # the channel is full, or the worker has ended
            return False
        self._untaken.append(connection)
        return True

    def release(self) -> None:
        """Close the copies of what the worker has taken: a client sees only then that it closes."""
        taken = self._taken()
        while self._released < taken:
            self._released += 1
            self._untaken.popleft().close()

    def end(self) -> None:
        """Give no more connections. The worker learns so when it has taken those that it has."""
        with suppress(OSError):  # the worker has ended
            self._end.shutdown(socket.SHUT_WR)

    def close(self) -> list[socket.socket]:
        """The worker has ended: what it has not taken."""
        self.release()
        self._loop.remove_reader(self._end)
        self._end.close()
        return list(self._untaken)

    def _read(self) -> None:
        try:
            told = self._end.recv(1)
        except BlockingIOError:
            return
        except OSError:
            told = b""
        self.release()
        if not told:  # the worker has ended
            self._loop.remove_reader(self._end)


class HandedOver(Arrivals):
    """The connections that arrive at a worker through such a socket. The supervisor ends it.

    ``note_taken`` counts each of them on the board.
    """

    def __init__(
        self,
        site: socket.socket,
        take: Callable[[socket.socket], bool],
        note_taken: Callable[[], None],
    ) -> None:
        self._note_taken = note_taken
        super().__init__(site, take)

    def _listen(self) -> None:
        self._site.setblocking(False)

    def _next(self) -> socket.socket:
        # The kernel would drop a connection for which there is no descriptor, so look first.
        os.close(os.dup(self._site.fileno()))
        message, descriptors, _, _ = socket.recv_fds(
            self._site, len(MESSAGE), 1, socket.MSG_CMSG_CLOEXEC
        )
        if message:
            self._note_taken()
        if descriptors:
            return socket.socket(fileno=descriptors[0])
        if message:
            logger.warning("a connection was lost: no file descriptor was left for it")
        else:
            self._loop.remove_reader(self._site)
            self._site.close()
        raise BlockingIOError

    def _accept_some(self) -> bool:
        before = self.accepted
        try:
            return super()._accept_some()
        finally:
            if self.accepted > before:
                with suppress(OSError):  # the supervisor has ended, or has enough to read
                    self._site.send(MESSAGE)

    async def _refuse_more(self) -> None:
        """Do nothing: this is the supervisor's part."""
