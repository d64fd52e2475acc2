"""Bound sockets, and our own loop that accepts their connections.

libuv, which uvloop uses, accepts one connection in each turn of the event loop. When turns are
long, connections wait in the kernel's queue for seconds, including the probes of an orchestrator.
"""

import asyncio
import ctypes
import errno
import logging
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress

from app.config.settings import Settings
from app.errors import UserError

# Connections that the kernel completes while the service is busy. The kernel's own limit applies
# if it is lower.
BACKLOG = 2048
# Connections accepted in one turn of the event loop. Each takes some microseconds.
ACCEPTED_A_TURN = 512
# Seconds before the next try when the process has no file descriptor left.
PAUSE_S = 0.25
# Seconds for a handshake to complete after its first packet has arrived.
HANDSHAKE_S = 0.1
SO_ATTACH_FILTER = 26  # of Linux; Python has no name for it
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


def check_ports(settings: Settings) -> None:
    """Check that the ports of the service, of its metrics and of gRPC can be used.

    Raises:
        UserError: another process has one of them, or the host is not this machine.
    """
    for port in (settings.port, settings.metrics_port, settings.grpc_port):
        if port:
            bind(settings.host, port).close()


class Arrivals:
    """Listens on a bound socket and gives ``take`` its connections. Create it on the event loop.

    ``take`` returns whether more may come now; if not, ``resume`` is called later.

    Raises:
        UserError: another process listens on this address.
    """

    def __init__(self, site: socket.socket, take: Callable[[socket.socket], bool]) -> None:
        self._site = site
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._resume: asyncio.TimerHandle | None = None
        self.accepted = 0
        self._listen()
        self.resume()

    @property
    def ended(self) -> bool:
        """Whether nothing more can arrive."""
        return self._site.fileno() < 0

    async def close(self) -> None:
        """Take every connection that the kernel has completed, then stop listening.

        May be called more than once.
        """
        if self.ended:
            return
        await self._refuse_more()
        if self._resume is not None:
            self._resume.cancel()
        self._loop.remove_reader(self._site)
        with suppress(OSError):  # no file descriptor is left
            while self._accept_some():
                pass
        self._site.close()

    def resume(self) -> None:
        """Accept connections, after ``take`` has said that no more may come."""
        if not self.ended:
            self._loop.add_reader(self._site, self._accept)

    def _listen(self) -> None:
        try:
            # Two servers can bind one address while neither listens; then this call fails for the
            # second one.
            self._site.listen(BACKLOG)
        except OSError as error:
            host, port = self._site.getsockname()[:2]
            raise _cannot_listen(host, port, error) from error

    def _next(self) -> socket.socket:
        return self._site.accept()[0]

    async def _refuse_more(self) -> None:
        _take_no_handshake(self._site)
        await asyncio.sleep(HANDSHAKE_S)

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
            self._loop.remove_reader(self._site)
            self._resume = self._loop.call_later(PAUSE_S, self.resume)

    def _accept_some(self) -> bool:
        """Accept some connections; return whether there may be more."""
        for _ in range(ACCEPTED_A_TURN):
            try:
                connection = self._next()
            except BlockingIOError:
                return False
            except OSError as error:
                if error.errno in OUT_OF_RESOURCES:
                    raise
                continue  # an error of this one connection
            connection.setblocking(False)
            self.accepted += 1
            if not self._take(connection):
                self._loop.remove_reader(self._site)
                return False
        return True


def _take_no_handshake(listener: socket.socket) -> None:
    """From now on, have the kernel drop the first packet of each handshake.

    When a listener closes, the kernel resets the connections that are complete but not accepted.
    So no new handshake may begin before the close. The client tries again a second later, and
    finds the port closed.
    """
    if sys.platform != "linux":
        return
    # Classic BPF on the TCP header: load the flags, keep SYN and ACK, drop if only SYN is set.
    load, mask, compare, give = 0x30, 0x54, 0x15, 0x06
    program = [(load, 0, 0, 13), (mask, 0, 0, 0x12), (compare, 0, 1, 0x02)]
    program += [(give, 0, 0, 0), (give, 0, 0, 0xFFFFFFFF)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
    with suppress(OSError):  # the system may forbid it
        listener.setsockopt(
            socket.SOL_SOCKET,
            SO_ATTACH_FILTER,
            struct.pack("HP", len(program), ctypes.addressof(code)),
        )


def _cannot_listen(host: str, port: int, error: OSError) -> UserError:
    taken = error.errno == errno.EADDRINUSE
    advice = "; choose another with --port (--metrics-port, --grpc-port)" if taken else ""
    return UserError(f"cannot listen on {host} port {port}: {error.strerror}{advice}")
