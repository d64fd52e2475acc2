"""How the supervisor hands a connection that it has accepted to a worker: over a Unix socket."""

import logging
import os
import socket

from app.server.arrivals import Arrivals

# A message has a byte, because the kernel passes no descriptor without one.
MESSAGE = b"c"

logger = logging.getLogger(__name__)


def hand_over(connection: socket.socket, channel: socket.socket) -> bool:
    """Send the connection to the worker at the other end; False if it cannot take it now.

    The connection is the worker's then, and closed here.
    """
    try:
        socket.send_fds(channel, [MESSAGE], [connection.fileno()])
    except OSError:  # the channel is full, or the worker has ended
        return False
    connection.close()
    return True


class HandedOver(Arrivals):
    """The connections that arrive at a worker through such a socket. The supervisor ends it."""

    def _listen(self) -> None:
        self._site.setblocking(False)

    def _next(self) -> socket.socket:
        # The kernel would drop a connection for which there is no descriptor, so look first.
        os.close(os.dup(self._site.fileno()))
        message, descriptors, _, _ = socket.recv_fds(
            self._site, len(MESSAGE), 1, socket.MSG_CMSG_CLOEXEC
        )
        if descriptors:
            return socket.socket(fileno=descriptors[0])
        if message:
            logger.warning("a connection was lost: no file descriptor was left for it")
        else:
            self._loop.remove_reader(self._site)
            self._site.close()
        raise BlockingIOError

    async def _refuse_more(self) -> None:
        """Do nothing: this is the supervisor's part."""
