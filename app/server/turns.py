"""How requests begin: a few in each iteration of the event loop."""

import asyncio
from collections import deque
from collections.abc import Callable

from app.limits import PathSet

# A request costs the event loop about 0.3 ms, so an iteration takes a few milliseconds. A health
# probe or a finished answer waits that long, however many clients send at once.
STARTS_AT_ONCE = 8
# When requests wait longer than this, some clients will have no more time for their answers.
PATIENCE_S = 0.1


class Turns:
    """Begins requests in the order of their arrival, a few in each iteration of the event loop.

    Between two iterations the loop checks its sockets. Without this limit, a thousand requests that
    have arrived would all begin before the next connection is accepted or the next probe is read.

    When the first request in the queue has waited for long, there are more requests than can begin.
    In order of arrival all would be late, so every second request to begin is then the latest one.

    What reads the paths ``at_once`` is short and does not wait. Create it on the event loop.
    """

    def __init__(self, at_once: PathSet) -> None:
        self._at_once = at_once
        self._loop = asyncio.get_running_loop()
        # Each entry: when the patience of the request ends, on the loop's clock; how to begin it.
        self._waiting: deque[tuple[float, Callable[[], None]]] = deque()
        self._started = 0  # since the last call of _next
        self._latest_is_next = False

    def take(self, head: bytes | bytearray, start: Callable[[], None]) -> None:
        """Begin the request with this ``head``: now, or in a later iteration."""
        if not head.startswith(b"POST") and _path(head) in self._at_once:
            start()
            return
        if self._waiting or self._started >= STARTS_AT_ONCE:
            self._waiting.append((self._loop.time() + PATIENCE_S, start))
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
                self._pop()()
        finally:  # if one of them raises, the others still get their turn
            if self._waiting or self._started == STARTS_AT_ONCE:
                self._loop.call_soon(self._next)

    def _pop(self) -> Callable[[], None]:
        patient_until, _ = self._waiting[0]
        is_late = self._loop.time() > patient_until
        self._latest_is_next = is_late and not self._latest_is_next
        _, start = self._waiting.pop() if self._latest_is_next else self._waiting.popleft()
        return start


def _path(head: bytes | bytearray) -> str:
    """The path in a request line, without its query."""
    target = head.partition(b"\r\n")[0].split(b" ")[1:2]
    return b"".join(target).partition(b"?")[0].decode("latin-1")
