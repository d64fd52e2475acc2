"""Limits how many requests begin in one turn of the event loop."""

import asyncio
import re
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from app.errors import InvalidRequest
from app.exchange import timeout_ms

# A request costs the event loop about 0.3 ms, so a turn takes a few milliseconds. A health probe
# or a finished answer waits that long, however many clients send at once.
STARTS_A_TURN = 8
# The share of its deadline that a request may wait for its turn. The rest is for the queue and
# inference.
PATIENCE = 0.5
# Probes and scrapes are short, so they do not wait.
TAKES_A_TURN = re.compile(rb"POST|[A-Z]+ /(?:docs|openapi|web|info|models)")
TIMEOUT = re.compile(rb"\r\nx-request-timeout-ms:[ \t]*([^ \t\r]+)[ \t]*(?:\r\n|\Z)", re.IGNORECASE)


class Turns:
    """Begins requests in the order in which they arrived, a few in each turn of the event loop.

    Between two turns the loop checks its sockets. Without this limit, a thousand requests that
    have arrived would all begin before the next connection is accepted or the next probe is read.

    When the first request in the queue has waited longer than its patience, there are more
    requests than can begin in time. In order of arrival all would be late, so every second
    request to begin is then the latest one.

    ``deadline_ms`` is for requests that ask for no shorter time. Create it on the event loop.
    """

    def __init__(self, deadline_ms: int) -> None:
        self._deadline_ms = deadline_ms
        self._loop = asyncio.get_running_loop()
        # Each entry: when the patience of the request ends, on the loop's clock; how to begin it.
        self._waiting: deque[tuple[float, Callable[[], None]]] = deque()
        self._started = 0  # since the last call of _next
        self._latest_is_next = False

    def take(self, head: bytes | bytearray, start: Callable[[], None]) -> None:
        """Begin the request with this ``head``: now if this turn has room, else in a later one."""
        if not TAKES_A_TURN.match(head):
            start()
            return
        if self._waiting or self._started >= STARTS_A_TURN:
            self._waiting.append((self._loop.time() + self._patience_s(head), start))
            return
        self._started += 1
        if self._started == STARTS_A_TURN:
            self._loop.call_soon(self._next)
        start()

    def _patience_s(self, head: bytes | bytearray) -> float:
        """How many seconds the request may wait for its turn and still be answered in time."""
        allowed_ms = self._deadline_ms
        if asked := TIMEOUT.search(head):
            with suppress(InvalidRequest):  # it is refused when its turn comes
                allowed_ms = timeout_ms(bytes(asked[1]), longest_ms=allowed_ms)
        return allowed_ms / 1000 * PATIENCE

    def _next(self) -> None:
        self._started = 0
        try:
            while self._waiting and self._started < STARTS_A_TURN:
                self._started += 1
                self._pop()()
        finally:  # if one of them raises, the others still get their turn
            if self._waiting or self._started == STARTS_A_TURN:
                self._loop.call_soon(self._next)

    def _pop(self) -> Callable[[], None]:
        patient_until, _ = self._waiting[0]
        is_late = self._loop.time() > patient_until
        self._latest_is_next = is_late and not self._latest_is_next
        _, start = self._waiting.pop() if self._latest_is_next else self._waiting.popleft()
        return start
