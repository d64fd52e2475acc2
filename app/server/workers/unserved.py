"""What a connection gets while no worker serves: the supervisor itself answers 503."""

import asyncio
import json
import socket
import uuid
from typing import cast

from app.errors import NotReady

# Seconds that a client gets to send its request and to read the answer.
MOST_S = 5.0
HEAD = """\
HTTP/1.1 503 Service Unavailable\r
content-type: application/problem+json\r
content-length: {length}\r
retry-after: {retry_after_s:.0f}\r
x-request-id: {request_id}\r
connection: close\r
\r
"""

_beginning: set[asyncio.Task[object]] = set()  # the event loop does not keep its tasks


def refuse(connection: socket.socket) -> None:
    """Answer the connection's request with 503, and end it. Call it on the event loop."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(loop.connect_accepted_socket(_Refusal, connection))
    _beginning.add(task)
    task.add_done_callback(_beginning.discard)


class _Refusal(asyncio.Protocol):
    """One such connection."""

    def __init__(self) -> None:
        self._answered = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        loop = asyncio.get_running_loop()
        self._end = loop.call_later(MOST_S, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        # The rest is read and forgotten: the kernel would reset a connection with unread bytes, and
        # the client would not see the answer.
        if not self._answered:
            self._answered = True
            self._transport.write(_answer())
            self._transport.write_eof()

    def connection_lost(self, error: Exception | None) -> None:
        self._end.cancel()


def _answer() -> bytes:
    error, request_id = NotReady("no worker is ready"), uuid.uuid4().hex
    body = json.dumps(error.document(error.detail, request_id))
    head = HEAD.format(length=len(body), retry_after_s=error.retry_after_s, request_id=request_id)
    return (head + body).encode()
