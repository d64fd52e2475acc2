"""Sends the exact bytes of a request and reads everything that the server sends back."""

import io
import re
import socket
from contextlib import suppress
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from typing_extensions import Buffer

from tests.replay.corpus import RawRequest

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


def send(
    url: str, request: RawRequest, *, timeout_s: float = TIMEOUT_S
) -> tuple[list[RawAnswer], str]:
    """Send the request on a new connection, and read the answers until the connection closes.

    Returns:
        All answers, interim ones included, and what became of the connection: kept, closed, or
        what went wrong.
    """
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout_s) as connection:
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
            outcome = f"silent for {timeout_s:g} s"
    answers = reader.answers
    if answers and answers[-1].header("x-request-id") == PROBE_ID.decode():
        answers.pop()
        outcome = "kept"
    return answers, outcome


def _send(connection: socket.socket, data: bytes) -> None:
    # The server may answer and close before it has read everything.
    with suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(data)


class _Socket(io.RawIOBase):
    """What a connection receives. A reset is an end, so that what came before it is read."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        try:
            return self._connection.recv_into(buffer)
        except ConnectionResetError:
            return 0


class _CutOff(Exception):
    """The connection ended; the argument is what came of what was to be read."""


class _Reader:
    """Cuts what arrives into answers."""

    def __init__(self, connection: socket.socket, *, head_only: bool) -> None:
        self.answers: list[RawAnswer] = []
        self._received = io.BufferedReader(_Socket(connection))
        self._head_only = head_only  # the next final answer has no body

    def read_final(self) -> bool:
        """Read up to the end of the next final answer; False if the connection closed instead."""
        while True:
            try:
                head = self._until(b"\r\n\r\n")
            except _CutOff as end:
                if end.args[0]:
                    self.answers.append(RawAnswer(CUT_OFF, [], end.args[0]))
                return False
            status, *lines = head.decode("latin-1").split("\r\n")
            named = (line.partition(":") for line in lines)
            answer = RawAnswer(status, [(name, value.strip()) for name, _, value in named], b"")
            try:
                answer = replace(answer, body=self._body(answer))
            except _CutOff as end:
                answer = replace(answer, status=f"{status} ({CUT_OFF})", body=end.args[0])
            self.answers.append(answer)
            if not re.match(r"HTTP/1\.[01] 1", status):
                self._head_only = False
                return True

    def _body(self, answer: RawAnswer) -> bytes:
        if self._head_only or re.match(r"HTTP/1\.[01] (1|204|304)", answer.status):
            return b""
        if answer.header("transfer-encoding") == "chunked":
            body = b""
            while size := int(self._until(b"\r\n"), 16):
                body += self._exactly(size + 2)[:-2]
            self._exactly(2)
            return body
        if length := answer.header("content-length"):
            return self._exactly(int(length))
        return self._received.read()

    def _until(self, end: bytes) -> bytes:
        """What comes before the line that ends so."""
        found = b""
        while not found.endswith(end):
            line = self._received.readline()
            if not line.endswith(b"\n"):
                raise _CutOff(found + line)
            found += line
        return found.removesuffix(end)

    def _exactly(self, size: int) -> bytes:
        found = self._received.read(size)
        if len(found) < size:
            raise _CutOff(found)
        return found
