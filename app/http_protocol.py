"""uvicorn's HTTP/1.1, with bounds on what is no request yet, and answers that name what was wrong.

uvicorn passes over three things: a head without end is collected for ever, a connection may stay
silent for ever, and a body behind an offer to upgrade to HTTP/2 in clear text, which Java's
HttpClient makes by default, is lost.
"""

import asyncio
import re
from typing import Any
from uuid import uuid4

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from app.api.problems import problem
from app.errors import BadRequest, HeadersTooLarge, ServiceError

HEAD_TIMEOUT_S = 20.0
# A client that is still sending would not see the answer if the connection closed at once.
LINGER_S = 1.0
# A line feed alone ends no line of HTTP: the parser will refuse it.
HEAD_END = re.compile(rb"\r\n\r\n|\n\n")
UPGRADE = re.compile(rb"\r\nupgrade:[^\r\n]*(?=\r\n)", re.IGNORECASE)


class HttpProtocol(HttpToolsProtocol):
    """One connection. A head goes to the parser when it is whole."""

    def __init__(self, *arguments: Any, max_header_bytes: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._max_header_bytes = max_header_bytes
        self._head = b""  # that is not whole
        self._unheard = 0  # bytes since the parser last had a head or a piece of a body
        self._between_messages = True
        self._in_head = False  # the parser is, of a request that was sent with the one before
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._close_after(self.timeout_keep_alive)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._between_messages and not self._in_head:
            data = self._take_head(data)
        self._unheard += len(data)
        if data:
            super().data_received(data)
        if self._unheard > self._max_header_bytes and not self._refused:  # as trailers, perhaps
            self._refuse(self._too_large())

    def _take_head(self, data: bytes) -> bytes:
        """The head that this completes and what follows it; empty if it does not."""
        begun, self._head = bool(self._head), (self._head + data).lstrip(b"\r\n")
        if not self._head[:1].isalpha():
            whole, self._head = self._head, b""  # no method begins so: the parser will refuse it
            return whole
        end = HEAD_END.search(self._head)
        if (end.start() if end else len(self._head)) > self._max_header_bytes:
            self._refuse(self._too_large())
            return b""
        if end is None:
            if not begun:
                self._close_after(HEAD_TIMEOUT_S)
            return b""
        whole, self._head = self._head, b""
        return UPGRADE.sub(b"", whole[: end.start() + 2]) + whole[end.start() + 2 :]

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._between_messages:  # not a trailer, which nobody would read
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._unheard = 0
        self._in_head = self._between_messages = False
        self._stop_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unheard = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unheard = 0
        self._between_messages = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what the parser does not understand."""
        self._refuse(BadRequest("what arrived is not HTTP/1.1"))

    def _refuse(self, error: ServiceError) -> None:
        """Answer what is no request that could be routed, and close."""
        self._refused = True
        if self.cycle is not None and not self.cycle.response_complete:
            if not self.cycle.more_body:
                self.cycle.keep_alive = False  # what is under way has its answer, and no more
                return
            if self.cycle.response_started:
                self.transport.close()
                return
            self.cycle.disconnected = True  # its body is what is wrong: nobody waits for an answer
            self.cycle.message_event.set()
        answer = problem(error, uuid4().hex)
        headers = [*answer.raw_headers, (b"connection", b"close")]
        lines = [name + b": " + value + b"\r\n" for name, value in headers]
        status_line = STATUS_LINE[answer.status_code]
        self.transport.write(b"".join([status_line, *lines, b"\r\n", bytes(answer.body)]))
        self._close_after(LINGER_S)

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
        """Not whenever something arrives, as uvicorn does it: for a whole head only."""
