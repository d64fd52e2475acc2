"""uvicorn's HTTP/1.1 protocol with limits: one request at a time per connection, and timeouts.

uvicorn alone parses everything that arrives. That has four faults, which this module corrects:

- A client that sends many requests and does not read the answers fills the memory.
- A head (request line and headers) that never ends is collected without limit.
- A connection may stay silent without limit.
- If a request offers to upgrade to HTTP/2 in clear text, its body is lost. Java's HttpClient
  makes this offer by default.

The module is long because uvicorn wants a connection in one class, and its parts share one state.
"""

import asyncio
import re
import socket
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Literal, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.errors import (
    BadRequest,
    HeadersTooLarge,
    ServiceError,
    ShuttingDown,
    UnsupportedTransferCoding,
)
from app.exchange import Arrival
from app.limits import IPV4_MAPPED, plain_address
from app.observability.logs import request_id
from app.server.arrivals import QUIET_S, Turns
from app.server.refusals import answer, refusal
from app.server.transport import ResponseTransport, has_unread

# The methods of uvicorn's protocol that HttpProtocol overrides, and why. A test compares this list
# with the class. The other methods are used as they are.
OVERRIDDEN = {
    "connection_made": "closing lingers; silence is timed from the start",
    "connection_lost": "timers end, whatever the reason; the request's work is cancelled",
    "data_received": "the parser gets one request, and the next one after its answer",
    "on_message_begin": "nothing is parsed behind a request in chunks",
    "on_header": "trailers are dropped, and white space behind a value",
    "on_headers_complete": "one Host (RFC 9112, section 3.2), no coding but chunks; the length",
    "on_body": "small chunks are joined, and counted against their framing",
    "on_message_complete": "nothing more is parsed until the answer is complete",
    "on_response_complete": "the next request begins, or the rest of a refused body is dropped",
    "pause_writing": "a client that does not read is waited for, but not for ever",
    "resume_writing": "it reads again",
    "shutdown": "a connection on which something has arrived is not closed",
    "_unset_keepalive_if_required": "the timer stops when a head is whole, not at each byte",
}

HEAD_TIMEOUT_S = 20.0
# How much a client may send ahead while its current request is answered. If it sends more, the
# server stops reading from it.
MAX_AHEAD_BYTES = 65_536
# The connection is cut if the client does not read for this long and the write buffer is full.
SEND_TIMEOUT_S = 300.0
HEAD_END = b"\r\n\r\n"
PIECE_BYTES = 16_384  # of a body in chunks, which the parser gets at once
UPGRADE = re.compile(rb"\r\nupgrade:[^\r\n]*(?=\r\n)", re.IGNORECASE)


class ConnectionState(Enum):
    """What a connection waits for."""

    HEAD = auto()
    TURN = auto()  # the head is complete
    BODY = auto()
    ANSWER = auto()
    REFUSAL = auto()  # the answer to a body that is not valid; what still arrives is dropped


class _Refused(asyncio.Event):
    """In the place of a cycle's ``message_event``: to receive more of the body raises the error."""

    def __init__(self, error: ServiceError) -> None:
        super().__init__()
        self._error = error

    async def wait(self) -> Literal[True]:
        raise self._error


class HttpProtocol(HttpToolsProtocol):
    """One connection. The parser gets a complete head, then its body, then waits for the answer.

    ``on_refusal`` is called when the received bytes are not a valid request. It gets the error,
    the request id and the client's address. ``on_end``, if given, is called when it has ended.
    """

    def __init__(
        self,
        connection: socket.socket,
        *arguments: Any,
        max_header_bytes: int,
        turns: Turns,
        on_refusal: Callable[[ServiceError, str, str], None],
        on_end: Callable[[], None] | None,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._connection = connection
        self._max_header_bytes = max_header_bytes
        self._turns = turns
        self._on_refusal = on_refusal
        self._on_end = on_end
        self._arrival: Arrival | None = None  # of the current request
        self._state = ConnectionState.HEAD
        self._received = bytearray()  # bytes that the parser has not got yet
        self._head_begun = False
        self._head_length = 0  # bytes; set when the head is complete
        self._body_left: int | None = 0  # bytes; None while it comes in chunks
        self._chunks: list[bytes] = []  # of the piece that the parser has got
        self._framing_excess = 0  # bytes of chunks' framing and of trailers, beyond those of body
        self._unsent: asyncio.TimerHandle | None = None  # runs while the write buffer is full
        self._quiet_since = self.loop.time()  # while it waits for a head
        self._stopping_since = 0.0

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = ResponseTransport(transport, self._is_sending)
        super().connection_made(cast(asyncio.Transport, self._transport))
        if self.client and self.client[0].startswith(IPV4_MAPPED):
            host, port = self.client
            self.client = plain_address(host), port  # compared with --trusted-proxies
        self._close_after(self.timeout_keep_alive)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_waiting_for_reader()
        self._transport.end()
        super().connection_lost(exc)
        if self._on_end is not None:
            self._on_end()
        if self._arrival is not None:
            self._arrival.departed = True
            if self._arrival.on_departure is not None:
                self._arrival.on_departure()

    def data_received(self, data: bytes) -> None:
        if self._transport.closing:
            self._transport.drop(len(data))
        elif self._state is ConnectionState.HEAD:
            self._received += data
            self._take_head()
        elif self._state is ConnectionState.BODY:
            self._take_body(data)
        elif self._state is ConnectionState.REFUSAL:
            self._transport.drop(len(data))
        else:
            self._received += data
            if len(self._received) > MAX_AHEAD_BYTES:
                self.flow.pause_reading()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unsent = self.loop.call_later(SEND_TIMEOUT_S, self._transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_waiting_for_reader()

    def _stop_waiting_for_reader(self) -> None:
        if self._unsent is not None:
            self._unsent.cancel()

    def shutdown(self) -> None:
        """Close if nothing has arrived for a while; called repeatedly while the server stops."""
        now = self.loop.time()
        self._stopping_since = self._stopping_since or now
        quiet_s = now - max(self._stopping_since, self._quiet_since)
        if self._transport.closing:
            return
        if self._state is ConnectionState.HEAD:
            if quiet_s < QUIET_S or has_unread(self._connection):
                return
            if self._received:  # half a head
                self._refuse(ShuttingDown())
            else:
                self._transport.close()
        elif self._state is ConnectionState.BODY and self.cycle.response_complete:
            self._transport.close()

    def _is_sending(self) -> bool:
        """Whether the client may still be sending."""
        if self.cycle is not None and not self.cycle.response_complete:
            return self.cycle.disconnected  # if False, the answer is cut off: do not wait
        return self._state is not ConnectionState.ANSWER or bool(self._received)

    # One request

    def _take_head(self) -> None:
        """Begin a request if its head is complete."""
        while self._received.startswith(b"\r\n"):  # some clients send this after a body
            del self._received[:2]
        if not self._received or self._received == b"\r":
            return
        end = self._received.find(HEAD_END)
        head = self._received[:end] if end >= 0 else self._received
        if len(head) > self._max_header_bytes:
            self._refuse(self._too_large())
        elif not self._received[:1].isalpha() or head.count(b"\n") != head.count(b"\r\n"):
            self._refuse(BadRequest("not HTTP/1.1: lines must end with CR LF"))
        elif end >= 0:
            self._stop_timer()
            self._head_begun = False
            self._state = ConnectionState.TURN
            self._head_length = end + len(HEAD_END)
            self._arrived_at = self.loop.time()
            self._turns.take(head, self._begin)
        else:
            self._quiet_since = self.loop.time()
            if not self._head_begun:
                self._head_begun = True
                self._close_after(HEAD_TIMEOUT_S)

    def _begin(self) -> None:
        if self._transport.closing:  # the client has left
            return
        try:
            self._give_head()
        except BaseException:  # out of memory: no timer would close the connection
            self._transport.abort()
            raise

    def _give_head(self) -> None:
        """Give the parser the head, and the part of the body that has arrived."""
        end = self._head_length
        head, rest = bytes(self._received[:end]), bytes(self._received[end:])
        self._received.clear()
        if b"\r\nupgrade:" in head.lower():
            head = UPGRADE.sub(b"", head)
        if self._parse(head):
            if self._state is ConnectionState.TURN:  # the parser saw no end of the head
                self._refuse(BadRequest("HTTP/2 is not supported; send HTTP/1.1"))
                return
            self._arrival = Arrival(self._arrived_at)
            cast(dict[str, Any], self.scope)["arrival"] = self._arrival
            if rest:
                self.data_received(rest)
            self._arrival.complete = self._state is ConnectionState.ANSWER

    def _take_body(self, data: bytes) -> None:
        while data and self._state is ConnectionState.BODY:
            size = PIECE_BYTES if self._body_left is None else self._body_left
            piece, data = data[:size], data[size:]
            if self._body_left is None:
                self._framing_excess += len(piece)
            else:
                self._body_left -= len(piece)
            if not self._parse(piece):
                return
            self._give_chunks()
            # No other limit covers framing, and chunks of a byte are six times as long.
            too_long = self._framing_excess > self._max_header_bytes
            if too_long and self._state is ConnectionState.BODY:
                self._refuse(self._too_large())
        if data:
            self.data_received(data)

    def _parse(self, data: bytes) -> bool:
        """Give the parser some bytes; return whether it accepted them."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # raised for CONNECT, which no route accepts
            pass
        except httptools.HttpParserError as error:
            if self._state in (ConnectionState.TURN, ConnectionState.BODY):
                self._refuse(refusal(error.__context__))
            elif self._state is ConnectionState.ANSWER:
                # The next request is bad: answer this one, then close.
                self.cycle.keep_alive = False
                self._received += data
            else:
                self._transport.close()
            return False
        return True

    def on_message_begin(self) -> None:
        if self._state is not ConnectionState.TURN:
            # Only the parser finds the end of a chunked body, so it has already seen the start of
            # the next request. It is not answered: clients that send ahead must be ready to send
            # again.
            raise BadRequest("a request behind another one in chunks")
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._state is not ConnectionState.TURN:
            return
        name, value = name.lower(), value.rstrip(b" \t")  # the parser strips only the front
        if name == b"expect" and value.lower() == b"100-continue":
            # A client of HTTP/1.0 does not know interim answers (RFC 9110, section 10.1.1).
            self.expect_100_continue = self.parser.get_http_version() != "1.0"
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        hosts = 0
        self._body_left = 0
        for name, value in self.headers:
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                self._body_left = int(value)
            elif name == b"transfer-encoding":
                if value.lower() != b"chunked":
                    raise UnsupportedTransferCoding("the only transfer coding accepted is: chunked")
                self._body_left = None
        if hosts != 1 and (hosts or self.parser.get_http_version() == "1.1"):
            raise BadRequest("an HTTP/1.1 request must have exactly one Host header")
        self._framing_excess = self._transport.dropped = 0
        self._chunks.clear()
        super().on_headers_complete()
        self._state = ConnectionState.BODY

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)

    def _give_chunks(self) -> None:
        """Pass the parsed chunks to the application together: each alone takes long."""
        body = b"".join(self._chunks)
        self._chunks.clear()
        self._framing_excess -= 2 * len(body)  # it was counted as framing
        if self.cycle.response_complete:
            self._transport.drop(len(body))
        elif body:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._give_chunks()
        self._state = ConnectionState.ANSWER
        super().on_message_complete()
        # A long body pauses reading. From here on, only reading tells whether the client leaves.
        self.flow.resume_reading()
        if self.cycle.response_complete:
            self._transport.stop()
            self._await_head()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self._transport.closing:
            return
        self.flow.resume_reading()
        if self._state is ConnectionState.ANSWER:
            self._await_head()
        else:  # the request was refused before its whole body arrived
            self._transport.await_rest()

    def _await_head(self) -> None:
        self._state = ConnectionState.HEAD
        self._quiet_since = self.loop.time()
        self._close_after(self.timeout_keep_alive)
        if self._received:  # its deadline begins now, when it becomes the current request
            self._take_head()

    # Refusals and timers

    def _refuse(self, error: ServiceError) -> None:
        """Answer bytes that are not a valid request, and close."""
        if self._state is ConnectionState.BODY:
            self._refuse_body(error)
            return
        own_id = request_id()
        self.transport.write(answer(error, own_id, self.server_state.default_headers))
        self._stop_timer()
        self._on_refusal(error, own_id, self.client[0] if self.client else "")
        self.transport.close()

    def _refuse_body(self, error: ServiceError) -> None:
        """Let the application answer with the error when it receives the next part of the body."""
        if self.cycle.response_complete:
            self.transport.close()
            return
        self._state = ConnectionState.REFUSAL
        self.cycle.keep_alive = False
        waiting, self.cycle.message_event = self.cycle.message_event, _Refused(error)
        waiting.set()

    def _too_large(self) -> HeadersTooLarge:
        return HeadersTooLarge(
            f"request line and headers have more than the {self._max_header_bytes} bytes accepted"
        )

    def _close_after(self, seconds: float) -> None:
        self._stop_timer()
        handler = self.timeout_keep_alive_handler
        self.timeout_keep_alive_task = self.loop.call_later(seconds, handler)

    def _stop_timer(self) -> None:
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()

    def _unset_keepalive_if_required(self) -> None:
        """Do nothing: the timers are ours, and uvicorn would stop them whenever data arrives."""
