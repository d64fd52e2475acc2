"""HTTP as bytes, on sockets of our own."""

import re
import socket
from http.client import HTTPResponse

HEALTH = b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n"
HEAD = b"POST /classify HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
BODY = b'{"inputs": "love"}'


def post(body: bytes = BODY, *headers: bytes) -> bytes:
    """A whole request to classify this, with these headers as well."""
    named = b"".join(header + b"\r\n" for header in headers)
    return HEAD + named + b"content-length: %d\r\n\r\n" % len(body) + body


def port_of(url: str) -> int:
    """The port in the URL of a server."""
    return int(url.rpartition(":")[2])


def connect(port: int, *parts: bytes, buffer_bytes: int | None = None) -> socket.socket:
    """A connection on which these parts were sent, perhaps with a receive buffer of this size."""
    connection = socket.socket()
    if buffer_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    connection.settimeout(30)
    connection.connect(("127.0.0.1", port))
    for part in parts:
        connection.sendall(part)
    return connection


def read_all(connection: socket.socket) -> bytes:
    """What the server sends until it closes."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


def exchange(port: int, *parts: bytes) -> bytes:
    """Send parts on a connection of their own; the server's answer until it closes."""
    with connect(port, *parts) as connection:
        return read_all(connection)


def statuses(answers: bytes) -> list[int]:
    """The status of each answer."""
    return [int(status) for status in re.findall(rb"HTTP/1.1 (\d+)", answers)]


def read_answer(connection: socket.socket) -> tuple[int, bytes]:
    """Status and body of one answer, on a connection that stays open: no more is read."""
    with HTTPResponse(connection) as response:
        response.begin()
        return response.status, response.read()
