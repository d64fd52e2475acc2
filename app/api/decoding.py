"""Compressed request bodies, decoded piece by piece: a few bytes may stand for gigabytes."""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator

import brotli

from app.errors import InvalidRequest, PayloadTooLarge, UnsupportedMediaType

# What is made of a piece at once, a line of JSON for every few bytes, should be little.
PIECE_BYTES = 16_384
# Text becomes a tenth of its size, and seldom a fiftieth. What is beyond was made to do harm.
MAX_RATIO = 200
UNSUSPICIOUS_BYTES = 1_048_576


class Decoder(ABC):
    """Takes a body as it arrives."""

    name: str

    def __init__(self) -> None:
        self._taken = self._given = 0

    def decode(self, data: bytes) -> Iterator[bytes]:
        """What ``data`` adds, in pieces of bounded size.

        Raises:
            InvalidRequest: it is not what the content-encoding says.
            PayloadTooLarge: it is a bomb.
        """
        self._taken += len(data)
        for piece in self._pieces(data):
            self._given += len(piece)
            if self._given > max(UNSUSPICIOUS_BYTES, MAX_RATIO * self._taken):
                raise PayloadTooLarge(
                    f"decompressed, the body is more than {MAX_RATIO} times as long"
                )
            yield piece

    def end(self) -> None:
        """The body is complete.

        Raises:
            InvalidRequest: its end is missing.
        """
        if self._taken and not self._is_complete():
            raise InvalidRequest(f"the end of the body's {self.name} is missing")

    @abstractmethod
    def _pieces(self, data: bytes) -> Iterator[bytes]: ...

    @abstractmethod
    def _is_complete(self) -> bool: ...


def decoder(content_encoding: str) -> Decoder:
    """What undoes this ``content-encoding``.

    Raises:
        UnsupportedMediaType: it is unknown.
    """
    match content_encoding.strip().lower():
        case "" | "identity":
            return _Identity()
        case "gzip" | "x-gzip":
            return _Zlib("gzip", zlib.MAX_WBITS | 16)
        case "deflate":
            return _Zlib("deflate", zlib.MAX_WBITS)
        case "br":
            return _Brotli()
    raise UnsupportedMediaType("accepted as content-encoding are gzip, br and deflate")


class _Identity(Decoder):
    name = "identity"

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), PIECE_BYTES):
            yield data[start : start + PIECE_BYTES]

    def _is_complete(self) -> bool:
        return True


class _Zlib(Decoder):
    def __init__(self, name: str, window_bits: int) -> None:
        super().__init__()
        self.name = name
        self._stream = zlib.decompressobj(window_bits)

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        try:
            while data:
                # One member: many tiny ones would each have the rest copied.
                if self._stream.eof:
                    raise InvalidRequest(f"the body goes on after the end of its {self.name}")
                yield self._stream.decompress(data, PIECE_BYTES)
                data = self._stream.unconsumed_tail or self._stream.unused_data
        except zlib.error:
            raise InvalidRequest(f"the body is not valid {self.name}") from None

    def _is_complete(self) -> bool:
        return self._stream.eof


class _Brotli(Decoder):
    name = "brotli"

    def __init__(self) -> None:
        super().__init__()
        self._stream = brotli.Decompressor()

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        try:
            # It may hold back output when all input is taken.
            while piece := self._stream.process(data, output_buffer_limit=PIECE_BYTES):
                yield piece
                data = b""
        except brotli.error:
            raise InvalidRequest("the body is not valid brotli") from None

    def _is_complete(self) -> bool:
        return bool(self._stream.is_finished())
