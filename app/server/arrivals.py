"""How connections begin, many in each iteration of the event loop; and when a service that stops
may assume that no more will come.

libuv, which uvloop uses, accepts one connection in each iteration. When iterations are long,
connections wait in the kernel's queue for seconds, including the probes of an orchestrator.
"""

import asyncio
import ctypes
import errno
import logging
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from app.server.addresses import cannot_listen

# Connections that the kernel completes while the service is busy. The kernel's own limit applies
# if it is lower.
BACKLOG = 2048
# Connections accepted in one iteration of the event loop. Each takes some microseconds.
ACCEPTED_AT_ONCE = 512
# Seconds before the next try when the process has no file descriptor left.
PAUSE_S = 0.25
# Seconds for a handshake to complete after its first packet has arrived.
HANDSHAKE_S = 0.1
# Seconds for the beginning and the end of a connection with TLS.
TLS_TIMEOUTS: dict[str, Any] = {"ssl_handshake_timeout": 20.0, "ssl_shutdown_timeout": 2.0}
SO_ATTACH_FILTER = 26  # of Linux; Python has no name for it
OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

# A stopping server closes a connection only after this many seconds of silence, because the client
# might be about to send a request.
QUIET_S = 0.5
# The share of drain-ms after which the listeners close, even if clients still connect.
ACCEPTING_SHARE = 0.5
LOOK_S = 0.05  # between two checks of the connections

logger = logging.getLogger(__name__)


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
            raise cannot_listen(host, port, error) from error

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
        for _ in range(ACCEPTED_AT_ONCE):
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


class Listener:
    """Begins a connection with a ``protocol`` for each socket that arrives at a site.

    ``protocol`` makes the protocol of a connection from its socket, and ``arrivals`` takes the
    sockets of the site. ``on_failure`` is called when a connection is gone before it begins. With
    ``tls``, which may be replaced later, connections begin with its handshake. Create it on the
    event loop.

    Raises:
        UserError: another process listens on this address.
    """

    def __init__(
        self,
        site: socket.socket,
        protocol: Callable[[socket.socket], asyncio.Protocol],
        arrivals: Callable[[socket.socket, Callable[[socket.socket], bool]], Arrivals] = Arrivals,
        on_failure: Callable[[], None] = lambda: None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.tls = tls
        self._on_failure = on_failure
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._beginning: set[asyncio.Task[None]] = set()
        self.arrivals = arrivals(site, self._take)

    @property
    def ended(self) -> bool:
        """Whether nothing more can arrive, and all connections have begun."""
        return self.arrivals.ended and not self._beginning

    async def close(self) -> None:
        """Begin every connection that has arrived, and accept no more.

        May be called more than once.
        """
        await self.arrivals.close()
        if self._beginning:
            _, late = await asyncio.wait(self._beginning, timeout=QUIET_S)
            for handshake in late:
                handshake.cancel()

    def _take(self, connection: socket.socket) -> bool:
        task = self._loop.create_task(self._begin(connection))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)
        return True

    async def _begin(self, connection: socket.socket) -> None:
        tls = {**TLS_TIMEOUTS, "ssl": self.tls} if self.tls else {}
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._protocol(connection), connection, **tls
            )
        except (OSError, asyncio.CancelledError):  # it is gone already, or its handshake is late
            connection.close()
            self._on_failure()


class Quiet:
    """Measures for how long no connection and no request has arrived."""

    def __init__(self) -> None:
        self._arrived = -1
        self._since = 0.0

    def seconds(self, arrived: int) -> float:
        """Seconds since ``arrived``, a number that grows with each arrival, has last changed."""
        now = time.monotonic()
        if arrived != self._arrived:
            self._arrived, self._since = arrived, now
        return now - self._since


def _take_no_handshake(listener: socket.socket) -> None:
    """From now on, have the kernel drop the first packet of each handshake.

    When a listener closes, the kernel ends the connections that are complete but not accepted: 25
    clients of 1,200 in 200 closes. So no new handshake may begin before the close. The client tries
    again a second later, and finds the port closed.
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
