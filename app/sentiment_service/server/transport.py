"""A connection's transport, which lets a client read its last answer."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

# For how many seconds the rest of a refused body is read and dropped. Some clients send the whole
# body before they read the error. After that the connection closes in any case.
LINGER_S = 30.0
# After this many seconds of silence, the client is assumed to have nothing more to send.
SILENCE_S = 2.0


class ResponseTransport:
    """A transport that joins writes, and does not reset a client that is still sending.

    uvicorn writes the head and the body of an answer separately. That would be two system calls,
    and two packets that wake the client twice. So a write waits for the next one, at most until
    the next iteration of the event loop.

    If a connection is closed before all received data is read, the kernel resets it, and the
    client loses the answer (RFC 9112, section 9.6). So ``close`` first ends our sending side and
    drops what still arrives. The connection closes when the client ends its side or is silent, or
    when its time is over.

    ``sending`` is called at the close. It returns whether the client may still be sending.
    """

    def __init__(self, transport: asyncio.Transport, sending: Callable[[], bool]) -> None:
        self._transport = transport
        self._sending = sending
        self.closing = False  # whether ``close`` was called, or the connection is lost
        self._silent = True  # nothing has been dropped since the last look
        self._left_s = LINGER_S
        self._look: asyncio.TimerHandle | None = None
        self._unsent = b""
        self._loop = asyncio.get_running_loop()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send the data together with the data that waits, or keep it for the next write."""
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
        """Whether nothing more can be sent; uvicorn asks this."""
        return self.closing or self._transport.is_closing()

    def close(self) -> None:
        """Send what is written, then close: at once, or when the client has sent everything."""
        if self.closing:
            return
        self.closing = True
        self._flush()
        if self._transport.is_closing() or not self._sending():
            self._transport.close()
            return
        with suppress(OSError, NotImplementedError):  # the client has reset it, or has TLS
            self._transport.write_eof()
        self._transport.resume_reading()
        self.await_rest()

    def await_rest(self) -> None:
        """Close when the client has stopped sending, or when its time is over."""
        self.stop()
        self._left_s = LINGER_S
        self._look_later()

    def stop(self) -> None:
        """Cancel ``await_rest``: everything has arrived, or the connection is gone."""
        if self._look is not None:
            self._look.cancel()

    def end(self) -> None:
        """The connection is lost: forget it, so that it needs no collector to be freed."""
        self.closing = True
        self.stop()
        self._sending = bool  # it returns False

    def drop(self) -> None:
        """Something has arrived and is dropped."""
        self._silent = False

    def _look_later(self) -> None:
        self._silent = True
        self._look = self._loop.call_later(SILENCE_S, self._end_if_silent)

    def _end_if_silent(self) -> None:
        self._left_s -= SILENCE_S
        if self._silent or self._left_s <= 0:
            self._transport.close()
        else:
            self._look_later()
