"""Closing a connection so that its client can read the last answer."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

# Of a body that was refused, read and thrown away, so that clients that send all of it before
# they read see why. Then the connection closes, whatever they have seen.
LINGER_BYTES = 256 * 1_048_576
LINGER_S = 30.0
# A client that sends nothing for so long has nothing more to send.
SILENCE_S = 2.0


class LingeringTransport:
    """A transport that ends our side first where the client may still be sending.

    The kernel resets a connection that is closed before all that arrived is read, and the client
    loses the answer with it (RFC 9112, section 9.6). So our side is ended, what arrives is
    dropped, and the connection closes when the client has ended its side, within bounds.

    ``sending`` is asked at the close whether the client may still be sending.
    """

    def __init__(self, transport: asyncio.Transport, sending: Callable[[], bool]) -> None:
        self._transport = transport
        self._sending = sending
        self._closing = False
        self.dropped = 0  # bytes of a refused body
        self._seen = 0  # bytes dropped at the last look
        self._left_s = LINGER_S
        self._look: asyncio.TimerHandle | None = None
        self.write = transport.write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Whether nothing more can be sent."""
        return self._closing or self._transport.is_closing()

    def close(self) -> None:
        """Send what is written, and then close, at once or when the client has sent all."""
        if self._closing:
            return
        self._closing = True
        if self._transport.is_closing() or not self._sending():
            self._transport.close()
            return
        with suppress(OSError):  # the client has reset the connection
            self._transport.write_eof()
        self._transport.resume_reading()
        self.await_rest()

    def await_rest(self) -> None:
        """Close when nothing more comes of what the client is sending, or too much of it."""
        self.stop()
        self._left_s, self._seen = LINGER_S, self.dropped
        self._look_later()

    def stop(self) -> None:
        """Close no more: all has come, or the connection is gone."""
        if self._look is not None:
            self._look.cancel()

    def drop(self, size: int) -> None:
        """Take note of so many bytes that arrived and that nobody wants."""
        self.dropped += size
        if self.dropped > LINGER_BYTES:
            self._transport.close()

    def _look_later(self) -> None:
        self._look = asyncio.get_running_loop().call_later(SILENCE_S, self._end_if_silent)

    def _end_if_silent(self) -> None:
        self._left_s -= SILENCE_S
        if self.dropped == self._seen or self._left_s <= 0:
            self._transport.close()
            return
        self._seen = self.dropped
        self._look_later()
