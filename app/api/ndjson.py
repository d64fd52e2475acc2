"""Newline-delimited JSON as it arrives: lines of bounded length from pieces of any size."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from app.api.body import parse
from app.engine.results import Outcome, item
from app.errors import InvalidRequest, Overloaded, PayloadTooLarge, ServiceError

# Lines that are classified together, at most.
GROUP_LINES = 128


@dataclass(frozen=True, slots=True)
class Line:
    """A line's text, or what is wrong with it; ``id`` is any JSON, as its sender wrote it."""

    id: Any
    text: str | ServiceError
    reserved: int = 0  # bytes, until it is answered


class LineReader:
    """Cuts pieces into lines. Blank ones are left out, but counted.

    A line that goes on after its piece is kept until its end, if ``reserve`` finds room for its
    bytes; without room it is ``Overloaded``, and its bytes are dropped. ``release`` gets the bytes
    back when the line is answered.
    """

    def __init__(
        self,
        max_bytes: int,
        *,
        reserve: Callable[[int], bool] = lambda size: True,
        release: Callable[[int], object] = lambda size: None,
    ) -> None:
        self._max_bytes = max_bytes
        self._reserve = reserve
        self._release = release
        self._group_lines = 1  # of the next group, at most
        self._number = 1  # of the line that has no end yet
        self._kept = bytearray()  # what there is of it
        self._size = 0  # in bytes, also of what was dropped
        self._error: ServiceError | None = None  # why it was
        self._reserved = 0  # for this line, and for those that have no answer yet

    def feed(self, piece: bytes, group_bytes: Callable[[], int]) -> Iterator[list[Line]]:
        """The lines that end in this piece, in groups.

        A group ends with the line that makes it as long as ``group_bytes`` says when it begins.
        The first is a single line, which is answered soon, and each may have twice the lines of
        the one before: of many streams that begin at once, none is far ahead.
        """
        *ends, rest = piece.split(b"\n")
        first = 0
        while first < len(ends):
            last = min(len(ends), first + self._group_lines)
            self._group_lines = min(2 * self._group_lines, GROUP_LINES)
            most = group_bytes()
            size, end = self._size, first
            while end < last and (size < most or end == first):
                size += len(ends[end])
                end += 1
            yield [line for part in ends[first:end] for line in self._line(part)]
            first = end
        self._grow(len(rest))
        self._keep(rest)

    def end(self) -> list[Line]:
        """The last line, if the stream did not end with the line's end."""
        return self._line(b"")

    def answered(self, lines: Iterable[Line]) -> None:
        """Release what was reserved for these lines."""
        self._give_back(sum(line.reserved for line in lines))

    def close(self) -> None:
        """Release everything: nothing will be answered any more."""
        self._give_back(self._reserved)

    def _line(self, end: bytes) -> list[Line]:
        self._grow(len(end))
        number, error = self._number, self._error
        content, reserved = (bytes(self._kept) + end).strip(), len(self._kept)
        self._number, self._kept, self._size, self._error = number + 1, bytearray(), 0, None
        if error is not None:
            return [Line(None, error)]
        if content:
            return [Line(*_parsed(content, number), reserved)]
        self._give_back(reserved)
        return []

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > self._max_bytes:
            self._drop(
                PayloadTooLarge(
                    f"line {self._number} has more than the {self._max_bytes} bytes accepted"
                )
            )

    def _keep(self, part: bytes) -> None:
        """Keep a part of a line that goes on, unless the line is dropped."""
        if self._error is not None:
            return
        if self._reserve(len(part)):
            self._reserved += len(part)
            self._kept += part
        else:
            self._drop(
                Overloaded(
                    f"line {self._number} found no room: too many bytes are in flight",
                    reason="inflight_bytes",
                    retry_after_s=1.0,
                )
            )

    def _drop(self, error: ServiceError) -> None:
        self._give_back(len(self._kept))
        self._kept, self._error = bytearray(), error

    def _give_back(self, size: int) -> None:
        self._reserved -= size
        self._release(size)


def answer_line(line: Line, outcome: Outcome) -> bytes:
    """The answer to a line, with its id."""
    # Not all at once: an id may hold what this serializer refuses, half of a surrogate pair.
    return b'{"id":%b,%b\n' % (json.dumps(line.id).encode(), to_json(item(outcome))[1:])


def _parsed(content: bytes, number: int) -> tuple[Any, str | ServiceError]:
    """A line's id, and its text or what is wrong with it."""
    try:
        value = parse(content, f"line {number}")
    except InvalidRequest as error:
        # A new one: with what was raised, its frames and the line would be kept.
        return None, InvalidRequest(error.detail)
    if not isinstance(value, dict):
        return None, InvalidRequest(f'line {number} must be an object: {{"id", "text"}}')
    text = value.get("text")
    if not isinstance(text, str):
        text = InvalidRequest(f"line {number}: text must be a string")
    return value.get("id"), text
