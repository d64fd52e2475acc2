"""A connection's transport: an answer leaves in one packet, and a client can read the last one."""

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


class ResponseTransport:
    """A transport that joins writes, and ends our side first where a client may be sending.

    uvicorn writes the head of an answer and its body apart: two system calls, and two packets
    that wake the client twice. So a write waits for the next one, until the event loop's next
    turn at most.

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
        self._unsent = b""
        self._loop = asyncio.get_running_loop()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send what waited with it, or have it wait itself."""
        if self._unsent:
            joined, self._unsent = self._unsent + data, b""
            self._transport.write(joined)
        elif data:
            self._unsent = data
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._unsent and not self._transport.is_closing():
            self.write(b"")

    def is_closing(self) -> bool:
        """Whether nothing more can be sent."""
        return self._closing or self._transport.is_closing()

    def close(self) -> None:
        """Send what is written, and then close, at once or when the client has sent all."""
        if self._closing:
            return
        self._closing = True
        self._flush()
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
        self._look = self._loop.call_later(SILENCE_S, self._end_if_silent)

    def _end_if_silent(self) -> None:
        self._left_s -= SILENCE_S
        if self.dropped == self._seen or self._left_s <= 0:
            self._transport.close()
            return
        self._seen = self.dropped
        self._look_later()
