"""Newline-delimited JSON as it arrives: lines of bounded length from pieces of any size."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from app.api.body import parse
from app.api.predictions import document
from app.api.schemas import Prediction
from app.errors import InvalidRequest, PayloadTooLarge, ServiceError

# Lines that are classified together.
GROUP_LINES = 128


@dataclass(frozen=True, slots=True)
class Line:
    """A line's text, or what is wrong with it; ``id`` is any JSON, as its sender wrote it."""

    id: Any
    text: str | ServiceError


class LineReader:
    """Cuts pieces into lines. Blank ones are left out, but counted."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._number = 0
        self._parts: list[bytes] = []  # of the line that has no end yet
        self._size = 0

    def feed(self, piece: bytes) -> Iterator[list[Line]]:
        """The lines that end in this piece, a few at a time: it may have as many as bytes."""
        *ends, rest = piece.split(b"\n")
        for first in range(0, len(ends), GROUP_LINES):
            yield [line for end in ends[first : first + GROUP_LINES] for line in self._line(end)]
        self._hold(rest)

    def end(self) -> list[Line]:
        """The last line, if the stream did not end with the line's end."""
        return self._line(b"")

    def _line(self, end: bytes) -> list[Line]:
        self._hold(end)
        self._number += 1
        content, size = b"".join(self._parts).strip(), self._size
        self._parts, self._size = [], 0
        if size > self._max_bytes:
            error = PayloadTooLarge(
                f"line {self._number} has more than the {self._max_bytes} bytes accepted"
            )
            return [Line(None, error)]
        return [_parsed(content, self._number)] if content else []

    def _hold(self, part: bytes) -> None:
        self._size += len(part)
        if self._size <= self._max_bytes:
            self._parts.append(part)


def answer_line(line: Line, outcome: Prediction | ServiceError) -> bytes:
    """The answer to a line, with its id."""
    # Not all at once: an id may hold what this serializer refuses, half of a surrogate pair.
    return b'{"id":%b,%b\n' % (json.dumps(line.id).encode(), to_json(document(outcome))[1:])


def _parsed(content: bytes, number: int) -> Line:
    try:
        value = parse(content, f"line {number}")
    except InvalidRequest as error:
        # A new one: with what was raised, its frames and the line would be kept.
        return Line(None, InvalidRequest(error.detail))
    if not isinstance(value, dict):
        return Line(None, InvalidRequest(f'line {number} must be an object: {{"id", "text"}}'))
    text = value.get("text")
    if not isinstance(text, str):
        text = InvalidRequest(f"line {number}: text must be a string")
    return Line(value.get("id"), text)
