"""Sends the exact bytes of a request and reads everything that the server sends back."""

import re
import socket
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from checks.replay.raw_request import RawRequest

TIMEOUT_S = 20.0
CUT_OFF = "cut off"
PROBE_ID = b"replay-probe"
PROBE = (
    b"GET /health/live HTTP/1.1\r\nhost: replay\r\nconnection: close\r\nx-request-id: %b\r\n\r\n"
)


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """One HTTP answer. ``body`` is without the framing of chunks."""

    status: str  # the status line; says so if the answer was cut off
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str:
        """The header's value; empty if it is missing."""
        return next((value for known, value in self.headers if known.lower() == name), "")


def send(url: str, request: RawRequest) -> tuple[list[RawAnswer], str]:
    """Send the request on a new connection, and read the answers until the connection closes.

    Returns:
        All answers, interim ones included, and what became of the connection: kept, closed, or
        what went wrong.
    """
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader = _Reader(connection, head_only=request.data.startswith(b"HEAD "))
        try:
            _send(connection, request.data)
            if request.incomplete:
                connection.shutdown(socket.SHUT_WR)
            reader.read_final()
            if not request.incomplete:
                _send(connection, PROBE % PROBE_ID)
            while reader.read_final():
                pass
            outcome = "closed"
        except TimeoutError:
            outcome = f"silent for {TIMEOUT_S:g} s"
    answers = reader.answers
    if answers and answers[-1].header("x-request-id") == PROBE_ID.decode():
        answers.pop()
        outcome = "kept"
    return answers, outcome


def _send(connection: socket.socket, data: bytes) -> None:
    # The server may answer and close before it has read everything.
    with suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(data)


class _Reader:
    """Cuts what arrives into answers."""

    def __init__(self, connection: socket.socket, *, head_only: bool) -> None:
        self.answers: list[RawAnswer] = []
        self._connection = connection
        self._received = b""
        self._head_only = head_only  # the next final answer has no body
        self._closed = False

    def read_final(self) -> bool:
        """Read up to the end of the next final answer; False if the connection closed instead."""
        while (answer := self._read_answer()) is not None:
            self.answers.append(answer)
            if not re.match(r"HTTP/1\.[01] 1", answer.status):
                self._head_only = False
                return True
        if self._received:
            self.answers.append(RawAnswer(CUT_OFF, [], self._received))
            self._received = b""
        return False

    def _read_answer(self) -> RawAnswer | None:
        head = self._until(b"\r\n\r\n")
        if head is None:
            return None
        status, *lines = head.decode("latin-1").split("\r\n")
        named = (line.partition(":") for line in lines)
        answer = RawAnswer(status, [(name, value.strip()) for name, _, value in named], b"")
        body = self._body(answer)
        if body is None:
            status, body, self._received = f"{status} ({CUT_OFF})", self._received, b""
        return RawAnswer(status, answer.headers, body)

    def _body(self, answer: RawAnswer) -> bytes | None:
        if self._head_only or re.match(r"HTTP/1\.[01] (1|204|304)", answer.status):
            return b""
        if answer.header("transfer-encoding") == "chunked":
            return self._chunks()
        if length := answer.header("content-length"):
            return self._exactly(int(length))
        while self._more():
            pass
        body, self._received = self._received, b""
        return body

    def _chunks(self) -> bytes | None:
        body = b""
        while (size := self._until(b"\r\n")) is not None:
            chunk = self._exactly(int(size, 16) + 2)
            if chunk is None:
                return None
            if chunk == b"\r\n":
                return body
            body += chunk[:-2]
        return None

    def _until(self, end: bytes) -> bytes | None:
        while end not in self._received:
            if not self._more():
                return None
        found, _, self._received = self._received.partition(end)
        return found

    def _exactly(self, size: int) -> bytes | None:
        while len(self._received) < size:
            if not self._more():
                return None
        found, self._received = self._received[:size], self._received[size:]
        return found

    def _more(self) -> bool:
        try:
            data = b"" if self._closed else self._connection.recv(65_536)
        except ConnectionResetError:
            data = b""
        self._closed = not data
        self._received += data
        return bool(data)
