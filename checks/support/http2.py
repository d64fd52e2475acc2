"""A client that writes HTTP/2 frames itself, for what gRPC's own client refuses to send."""

import re
import socket
import struct
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple, Self

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_HEADERS, END_STREAM, ACK = 4, 1, 1  # flags
INITIAL_WINDOW_SIZE = 4  # a setting
CANCEL = 8  # a reason
INFER = b"/inference.GRPCInferenceService/ModelInfer"
LIVE = b"/inference.GRPCInferenceService/ServerLive"
WATCH = b"/grpc.health.v1.Health/Watch"
REFLECT = b"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
NOT_TEXT = b"/\xff\xfe"  # a path that is not UTF-8


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    content: bytes


class Connection:
    """An HTTP/2 connection that sends what it is told to, whatever the server says."""

    def __init__(
        self, port: int, *, polite: bool = True, window: int = 65_535, timeout_s: float = 30
    ) -> None:
        """``window`` is how many bytes of each answer the client takes."""
        self.socket = socket.create_connection(("127.0.0.1", port), timeout_s)
        self._polite = polite
        self._stream = -1
        self._first_room = 65_535
        # Bytes that the server takes: of all streams together (0), and of each.
        self._room = {0: 65_535}
        takes = struct.pack(">HI", INITIAL_WINDOW_SIZE, window)
        self.socket.sendall(PREFACE + _frame(SETTINGS, 0, 0, takes))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()

    def begin(self, path: bytes, metadata: Sequence[tuple[bytes, bytes]] = ()) -> int:
        """Send the headers of a call; the number of its stream."""
        self._stream += 2
        self.socket.sendall(_headers(self._stream, path, metadata))
        self._room[self._stream] = self._first_room
        return self._stream

    def ping(self) -> None:
        """Wait until the server has read what was sent before."""
        self.socket.sendall(_frame(PING, 0, 0, bytes(8)))
        while (frame := self.read()) and not (frame.kind == PING and frame.flags & ACK):
            pass

    def reset(self, stream: int) -> None:
        self.socket.sendall(_frame(RST_STREAM, 0, stream, CANCEL.to_bytes(4, "big")))

    def send(self, stream: int, content: bytes, *, end: bool = False) -> int:
        """Send bytes of a message as the server gives room for them.

        Returns how many were sent before the server ended the call or the connection.
        """
        sent = 0
        while sent < len(content):
            room = min(self._room[0], self._room[stream], 16_384)
            if room <= 0:
                frame = self.read()
                if frame is None or self.ended(frame, stream):
                    break
                continue
            piece = content[sent : sent + room]
            sent += len(piece)
            last = END_STREAM if end and sent == len(content) else 0
            self.socket.sendall(_frame(DATA, last, stream, piece))
            self._room[0] -= len(piece)
            self._room[stream] -= len(piece)
        return sent

    def read(self) -> Frame | None:
        """The next frame; None when the server has closed the connection."""
        head = self._exactly(9)
        content = self._exactly(int.from_bytes(head[:3], "big")) if head else None
        if head is None or content is None:
            return None
        frame = Frame(head[3], head[4], int.from_bytes(head[5:], "big"), content)
        if frame.kind == WINDOW_UPDATE:
            self._room[frame.stream] += int.from_bytes(content, "big")
        elif frame.kind == SETTINGS and not frame.flags & ACK:
            for at in range(0, len(content), 6):
                setting, value = struct.unpack_from(">HI", content, at)
                if setting == INITIAL_WINDOW_SIZE:
                    self._first_room = value
                    for stream in self._room.keys() - {0}:
                        self._room[stream] += value - 65_535
            self.socket.sendall(_frame(SETTINGS, ACK, 0, b""))
        elif frame.kind == PING and not frame.flags & ACK and self._polite:
            self.socket.sendall(_frame(PING, ACK, 0, content))
        return frame

    @staticmethod
    def ended(frame: Frame, stream: int) -> bool:
        """Whether this frame ends the call of that stream."""
        trailers = frame.kind == HEADERS and frame.flags & END_STREAM
        return frame.stream == stream and bool(trailers or frame.kind == RST_STREAM)

    def _exactly(self, size: int) -> bytes | None:
        content = b""
        while len(content) < size:
            try:
                piece = self.socket.recv(size - len(content))
            except ConnectionResetError:
                piece = b""
            if not piece:
                return None
            content += piece
        return content


def hold_back(
    connection: Connection, size: int, metadata: Sequence[tuple[bytes, bytes]] = ()
) -> int:
    """Begin a call whose message of ``size`` bytes lacks its last one; the number of its stream.

    gRPC answers RESOURCE_EXHAUSTED (8) when others need the room, or DEADLINE_EXCEEDED (4).
    """
    stream = connection.begin(INFER, metadata)
    connection.send(stream, message(bytes(size))[:-1])
    return stream


def status_of(connection: Connection, *streams: int) -> int | None:
    """gRPC's status of the first of these calls that ends; None if it ends without one."""
    while frame := connection.read():
        if any(connection.ended(frame, stream) for stream in streams):
            # Our server writes its trailers as plain text.
            found = re.search(rb"grpc-status[\x01\x02](\d+)", frame.content)
            return int(found[1]) if found else None
    return None


def reset_calls(streams: Iterable[int]) -> bytes:
    """The frames of calls that are given up at once; a client's streams have odd numbers."""
    reason = CANCEL.to_bytes(4, "big")
    frames = ((_headers(one, INFER), _frame(RST_STREAM, 0, one, reason)) for one in streams)
    return b"".join(chain.from_iterable(frames))


def message(content: bytes) -> bytes:
    """A gRPC message: not compressed, its length, its bytes."""
    return struct.pack(">BI", 0, len(content)) + content


def _headers(stream: int, path: bytes, metadata: Sequence[tuple[bytes, bytes]] = ()) -> bytes:
    fields = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"x"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        *metadata,
    ]
    block = b"".join(b"\0" + _text(name) + _text(value) for name, value in fields)
    return _frame(HEADERS, END_HEADERS, stream, block)


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    length = len(content).to_bytes(3, "big")
    return length + bytes([kind, flags]) + stream.to_bytes(4, "big") + content


def _text(value: bytes) -> bytes:
    """A string of a header, not compressed: its length with a prefix of 7 bits, and its bytes."""
    if len(value) < 127:
        return bytes([len(value)]) + value
    rest, length = len(value) - 127, b"\x7f"
    while rest >= 128:
        length += bytes([rest % 128 + 128])
        rest //= 128
    return length + bytes([rest]) + value
