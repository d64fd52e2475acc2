"""How connections and requests begin: many connections and a few requests in each iteration of the
event loop. libuv, which uvloop uses, accepts one: when iterations are long, connections wait in the
kernel's queue for seconds, including the probes of an orchestrator.
"""

import asyncio
import logging
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from sentiment_service.requests.limits import PathSet
from sentiment_service.server.connection import Buffers, Connection, TlsConnection
from sentiment_service.server.process import cannot_listen, take_no_handshake

BACKLOG = 2048  # connections that the kernel completes while the service is busy
ACCEPTED_AT_ONCE = 64  # in one iteration of the event loop
# Seconds before the next try when the process has no file descriptor or memory left.
PAUSE_S = 0.25
# Seconds for a handshake of TCP to complete after its first packet has arrived.
HANDSHAKE_S = 0.1

# At about 0.3 ms for a request, an iteration takes a few milliseconds.
STARTS_AT_ONCE = 8
# What costs the service work and gives the runners none (handshakes of TLS, and what a connection
# asks again and again without texts) begins this often in each period. Without a pause, the runners
# would wait in vain for Python's lock, which a busy event loop gives up for moments only.
PACED_AT_ONCE, PERIOD_S = 4, 0.005
# When requests wait longer than this, some clients will have no more time for their answers.
PATIENCE_S = 0.1

# A stopping server closes a connection after this silence: its client might be about to send.
QUIET_S = 0.5
# The share of drain-ms after which the listeners close, even if clients still connect.
ACCEPTING_SHARE = 0.5
LOOK_S = 0.05  # between two checks of the connections

logger = logging.getLogger(__name__)


class Arrivals:
    """Listens on a bound socket and gives ``take`` its connections. Create it on the event loop."""

    def __init__(self, site: socket.socket, take: Callable[[socket.socket], None]) -> None:
        self._site = site
        self._take = take
        self._loop = asyncio.get_running_loop()
        self.accepted = 0
        self._listen()
        self._begin()

    @property
    def ended(self) -> bool:
        """Whether nothing more can arrive."""
        return self._site.fileno() < 0

    async def close(self) -> None:
        """Take every connection that the kernel has completed, then stop listening."""
        if self.ended:
            return
        await self._refuse_more()
        self._loop.remove_reader(self._site)
        with suppress(OSError):  # no file descriptor is left
            while self._accept_some():
                pass
        self._site.close()

    def _begin(self) -> None:
        if not self.ended:
            self._loop.add_reader(self._site, self._accept)

    def _listen(self) -> None:
        try:
            # It fails for the second of two servers that bound one address when neither listened.
            self._site.listen(BACKLOG)
        except OSError as error:
            host, port = self._site.getsockname()[:2]
            raise cannot_listen(host, port, error) from error

    def _next(self) -> socket.socket:
        return self._site.accept()[0]

    async def _refuse_more(self) -> None:
        take_no_handshake(self._site)
        await asyncio.sleep(HANDSHAKE_S)

    def _accept(self) -> None:
        try:
            self._accept_some()
        except OSError as error:
            logger.warning(
                "no connection can be accepted: %s; those that wait are tried again in %g s",
                error.strerror,
                PAUSE_S,
            )
            self._loop.remove_reader(self._site)
            self._loop.call_later(PAUSE_S, self._begin)

    def _accept_some(self) -> bool:
        """Accept some connections; return whether there may be more."""
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connection = self._next()
            except BlockingIOError:
                return False
            connection.setblocking(False)
            self.accepted += 1
            self._take(connection)
        return True


class Listener:
    """Begins a connection with a ``protocol`` for each socket that arrives at a site.

    ``arrivals`` takes the sockets of the site. With ``tls``, which may be replaced later,
    connections begin with its handshake. Create it on the event loop.
    """

    def __init__(
        self,
        site: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        arrivals: Callable[[socket.socket, Callable[[socket.socket], None]], Arrivals] = Arrivals,
        on_end: Callable[[], object] = lambda: None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.tls = tls
        self._on_end = on_end
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._buffers = Buffers()
        self._beginning: set[asyncio.Task[None]] = set()
        self._handshakes = Turns(PACED_AT_ONCE, PERIOD_S)
        self._in_handshake: set[TlsConnection] = set()
        self.arrivals = arrivals(site, self._take)

    @property
    def ended(self) -> bool:
        """Whether nothing more can arrive, and all connections have begun."""
        return self.arrivals.ended and not self._beginning and not self._in_handshake

    async def close(self) -> None:
        """Begin every connection that has arrived, and accept no more."""
        await self.arrivals.close()
        if self._beginning:
            await asyncio.wait(self._beginning)
        if self._in_handshake:
            await asyncio.sleep(QUIET_S)
            for late in [*self._in_handshake]:
                late.abort()

    def _take(self, connection: socket.socket) -> None:
        task = self._loop.create_task(self._begin(connection))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    async def _begin(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._connection, connection)
        except OSError:  # it is gone already
            connection.close()
            self._on_end()

    def _connection(self) -> Connection:
        if self.tls is None:
            return Connection(self._protocol, self._buffers, self._on_end)
        connection = TlsConnection(
            self._protocol,
            self._buffers,
            self._on_end,
            context=self.tls,
            begin=self._handshakes.take,
            on_open=self._in_handshake.discard,
        )
        self._in_handshake.add(connection)
        return connection


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


class Turns:
    """Begins what has arrived in order, ``at_once`` in each period: an iteration of the event loop,
    or ``period_s`` seconds. So connections are accepted and probes read between a thousand others.

    When the first in the queue has waited longer than ``patience_s``, there are more than can
    begin. In order of arrival all would be late, so every second to begin is then the latest one.
    """

    def __init__(
        self, at_once: int = STARTS_AT_ONCE, period_s: float = 0.0, patience_s: float = PATIENCE_S
    ) -> None:
        self._at_once = at_once
        self._period_s = period_s
        self._patience_s = patience_s
        self._loop = asyncio.get_running_loop()
        # Each entry: when its patience ends, on the loop's clock; how to begin it.
        self._waiting: deque[tuple[float, Callable[[], None]]] = deque()
        self._started = 0  # in this period
        self._latest_is_next = False

    def take(self, start: Callable[[], None]) -> None:
        """Call ``start``: now, or in a later period."""
        if self._waiting or self._started >= self._at_once:
            self._waiting.append((self._loop.time() + self._patience_s, start))
            return
        self._started += 1
        if self._started == (1 if self._period_s else self._at_once):
            self._next_later()
        start()

    def _next(self) -> None:
        self._started = 0
        try:
            while self._waiting and self._started < self._at_once:
                self._started += 1
                self._pop()()
        finally:  # if one of them raises, the others still get their turn
            if self._waiting or self._started:
                self._next_later()

    def _next_later(self) -> None:
        if self._period_s:
            self._loop.call_later(self._period_s, self._next)
        else:
            self._loop.call_soon(self._next)

    def _pop(self) -> Callable[[], None]:
        patient_until, _ = self._waiting[0]
        is_late = self._loop.time() > patient_until
        self._latest_is_next = is_late and not self._latest_is_next
        _, start = self._waiting.pop() if self._latest_is_next else self._waiting.popleft()
        return start


class Starts:
    """Begins requests: probes at once, others in turns, and those that repeat at a limited rate.

    ``often_asked`` are the paths of probes, also below ``root_path``.
    """

    def __init__(self, often_asked: PathSet, root_path: str = "") -> None:
        self._often_asked = often_asked
        self._root_path = root_path
        self._requests = Turns()
        self._repeated = Turns(PACED_AT_ONCE, PERIOD_S)

    def take(
        self, head: bytes | bytearray, start: Callable[[], None], *, repeats: bool = False
    ) -> None:
        """Begin the request with this ``head`` in its turn, or among those that repeat."""
        path = _path(head).removeprefix(self._root_path)
        if repeats:
            self._repeated.take(start)
        elif not head.startswith(b"POST") and path in self._often_asked:
            start()
        else:
            self._requests.take(start)


def _path(head: bytes | bytearray) -> str:
    """The path in a request line, without its query."""
    target = head.partition(b"\r\n")[0].split(b" ")[1:2]
    return b"".join(target).partition(b"?")[0].decode("latin-1")
