"""uvicorn's HTTP/1.1 protocol with limits.

uvicorn 0.54 parses all that arrives, so a client that sends many requests ahead, or a head without
end, fills the memory. Here the parser gets a whole head, then its body, and the next head when the
answer is complete. Requests begin in turns (``arrivals.Starts``). What is no valid request gets a
problem like other errors, counted and logged; parsing is stricter than uvicorn's. Closing lingers
(``connection.Connection``). ``test_connections.py`` lists the methods that are overridden.
"""

import asyncio
import re
import sys
from enum import Enum, auto
from functools import partial
from typing import Any, Literal, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sentiment_service.errors import BadRequest, HeadersTooLarge, ServiceError, ShuttingDown
from sentiment_service.observability.logs import log_request
from sentiment_service.observability.observers import count_request
from sentiment_service.requests.exchange import OTHER_METHOD, UNMATCHED, Arrival, request_id
from sentiment_service.requests.limits import IPV4_MAPPED, Waiting, plain_address
from sentiment_service.requests.service import Service
from sentiment_service.server.arrivals import QUIET_S, Starts
from sentiment_service.server.connection import Connection

# If a client sends more ahead while its request is answered, the server stops reading from it.
MAX_AHEAD_BYTES = 16_384
# The connection is cut if the client does not read for this long and the write buffer is full.
SEND_TIMEOUT_S = 300.0
ENDLESS = sys.maxsize
# A connection repeats if it asks for no texts, or is refused, and asks again within this time.
REPEATS_S = 0.1
LINE_END = b"\r\n"
HEAD_END = b"\r\n\r\n"
# Java's HttpClient offers HTTP/2 by default; where the parser sees that, it loses the body.
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
    """One connection to the ``service``. Its requests begin as ``starts`` says.

    ``unread``, the connections whose clients do not read, is shared by all of the service.
    """

    def __init__(
        self,
        *arguments: Any,
        service: Service,
        starts: Starts,
        unread: Waiting,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._service = service
        self._max_header_bytes = service.settings.max_header_bytes
        self._starts = starts
        self._unread = unread
        self._arrival: Arrival | None = None  # of the current request
        self._state = ConnectionState.HEAD
        self._received = bytearray()  # bytes that the parser has not got yet
        self._body_left = 0  # bytes; ENDLESS while it comes in chunks
        self._framing_excess = 0  # bytes of chunks' framing and of trailers, beyond those of body
        self._unsent: asyncio.TimerHandle | None = None  # runs while the write buffer is full
        self._quiet_since = self.loop.time()  # while it waits for a head
        self._gave_no_work = False  # whether the last request had no texts, or was refused

    # The connection

    def connection_made(self, transport: Connection) -> None:  # type: ignore[override]
        self._transport = transport
        transport.sending = self._is_sending
        self._close_later()
        super().connection_made(cast(asyncio.Transport, transport))
        self._service.connections += 1
        if self.client and self.client[0].startswith(IPV4_MAPPED):
            host, port = self.client
            self.client = plain_address(host), port  # compared with --trusted-proxies

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_keepalive_if_required()
        self.resume_writing()
        super().connection_lost(exc)
        self._service.connections -= 1
        if self._arrival is not None:
            self._arrival.departed = True
            if self._arrival.on_departure is not None:
                self._arrival.on_departure()

    def data_received(self, data: bytes) -> None:
        if self._transport.closing or self._state is ConnectionState.REFUSAL:
            self._transport.drop()
        elif self._state is ConnectionState.BODY:
            if self.cycle.response_complete:
                self._drop_body(data)
            else:
                self._take_body(data)
        else:
            self._received += data
            if self._state is ConnectionState.HEAD:
                self._take_head()
            elif self._arrival is not None:
                self._arrival.followed = True
            self._read_on()

    def _read_on(self) -> None:
        """Read more, unless the client has sent much ahead while its request is answered."""
        if len(self._received) > MAX_AHEAD_BYTES and self._state is not ConnectionState.HEAD:
            self.flow.pause_reading()
        else:
            self.flow.resume_reading()

    def pause_writing(self) -> None:
        super().pause_writing()
        size, abort = self._transport.get_write_buffer_size(), self._transport.abort
        self._unread.add(self._transport, size, abort)
        self._unsent = self.loop.call_later(SEND_TIMEOUT_S, abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread.remove(self._transport)
        if self._unsent is not None:
            self._unsent.cancel()

    def close_if_quiet(self, since: float, now: float) -> None:
        """Close if nothing has arrived for a while. The server stops ``since`` a time."""
        if self._transport.closing:
            return
        if self._state is ConnectionState.HEAD:
            if now - max(since, self._quiet_since) < QUIET_S:
                return
            if self._received:  # half a head
                self._refuse(ShuttingDown())
            else:
                self._transport.close()
        elif self._state is ConnectionState.BODY and self.cycle.response_complete:
            self._transport.close()

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    def _is_sending(self) -> bool:
        if self.cycle is not None and not self.cycle.response_complete:
            return self.cycle.disconnected  # if False, the answer is cut off: do not wait
        return self._state is not ConnectionState.ANSWER or bool(self._received)

    # One request

    def _take_head(self) -> None:
        # Some clients send the end of a line after a body, perhaps in two packets.
        if self._received.startswith(LINE_END):
            del self._received[: len(LINE_END)]
        if not self._received or self._received == LINE_END[:1]:
            return
        end = self._received.find(HEAD_END)
        head = self._received[:end] if end >= 0 else self._received
        if len(head) > self._max_header_bytes:
            self._refuse(self._too_large())
        elif head.startswith(b"PRI ") or not head[:1].isalpha():
            self._refuse(BadRequest("this is not HTTP/1.1; HTTP/2 is not supported"))
        elif head.count(b"\n") != head.count(b"\r\n"):
            self._refuse(BadRequest("this is not HTTP/1.1: its lines end with CR LF"))
        elif end >= 0:
            self._unset_keepalive_if_required()
            self._state = ConnectionState.TURN
            arrival = Arrival()
            start = partial(self._begin, end + len(HEAD_END), arrival)
            repeats = self._gave_no_work and arrival.at - self._quiet_since < REPEATS_S
            self._starts.take(head, start, repeats=repeats)
        else:
            self._quiet_since = self.loop.time()

    def _begin(self, end: int, arrival: Arrival) -> None:
        """Give the parser the head, up to ``end``, and the part of the body that has arrived."""
        if self._transport.closing:  # the client has left
            return
        head = bytes(self._received[:end])
        del self._received[:end]  # only a mark is moved, however much is behind it
        if b"\r\nupgrade:" in head.lower():
            head = UPGRADE.sub(b"", head)
        if not self._parse(head):
            return
        self._arrival = arrival
        cast(dict[str, Any], self.scope)["arrival"] = self._arrival
        if self._state is ConnectionState.BODY and self._received:
            body, self._received = bytes(self._received), bytearray()
            self._take_body(body)
        self._arrival.complete = self._state is ConnectionState.ANSWER
        self._arrival.endless = self._body_left == ENDLESS and not self._arrival.complete
        self._arrival.followed = bool(self._received)

    def _take_body(self, data: bytes) -> None:
        """Give the parser what belongs to the body. What is behind it begins the next request."""
        body, ahead = data[: self._body_left], data[self._body_left :]
        if self._body_left != ENDLESS:
            self._body_left -= len(body)
        self._framing_excess += len(body)
        if not self._parse(body):
            return
        # No other limit covers framing, and chunks of a byte are six times as long.
        if self._framing_excess > self._max_header_bytes and self._state is ConnectionState.BODY:
            self._refuse(self._too_large())
        elif ahead:
            self.data_received(ahead)

    def _drop_body(self, data: bytes) -> None:
        """Drop what belongs to the body of a refused request, unread, and find its end."""
        body, ahead = data[: self._body_left], data[self._body_left :]
        self._body_left -= len(body)
        self._transport.drop()
        if self._body_left:
            return
        self._transport.stop()
        # The one before waits for this body for ever.
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._await_head()
        if ahead:
            self.data_received(ahead)

    def _parse(self, data: bytes) -> bool:
        """Give the parser some bytes; return whether it accepted them."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # raised for CONNECT, which no route accepts
            pass
        except httptools.HttpParserError as error:
            if self._state in (ConnectionState.TURN, ConnectionState.BODY):
                cause = error.__context__  # what a method below has raised
                invalid = BadRequest("the request is not valid HTTP/1.1")
                self._refuse(cause if isinstance(cause, ServiceError) else invalid)
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
            # Only the parser finds the end of a chunked body, so it has seen the next request's
            # start. That is not answered: clients that send ahead must be ready to send again.
            raise BadRequest("a request behind another one in chunks")
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._state is ConnectionState.TURN:  # else it is a trailer
            super().on_header(name, value.rstrip(b" \t"))  # the parser strips only the front

    def on_headers_complete(self) -> None:
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts != 1 and (hosts or self.parser.get_http_version() == "1.1"):
            raise BadRequest("an HTTP/1.1 request must have exactly one Host header")
        codings = [value.lower() for name, value in self.headers if name == b"transfer-encoding"]
        if codings not in ([], [b"chunked"]):
            raise BadRequest("the only transfer coding accepted is: chunked")
        length = int(dict(self.headers).get(b"content-length", 0))
        self._body_left = ENDLESS if codings else length
        self._framing_excess = 0
        if self.parser.get_http_version() == "1.0":  # no interim answers (RFC 9110, 10.1.1)
            self.expect_100_continue = False
        super().on_headers_complete()
        self._state = ConnectionState.BODY

    def on_body(self, body: bytes) -> None:
        self._framing_excess -= 2 * len(body)  # it was counted as framing
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._state = ConnectionState.ANSWER
        super().on_message_complete()
        # A long body pauses reading. From here on, only reading tells whether the client leaves.
        self._read_on()
        if self._arrival is not None:
            self._arrival.endless = False

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        self.cycle.body.clear()
        if self._transport.closing:
            return
        refused = self._arrival is not None and self._arrival.refused
        self._gave_no_work = refused or self.scope["method"] != "POST"
        if self._state is ConnectionState.ANSWER:
            self._await_head()
            self._read_on()
        elif self._body_left == ENDLESS:  # only the parser could find the end, at some expense
            self._transport.close()
        else:  # the request was refused before its whole body arrived
            self._transport.await_rest()

    def _await_head(self) -> None:
        self._state = ConnectionState.HEAD
        self._quiet_since = self.loop.time()
        # Of the request before, a kept connection has nothing.
        self.cycle = self.scope = self._arrival = None  # type: ignore[assignment]
        self.headers, self.url = [], b""
        self._close_later()
        if self._received:  # its deadline begins now, when it becomes the current request
            self._take_head()

    # Refusals and timers

    def _refuse(self, error: ServiceError) -> None:
        """Answer bytes that are not a valid request, and close."""
        if self._state is not ConnectionState.BODY:
            self._unset_keepalive_if_required()
            self._write_refusal(error)
        elif not self.cycle.response_complete:
            # The application answers with the error when it receives the next part of the body.
            self._state = ConnectionState.REFUSAL
            self.cycle.keep_alive = False
            waiting, self.cycle.message_event = self.cycle.message_event, _Refused(error)
            waiting.set()
            return
        self.transport.close()

    def _write_refusal(self, error: ServiceError) -> None:
        """The error as an answer that says that the connection closes; count and log it."""
        service, own_id = self._service, request_id()
        count_request(service.metrics, OTHER_METHOD, UNMATCHED, error.status, error.code, 0.0)
        if service.logs_requests:
            log_request(
                {
                    "request_id": own_id,
                    "client": self._address,
                    "method": OTHER_METHOD,
                    "route": UNMATCHED,
                    "status": error.status,
                    "code": error.code,
                    "reason": error.detail,
                }
            )
        self.transport.write(error.last_answer(own_id, self.server_state.default_headers))

    def _too_large(self) -> HeadersTooLarge:
        return HeadersTooLarge(
            f"request line and headers have more than the {self._max_header_bytes} bytes accepted"
        )

    def _close_later(self) -> None:
        """Close unless a whole head arrives in time."""
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )
