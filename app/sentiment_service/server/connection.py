"""One connection, between its socket and the protocol of HTTP: reads a little at a time, has TLS,
joins what is written, and closes so that the client can read its last answer.
"""

import asyncio
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

# Read of each connection in an iteration of the event loop: it costs the others a few milliseconds,
# however it is cut into chunks. libuv alone would read 8 MB before it looks at another connection.
READ_BYTES = 32_768

# The same with TLS: one long record, or some 700 that hold one byte each.
RECORD_BYTES = 16_384
# What is longer than CHEAP_BYTES and takes more than CHEAP_S to decrypt and parse was cut into tiny
# chunks or records. All connections that send such things have one part of the event loop's time
# in 1 + REST_FACTOR.
CHEAP_BYTES, CHEAP_S = 4_096, 0.0005
REST_FACTOR, MOST_REST_S = 10, 1.0
# Seconds for the whole handshake.
HANDSHAKE_S = 20.0

# The rest of a refused body is dropped for so long, because some clients send all of it before they
# read the error; or until so long a silence.
LINGER_S, SILENCE_S = 30.0, 2.0


class Buffers:
    """The memory into which all connections of an event loop read, one after the other."""

    def __init__(self) -> None:
        self.read = memoryview(bytearray(READ_BYTES))
        self._dear_until = 0.0  # on the clock of time.monotonic

    def rest_s(self, spent_s: float) -> float:
        """For how long a connection must rest after this much of the event loop's time."""
        now = time.monotonic()
        self._dear_until = max(now, self._dear_until) + REST_FACTOR * spent_s
        return min(self._dear_until - now, MOST_REST_S)


class Connection(asyncio.BufferedProtocol):
    """A protocol for the socket's transport, and the transport of what ``protocol`` makes.

    uvicorn writes the head and the body of an answer separately. So a write waits for the next one,
    at most until the next iteration of the event loop: they leave in one packet.

    If a connection is closed before all received data is read, the kernel resets it, and the
    client loses the answer (RFC 9112, section 9.6). So ``close`` ends our sending side, and drops
    what arrives until the client ends its side or is silent, or its time is over.

    All connections share the ``buffers``. ``sending`` is called at the close. It returns whether
    the client may still be sending; the protocol sets it.
    """

    most = READ_BYTES

    def __init__(
        self,
        protocol: Callable[[], asyncio.Protocol],
        buffers: Buffers,
        on_end: Callable[[], object] = lambda: None,
        *,
        linger_s: float = LINGER_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        self._make_protocol = protocol
        self._protocol: asyncio.Protocol | None = None  # from the begin to the end
        self._buffers = buffers
        self._buffer = buffers.read[: self.most]
        self._on_end = on_end
        self._linger_s = linger_s
        self._silence_s = silence_s
        self.sending: Callable[[], bool] = bool  # it returns False
        self.closing = False  # whether ``close`` was called, or the connection is lost
        self._silent = True  # nothing has been dropped since the last look
        self._left_s = linger_s
        self._look: asyncio.TimerHandle | None = None
        self._reads = True  # whether the protocol wants more
        self._resting = False  # whether the connection waits for its next turn to read
        self._unsent = b""
        self._flushing: asyncio.Handle  # while something is unsent
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None  # until ``connection_made``

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    # What the socket's transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._begin()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self.closing:
            self.drop()
        elif nbytes <= CHEAP_BYTES:
            self._arrived(bytes(self._buffer[:nbytes]))
        else:
            began = time.thread_time()
            self._arrived(bytes(self._buffer[:nbytes]))
            spent_s = time.thread_time() - began
            if spent_s > CHEAP_S:
                self._rest(self._buffers.rest_s(spent_s))
        if nbytes == self.most:
            self._rest()

    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closing = True
        self.stop()
        protocol, self._protocol = self._protocol, None  # no cycle is left for the collector
        self.sending = bool
        if protocol is not None:
            protocol.connection_lost(exc)
        self._on_end()

    # What a connection with TLS does otherwise

    def _begin(self) -> None:
        self._protocol = self._make_protocol()
        self._protocol.connection_made(self)  # type: ignore[arg-type]

    def _arrived(self, data: bytes) -> None:
        if self._protocol is not None:
            self._protocol.data_received(data)

    def _send(self, data: bytes) -> None:
        self._transport.write(data)

    def _say_end(self) -> None:
        """Say that nothing more will be sent; the end of the socket's stream says it, too."""

    # What the protocol calls

    def write(self, data: bytes) -> None:
        """Send the data together with the data that waits, or keep it for the next write."""
        if self._unsent:
            self._flushing.cancel()
            joined, self._unsent = self._unsent + data, b""
            self._send(joined)
        elif data:
            self._unsent = data
            self._flushing = self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._unsent and not self._transport.is_closing():
            self.write(b"")

    def is_closing(self) -> bool:
        """Whether nothing more can be sent; uvicorn asks this."""
        return self.closing or bool(self._transport.is_closing())

    def pause_reading(self) -> None:
        self._reads = False
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on, if it is this connection's turn."""
        self._reads = True
        if not self._resting:
            self._transport.resume_reading()

    def _rest(self, pause_s: float = 0.0) -> None:
        """Read no more in this iteration of the event loop, or for some time."""
        if self._resting or self._transport.is_closing():
            return
        self._hold()
        if pause_s:
            self._loop.call_later(pause_s, self._read_on)
        else:
            self._loop.call_soon(self._read_on)

    def _hold(self) -> None:
        """Read no more until ``_read_on``."""
        self._resting = True
        self._transport.pause_reading()

    def _read_on(self) -> None:
        self._resting = False
        if self._reads and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Send what is written, then close: at once, or when the client has sent everything."""
        if self.closing:
            return
        self.closing = True
        self._flush()
        if not self._transport.is_closing():
            self._say_end()
        if self._transport.is_closing() or not self.sending():
            self._transport.close()
            return
        with suppress(OSError):  # the client has reset it
            self._transport.write_eof()
        self.await_rest()

    def await_rest(self) -> None:
        """Close when the client has stopped sending, or when its time is over.

        Before ``close``, the protocol finds the end, and calls ``drop`` for what comes until then.
        """
        self.stop()
        self.resume_reading()
        self._left_s = self._linger_s
        self._look_later()

    def stop(self) -> None:
        """Cancel ``await_rest``: everything has arrived, or the connection is gone."""
        if self._look is not None:
            self._look.cancel()

    def drop(self) -> None:
        """Something has arrived that nobody looks at."""
        self._silent = False

    def _look_later(self) -> None:
        self._silent = True
        self._look = self._loop.call_later(self._silence_s, self._end_if_silent)

    def _end_if_silent(self) -> None:
        self._left_s -= self._silence_s
        if self._silent or self._left_s <= 0:
            self._transport.close()
        else:
            self._look_later()


class TlsConnection(Connection):
    """A connection with TLS. The event loop's own decrypts all that has come before it looks at
    another connection, and keeps 400 kB for each.

    ``begin`` calls what it is given when the turn of the handshake has come. ``on_open`` is called
    when that is complete, or when the connection is lost before.
    """

    most = RECORD_BYTES

    def __init__(
        self,
        protocol: Callable[[], asyncio.Protocol],
        buffers: Buffers,
        on_end: Callable[[], object] = lambda: None,
        *,
        context: ssl.SSLContext,
        begin: Callable[[Callable[[], None]], None],
        on_open: Callable[["TlsConnection"], None],
    ) -> None:
        super().__init__(protocol, buffers, on_end)
        self._context = context
        self._take_turn = begin
        self._on_open = on_open
        self._received, self._sent = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls: Any = None  # an SSLObject from the first bytes on, because it takes memory

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What uvicorn asks of a transport; it knows TLS by its context."""
        if name == "sslcontext":
            return self._context
        return self._transport.get_extra_info(name, default)

    def connection_lost(self, exc: Exception | None) -> None:
        self._late.cancel()
        if self._protocol is None:
            self._on_open(self)
        super().connection_lost(exc)

    def _begin(self) -> None:
        self._late = self._loop.call_later(HANDSHAKE_S, self._transport.abort)

    def _arrived(self, data: bytes) -> None:
        self._received.write(data)
        if self._protocol is None:
            self._hold()
            self._take_turn(self._shake_hands)
        else:
            self._decrypt()

    def _shake_hands(self) -> None:
        if self._transport.is_closing():
            return
        if self._tls is None:
            self._tls = self._context.wrap_bio(self._received, self._sent, server_side=True)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._pass_on()
            self._read_on()
        except ssl.SSLError:
            self._fail()
        else:
            self._pass_on()
            self._read_on()
            self._late.cancel()
            self._on_open(self)
            super()._begin()
            self._decrypt()

    def _decrypt(self) -> None:
        """Give the protocol what the records hold that have come."""
        pieces, ended = [], False
        try:
            while self._received.pending or self._tls.pending():
                piece = self._tls.read(RECORD_BYTES)
                if not piece:
                    ended = True
                    break
                pieces.append(piece)
        except ssl.SSLWantReadError:  # the rest of a record is missing
            pass
        except ssl.SSLError:
            self._fail()
            return
        self._pass_on()  # answers to key updates
        if pieces:
            super()._arrived(b"".join(pieces))
        if ended:
            self._transport.close()

    def _fail(self) -> None:
        """It is no TLS, or none that is accepted."""
        self._pass_on()  # the alert
        self._transport.close()

    def _pass_on(self) -> None:
        if self._sent.pending and not self._transport.is_closing():
            self._transport.write(self._sent.read())

    def _send(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        view = memoryview(data)
        records = []
        for start in range(0, len(data), RECORD_BYTES):
            self._tls.write(view[start : start + RECORD_BYTES])
            records.append(self._sent.read())  # what waits there would stay in memory
        self._transport.write(b"".join(records))

    def _say_end(self) -> None:
        if self._tls is not None:
            with suppress(ssl.SSLError):  # it would wait for the client's own end
                self._tls.unwrap()
            self._pass_on()
