"""Decompresses bodies in small pieces, because a few bytes can expand to gigabytes."""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import brotli

from sentiment_service import errors
from sentiment_service.engine.step_thread import Steps, finish
from sentiment_service.requests.exchange import Exchange

# Small, because a piece is split into lines at once, and lines of JSON can be a few bytes long.
PIECE_BYTES = 16_384
# Text compresses to a tenth of its size, and seldom to a fiftieth. A body that expands more than
# this, beyond the first UNSUSPICIOUS_BYTES, was made to do harm.
MAX_RATIO = 200
UNSUSPICIOUS_BYTES = 1_048_576
# What decompressing takes beside the content: zlib's, and brotli's beside its window.
ZLIB_BYTES, BROTLI_BYTES = 49_152, 3_145_728
# What is decompressed on the event loop, then in each step on the step thread, in 1 to 5 ms.
FIRST_BYTES, STEP_BYTES = 65_536, 1_048_576
# How many members gzip may have, and one more for each so many bytes: an empty one takes as long
# as any other, about a microsecond, and has 20 bytes.
FREE_MEMBERS, MEMBER_BYTES = 1_000, 512


@dataclass
class Decoder:
    """Decompresses a body while it arrives. ``name`` is its encoding in errors.

    ``pieces`` returns the content of up to ``PIECE_BYTES`` of data in pieces of that size at most,
    and ``complete`` whether the end of the body has been among them. ``window`` returns the bytes
    of memory that this takes until then, by the first byte of the body.
    """

    name: str
    pieces: Callable[[bytes], Iterator[bytes]]
    complete: Callable[[], bool]
    window: Callable[[int], int] = lambda first: ZLIB_BYTES
    _taken: int = 0
    _given: int = 0

    def decode(self, data: bytes) -> Iterator[bytes]:
        """The decompressed content of ``data``, in pieces of bounded size."""
        self._taken += len(data)
        # In slices, because zlib and brotli copy all input that is left for each piece they return.
        for start in range(0, len(data), PIECE_BYTES):
            for piece in self.pieces(data[start : start + PIECE_BYTES]):
                self._given += len(piece)
                if self._given > max(UNSUSPICIOUS_BYTES, MAX_RATIO * self._taken):
                    raise errors.PayloadTooLarge(
                        f"the decompressed body is more than {MAX_RATIO} times as long as the "
                        "compressed one"
                    )
                yield piece

    def end(self) -> None:
        if self._taken and not self.complete():
            raise errors.InvalidRequest(f"the body is incomplete: its {self.name} data has no end")


def decoder(content_encoding: str) -> Decoder:
    match content_encoding.strip().lower():
        case "" | "identity":
            return Decoder("identity", lambda data: iter([data]), lambda: True, lambda first: 0)
        case "gzip" | "x-gzip":
            return _zlib_decoder("gzip", zlib.MAX_WBITS | 16)
        case "deflate":
            return _zlib_decoder("deflate", zlib.MAX_WBITS)
        case "br":
            return _brotli_decoder()
    raise errors.UnsupportedMediaType("content-encoding must be gzip, br or deflate")


async def decompressed(exchange: Exchange, body: bytes, encoding: str) -> bytes:
    max_bytes = exchange.service.settings.max_body_bytes
    stream = decoder(encoding)
    content = stream.decode(body)
    pieces: list[bytes] = []
    size = 0
    wanted, piece = FIRST_BYTES, finish(_read_some(content, FIRST_BYTES))
    inflight, window = exchange.service.inflight, 0
    try:
        while piece:
            size += len(piece)
            if size > max_bytes:
                raise errors.PayloadTooLarge(
                    f"the decompressed body has more than {max_bytes} bytes"
                )
            exchange.hold(len(piece))
            pieces.append(piece)
            if len(piece) < wanted:  # this was the last one, nearly always the first as well
                break
            if not window:  # others come while this one waits for the thread
                if not inflight.take(stream.window(body[0])):
                    raise exchange.refuse_body()
                window = stream.window(body[0])
            wanted, steps = STEP_BYTES, _read_some(content, STEP_BYTES)
            piece = await exchange.service.step_thread.run(steps, deadline=exchange.deadline)
    finally:
        inflight.give(window)
    stream.end()
    return b"".join(pieces)


def _read_some(content: Iterator[bytes], size: int) -> Steps[bytes]:
    """The next ``size`` bytes or a few more; at the end, what is left."""
    pieces = []
    for piece in content:
        pieces.append(piece)
        size -= len(piece)
        if size <= 0:
            break
    yield
    return b"".join(pieces)


def _zlib_decoder(name: str, window_bits: int) -> Decoder:
    stream = zlib.decompressobj(window_bits)
    most = float(FREE_MEMBERS)  # members that may begin

    def pieces(data: bytes) -> Iterator[bytes]:
        nonlocal stream, most
        most += len(data) / MEMBER_BYTES
        try:
            while data:
                if stream.eof:
                    if name != "gzip":  # which alone has members
                        raise errors.InvalidRequest(
                            f"the body has more bytes after the end of its {name} data"
                        )
                    if (most := most - 1) < 1:
                        raise errors.InvalidRequest(
                            f"the body has more than {FREE_MEMBERS} gzip members and one for each "
                            f"{MEMBER_BYTES} bytes; compress it in one piece"
                        )
                    stream = zlib.decompressobj(window_bits)
                yield stream.decompress(data, PIECE_BYTES)
                data = stream.unconsumed_tail or stream.unused_data
        except zlib.error:
            raise errors.InvalidRequest(f"the body is not valid {name}") from None

    return Decoder(name, pieces, lambda: stream.eof)


def _brotli_decoder() -> Decoder:
    stream = brotli.Decompressor()

    def pieces(data: bytes) -> Iterator[bytes]:
        try:
            # The decompressor may still hold output after it has taken all input.
            while piece := stream.process(data, output_buffer_limit=PIECE_BYTES):
                yield piece
                data = b""
        except brotli.error:
            raise errors.InvalidRequest("the body is not valid brotli") from None

    return Decoder("brotli", pieces, lambda: bool(stream.is_finished()), _brotli_bytes)


def _brotli_bytes(first: int) -> int:
    """What a body takes that begins with this byte: RFC 7932, 9.1, has the size of the window."""
    larger, smaller = first >> 1 & 7, first >> 4 & 7
    if not first & 1:
        bits = 16
    elif larger:
        bits = 17 + larger
    else:
        bits = 8 + smaller if smaller else 17
    return (1 << bits) + BROTLI_BYTES
