"""How requests begin: a few in each iteration of the event loop."""

import asyncio
from collections import deque
from collections.abc import Callable

from app.limits import PathSet

# A request costs the event loop about 0.3 ms, so an iteration takes a few milliseconds. A health
# probe or a finished answer waits that long, however many clients send at once.
STARTS_AT_ONCE = 8


class Turns:
    """Begins requests in the order of their arrival, a few in each iteration of the event loop.

    Between two iterations the loop checks its sockets. Without this limit, a thousand requests that
    have arrived would all begin before the next connection is accepted or the next probe is read.

    What reads the paths ``at_once`` is short and does not wait. Create it on the event loop.
    """

    def __init__(self, at_once: PathSet) -> None:
        self._at_once = at_once
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Callable[[], None]] = deque()  # what begins each request
        self._started = 0  # since the last call of _next

    def take(self, head: bytes | bytearray, start: Callable[[], None]) -> None:
        """Begin the request with this ``head``: now, or in a later iteration."""
        if not head.startswith(b"POST") and _path(head) in self._at_once:
            start()
            return
        if self._waiting or self._started >= STARTS_AT_ONCE:
            self._waiting.append(start)
            return
        self._started += 1
        if self._started == STARTS_AT_ONCE:
            self._loop.call_soon(self._next)
        start()

    def _next(self) -> None:
        self._started = 0
        try:
            while self._waiting and self._started < STARTS_AT_ONCE:
                self._started += 1
                self._waiting.popleft()()
        finally:  # if one of them raises, the others still get their turn
            if self._waiting or self._started == STARTS_AT_ONCE:
                self._loop.call_soon(self._next)


def _path(head: bytes | bytearray) -> str:
    """The path in a request line, without its query."""
    target = head.partition(b"\r\n")[0].split(b" ")[1:2]
    return b"".join(target).partition(b"?")[0].decode("latin-1")
