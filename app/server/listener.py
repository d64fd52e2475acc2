"""Begins the connections that arrive at a site."""

import asyncio
import socket
from collections.abc import Callable

from app.server.arrivals import Arrivals


class Listener:
    """Begins a connection with a ``protocol`` for each socket that arrives at a site.

    ``protocol`` makes the protocol of a connection from its socket, and ``arrivals`` takes the
    sockets of the site. ``on_failure`` is called when a connection is gone before it begins. Create
    it on the event loop.

    Raises:
        UserError: another process listens on this address.
    """

    def __init__(
        self,
        site: socket.socket,
        protocol: Callable[[socket.socket], asyncio.Protocol],
        arrivals: Callable[[socket.socket, Callable[[socket.socket], bool]], Arrivals] = Arrivals,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_failure = on_failure
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._beginning: set[asyncio.Task[None]] = set()
        self._arrivals = arrivals(site, self._take)

    @property
    def accepted(self) -> int:
        """The number of connections until now."""
        return self._arrivals.accepted

    @property
    def ended(self) -> bool:
        """Whether nothing more can arrive."""
        return self._arrivals.ended

    async def close(self) -> None:
        """Begin every connection that has arrived, and accept no more.

        May be called more than once.
        """
        await self._arrivals.close()
        if self._beginning:
            await asyncio.wait(self._beginning)

    def _take(self, connection: socket.socket) -> bool:
        task = self._loop.create_task(self._begin(connection))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)
        return True

    async def _begin(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: self._protocol(connection), connection)
        except OSError:  # it is gone already
            connection.close()
            self._on_failure()
