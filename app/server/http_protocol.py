"""uvicorn's HTTP/1.1 with bounds: one request at a time a connection, heads and waits limited.

uvicorn parses whatever arrives. A client that pipelines without reading then fills the memory, a
head without end is collected for ever, a connection may stay silent for ever, and a body behind
an offer to upgrade to HTTP/2 in clear text, which Java's HttpClient makes by default, is lost.
"""

import asyncio
import re
import socket
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.api.middleware.access import plain_address
from app.api.middleware.identity import new_request_id
from app.errors import BadRequest, HeadersTooLarge, ServiceError
from app.server.kernel import has_unread, unread_seconds
from app.server.refusals import answer, refusal
from app.server.transport import ResponseTransport
from app.server.turns import Turns

# What is overridden of uvicorn's protocol; a test compares. Its other methods are as they were.
OVERRIDDEN = {
    "connection_made": "closing lingers; silence is timed from the start",
    "connection_lost": "timers end, whatever the reason",
    "data_received": "the parser gets one request, and the next one after its answer",
    "eof_received": "a client that has ended its side may get its answer",
    "on_message_begin": "nothing is parsed behind a request in chunks",
    "on_header": "trailers are dropped",
    "on_headers_complete": "one Host (RFC 9112, section 3.2); the length of the body is noted",
    "on_body": "chunk framing and trailers are counted, which have no other limit",
    "on_message_complete": "nothing more is parsed until the answer is complete",
    "on_response_complete": "the next request begins, or the rest of a refused body is dropped",
    "pause_writing": "a client that does not read is waited for, but not for ever",
    "resume_writing": "it reads again",
    "shutdown": "a connection on which something has arrived is not closed",
    "_unset_keepalive_if_required": "the timer stops when a head is whole, not at each byte",
}

HEAD_TIMEOUT_S = 20.0
# Of the requests behind the one that is answered; of a client that sends more, nothing is read.
MAX_AHEAD_BYTES = 65_536
# Whether a client that has ended its side is gone or waits for its answer, nobody can tell before
# something is sent. It is given so long, instead of nothing, as by uvicorn and by nginx's proxy.
HALF_CLOSED_S = 0.2
# When the server stops, a connection is closed on which nothing came for so long: its client might
# be about to send.
QUIET_S = 0.5
# A client that reads nothing for so long, while more waits to be sent than is buffered, is cut off.
SEND_TIMEOUT_S = 300.0
HEAD_END = b"\r\n\r\n"
# Of its deadline, for the turn of a request; the rest is for the queue and inference.
PATIENCE = 0.5
TIMEOUT = re.compile(rb"\r\nx-request-timeout-ms: *([0-9]{1,9})\r\n", re.IGNORECASE)
UPGRADE = re.compile(rb"\r\nupgrade:[^\r\n]*(?=\r\n)", re.IGNORECASE)


class Stage(Enum):
    """What a connection waits for."""

    HEAD = auto()
    TURN = auto()  # a whole head is there
    BODY = auto()
    ANSWER = auto()


class HttpProtocol(HttpToolsProtocol):
    """One connection. The parser gets a head when it is whole, then its body, and no more.

    ``on_refusal`` is called with what is answered to bytes that are no request, and the client.
    """

    def __init__(
        self,
        connection: socket.socket,
        *arguments: Any,
        max_header_bytes: int,
        deadline_ms: int,
        turns: Turns,
        on_refusal: Callable[[ServiceError, str, str], None],
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._connection = connection
        self._max_header_bytes = max_header_bytes
        self._deadline_ms = deadline_ms
        self._turns = turns
        self._on_refusal = on_refusal
        self._stage = Stage.HEAD
        self._received = bytearray()  # and not given to the parser
        self._head_begun = False
        self._head_length = 0  # bytes, when it is whole
        self._body_left: int | None = 0  # bytes; None while it comes in chunks
        self._unheard = 0  # bytes of chunks' heads and of trailers since the last of a body
        self._half_closed = False
        self._unsent: asyncio.TimerHandle | None = None  # what is written, since it is too much
        self._idle_since = self.loop.time()
        self._stopping_since = 0.0

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = ResponseTransport(transport, self._is_sending)
        super().connection_made(cast(asyncio.Transport, self._transport))
        if self.client:
            host, port = self.client
            self.client = plain_address(host), port  # FORWARDED_ALLOW_IPS is compared with it
        self._close_after(self.timeout_keep_alive)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_waiting_for_reader()
        self._transport.stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            self._transport.drop(len(data))
        elif self._stage is Stage.HEAD:
            self._received += data
            self._take_head(unread_s=unread_seconds(self._connection))
        elif self._stage is Stage.BODY:
            self._take_body(data)
        else:
            self._received += data
            if len(self._received) > MAX_AHEAD_BYTES:
                self.flow.pause_reading()

    def eof_received(self) -> bool:  # type: ignore[override]
        if self._stage not in (Stage.TURN, Stage.ANSWER) or self._transport.is_closing():
            return False  # close
        self._half_closed = True
        if self._stage is Stage.ANSWER:
            self._answer_soon()
        return True

    def _answer_soon(self) -> None:
        """The client has ended its side: close after the answer, or without it."""
        self.cycle.keep_alive = False
        self._close_after(HALF_CLOSED_S)

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
        """Close when nothing has come for a while; called again and again as the server stops."""
        now = self.loop.time()
        self._stopping_since = self._stopping_since or now
        quiet_s = now - max(self._stopping_since, self._idle_since)
        if self._stage is Stage.HEAD and not self._received:
            if quiet_s >= QUIET_S and not has_unread(self._connection):
                self._transport.close()
        elif self._stage is Stage.BODY and self.cycle.response_complete:
            self._transport.close()

    def _is_sending(self) -> bool:
        """Whether the client may still be sending."""
        if self.cycle is not None and not self.cycle.response_complete:
            return self.cycle.disconnected  # otherwise an answer is cut: nothing is to be read
        return not self._half_closed and (self._stage is not Stage.ANSWER or bool(self._received))

    # One request

    def _take_head(self, *, unread_s: float) -> None:
        """Have the request begun whose head is whole; it was unread for so many seconds."""
        while self._received.startswith(b"\r\n"):  # as some clients send behind a body
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
            self._stage = Stage.TURN
            self._head_length = end + len(HEAD_END)
            self._arrived = self.loop.time() - unread_s
            if head.startswith(b"POST"):
                self._turns.take(self._begin, self._patience_s)
            else:  # a probe, a scrape, the page: short, and should not wait behind work
                self._begin()
        elif not self._head_begun:
            self._head_begun = True
            self._close_after(HEAD_TIMEOUT_S)

    def _patience_s(self) -> float:
        """How long a request may wait for its turn and still be answered in time, perhaps."""
        asked = TIMEOUT.search(self._received)
        timeout_ms = int(asked[1]) if asked else self._deadline_ms
        return min(timeout_ms, self._deadline_ms) / 1000 * PATIENCE

    def _begin(self) -> None:
        if self._transport.is_closing():  # the client has left
            return
        try:
            self._give_head()
        except BaseException:  # there is no memory: no timer would close the connection
            self._transport.abort()
            raise

    def _give_head(self) -> None:
        """Give the parser the head, and what is there of the body."""
        end = self._head_length
        head, rest = bytes(self._received[:end]), bytes(self._received[end:])
        self._received.clear()
        if self._parse(UPGRADE.sub(b"", head)):
            state = self.scope["state"]
            state["arrived"] = self._arrived
            if rest:
                self.data_received(rest)
            state["complete"] = self._stage is Stage.ANSWER
            if self._half_closed and self._stage is Stage.ANSWER:
                self._answer_soon()
            elif self._half_closed:
                self._transport.close()

    def _take_body(self, data: bytes) -> None:
        if self._body_left is None:
            self._unheard += len(data)
            self._parse(data)
            if self._unheard > self._max_header_bytes and self._stage is Stage.BODY:
                self._refuse(self._too_large())
            return
        piece, rest = data[: self._body_left], data[self._body_left :]
        self._body_left -= len(piece)
        if self._parse(piece) and rest:
            self.data_received(rest)

    def _parse(self, data: bytes) -> bool:
        """Give the parser something; whether it understood."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # of CONNECT, which no route takes
            pass
        except httptools.HttpParserError as error:
            if self._stage in (Stage.TURN, Stage.BODY):
                self._refuse(refusal(error.__context__))
            elif self._stage is Stage.ANSWER:  # what is wrong comes behind: after the answer, end
                self.cycle.keep_alive = False
                self._received += data
            else:
                self._transport.close()
            return False
        return True

    def on_message_begin(self) -> None:
        if self._stage is not Stage.TURN:
            # The end of chunks is known when they are parsed, and so is what comes after them.
            # It is not taken: clients that send ahead must be ready to send again.
            raise BadRequest("a request behind another one in chunks")
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._stage is Stage.TURN:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        hosts = 0
        self._body_left = 0
        for name, value in self.headers:
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                self._body_left = int(value)
            elif name == b"transfer-encoding":
                self._body_left = None
        if hosts != 1 and (hosts or self.parser.get_http_version() == "1.1"):
            raise BadRequest("a request of HTTP/1.1 has one Host header")
        self._unheard = self._transport.dropped = 0
        super().on_headers_complete()
        self._stage = Stage.BODY

    def on_body(self, body: bytes) -> None:
        self._unheard = 0
        if self.cycle.response_complete:
            self._transport.drop(len(body))
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._stage = Stage.ANSWER
        super().on_message_complete()
        if self.cycle.response_complete:
            self._transport.stop()
            self._await_head()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self._transport.is_closing():
            return
        self.flow.resume_reading()
        if self._stage is Stage.ANSWER:
            self._await_head()
        else:  # an early refusal
            self._transport.await_rest()

    def _await_head(self) -> None:
        self._stage = Stage.HEAD
        self._idle_since = self.loop.time()
        self._close_after(self.timeout_keep_alive)
        if self._received:  # its time begins with its turn
            self._take_head(unread_s=0.0)

    # Refusals and timers

    def _refuse(self, error: ServiceError) -> None:
        """Answer what is no request that could be routed, and close."""
        if self._stage is Stage.BODY:
            if self.cycle.response_started:  # nothing else can be said any more
                self.transport.close()
                return
            self.cycle.disconnected = True  # nobody waits for an answer to the rest
            self.cycle.message_event.set()
        request_id = new_request_id()
        self.transport.write(answer(error, request_id))
        self._stop_timer()
        self._on_refusal(error, request_id, self.client[0] if self.client else "")
        self.transport.close()

    def _too_large(self) -> HeadersTooLarge:
        return HeadersTooLarge(
            f"request line and headers have more than the {self._max_header_bytes} bytes accepted"
        )

    def _close_after(self, seconds: float) -> None:
        self._stop_timer()
        handler = self.timeout_keep_alive_handler
        self.timeout_keep_alive_task = self.loop.call_later(seconds, handler)

    def _stop_timer(self) -> None:
        super()._unset_keepalive_if_required()

    def _unset_keepalive_if_required(self) -> None:
        """The timers are ours: uvicorn would stop them whenever something arrives."""
