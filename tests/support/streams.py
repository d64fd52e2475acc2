"""Requests to POST /classify/stream that are written while their answers are read."""

import socket
from typing import BinaryIO

NDJSON = {"content-type": "application/x-ndjson"}
STREAM_HEAD = (
    b"POST /classify/stream HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-ndjson\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def chunk(data: bytes) -> bytes:
    """A part of the body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def ask_line(connection: socket.socket, received: BinaryIO, number: int) -> None:
    """Send a line and wait until it is answered."""
    connection.sendall(chunk(b'{"id":%d,"text":"love"}\n' % number))
    while not (line := received.readline()).startswith(b'{"id":%d,"label":"positive"' % number):
        assert line
