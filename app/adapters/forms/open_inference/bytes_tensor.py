"""BYTES tensors of the Open Inference Protocol's binary extension: each text after its length."""

import struct
from collections.abc import Iterable

from app.errors import InvalidRequest, TooManyTexts

_LENGTH = struct.Struct("<I")


def pack(texts: Iterable[str]) -> bytes:
    """The tensor's bytes: for each text its length in four bytes, little-endian, then its UTF-8."""
    encoded = [text.encode() for text in texts]
    return b"".join(_LENGTH.pack(len(element)) + element for element in encoded)


def unpack(data: bytes, max_texts: int) -> list[str]:
    """The texts of a tensor.

    Raises:
        TooManyTexts: there are more than ``max_texts``. The rest is not looked at.
        InvalidRequest: a length points beyond the end of the data, or an element is not UTF-8.
    """
    texts: list[str] = []
    start = 0
    while start < len(data):
        if len(texts) == max_texts:
            raise TooManyTexts(f"there are more than the {max_texts} texts that are accepted")
        begin = start + _LENGTH.size
        if begin > len(data):
            raise InvalidRequest("the binary data ends in the middle of an element's length field")
        (length,) = _LENGTH.unpack_from(data, start)
        start = begin + length
        if start > len(data):
            raise InvalidRequest(
                f"element {len(texts)} of the binary data, counted from 0, should have {length} "
                f"bytes, but only {len(data) - begin} are left"
            )
        try:
            texts.append(data[begin:start].decode())
        except UnicodeDecodeError:
            raise InvalidRequest(
                f"element {len(texts)} of the binary data, counted from 0, is not UTF-8"
            ) from None
    return texts
