"""Compressed request bodies, decoded piece by piece: a few bytes may stand for gigabytes."""

import zlib
from collections.abc import Iterator
from typing import Protocol

import brotli

from app.errors import InvalidRequest, UnsupportedMediaType

PIECE_BYTES = 65_536


class Decoder(Protocol):
    """Takes a body as it arrives."""

    def decode(self, data: bytes) -> Iterator[bytes]:
        """What ``data`` adds, in pieces of bounded size.

        Raises:
            InvalidRequest: it is not what the content-encoding says.
        """
        ...

    def end(self) -> None:
        """The body is complete.

        Raises:
            InvalidRequest: its end is missing.
        """
        ...


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


class _Identity:
    def decode(self, data: bytes) -> Iterator[bytes]:
        yield data

    def end(self) -> None:
        pass


class _Zlib:
    def __init__(self, name: str, window_bits: int) -> None:
        self._name = name
        self._stream = zlib.decompressobj(window_bits)
        self._begun = False

    def decode(self, data: bytes) -> Iterator[bytes]:
        try:
            while data:
                if self._stream.eof:
                    raise InvalidRequest(f"the body goes on after the end of its {self._name}")
                self._begun = True
                yield self._stream.decompress(data, PIECE_BYTES)
                data = self._stream.unconsumed_tail or self._stream.unused_data
        except zlib.error:
            raise InvalidRequest(f"the body is not valid {self._name}") from None

    def end(self) -> None:
        if self._begun and not self._stream.eof:
            raise InvalidRequest(f"the end of the body's {self._name} is missing")


class _Brotli:
    def __init__(self) -> None:
        self._stream = brotli.Decompressor()
        self._begun = False

    def decode(self, data: bytes) -> Iterator[bytes]:
        try:
            self._begun = self._begun or bool(data)
            # It may hold back output when all input is taken.
            while piece := self._stream.process(data, output_buffer_limit=PIECE_BYTES):
                yield piece
                data = b""
        except brotli.error:
            raise InvalidRequest("the body is not valid brotli") from None

    def end(self) -> None:
        if self._begun and not self._stream.is_finished():
            raise InvalidRequest("the end of the body's brotli is missing")
