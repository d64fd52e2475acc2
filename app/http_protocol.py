"""uvicorn's HTTP/1.1, with a bounded head, and answers that name what was wrong.

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
UPGRADE = re.compile(rb"\r\nupgrade:[^\r\n]*(?=\r\n)", re.IGNORECASE)


class HttpProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *arguments: Any, max_header_bytes: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._max_header_bytes = max_header_bytes
        self._head_bytes = 0  # that came without completing a head
        self._head_timer: asyncio.TimerHandle | None = None  # runs while a head is incomplete
        self._between_messages = True
        self._refusal: ServiceError = BadRequest("what arrived is not HTTP/1.1")
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_keepalive_if_required()
        self._stop_head_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._between_messages:
            # The offer is taken out of the head, where no part of a body can be.
            end = data.find(b"\r\n\r\n") + 2
            data = UPGRADE.sub(b"", data[:end]) + data[end:]
        super().data_received(data)
        if self._head_timer is not None:
            self._head_bytes += len(data)
            if self._head_bytes > self._max_header_bytes:
                self._refusal = self._too_large()
                self.send_400_response("")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._between_messages = False
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_timer is not None:  # trailers are not read
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stop_head_timer()
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self._max_header_bytes:
            self._refusal = self._too_large()
            raise self._refusal  # to the parser, which ends in send_400_response
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._between_messages = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request that could be routed."""
        self._refused = True
        self._stop_head_timer()
        answer = problem(self._refusal, uuid4().hex)
        headers = [*answer.raw_headers, (b"connection", b"close")]
        lines = [name + b": " + value + b"\r\n" for name, value in headers]
        status_line = STATUS_LINE[answer.status_code]
        self.transport.write(b"".join([status_line, *lines, b"\r\n", bytes(answer.body)]))
        self.loop.call_later(LINGER_S, self.transport.close)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_large(self) -> HeadersTooLarge:
        return HeadersTooLarge(
            f"request line and headers have more than the {self._max_header_bytes} bytes accepted"
        )
