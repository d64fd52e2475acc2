"""Reads newline-delimited JSON while it arrives: pieces of any size, lines of bounded length."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from sentiment_service.engine.text.text_tokenizer import Text
from sentiment_service.errors import InvalidRequest, Overloaded, PayloadTooLarge, ServiceError
from sentiment_service.requests import validation
from sentiment_service.requests.limits import InflightBytes
from sentiment_service.results import Outcome, item

# The most lines that are classified together.
GROUP_LINES = 128
# The most bytes of an id, as JSON: answers that wait for a client have all ids of a group.
MOST_ID = 1_024

# Of POST /classify, the options that a stream takes, and why it takes no other field.
IN_QUERY = ("model", "overflow", "language", "threshold")
NOT_TAKEN = {
    name: f"a stream does not take {name}; the options in its query are {', '.join(IN_QUERY)}"
    for name in validation.ClassifyRequest.model_fields
    if name not in IN_QUERY
}
# Rows often have a column with the language of their text; it is not taken for the option.
NOT_IN_LINES = {
    "split": NOT_TAKEN["split"],
    **{
        name: f"put {name} in the query: it holds for all lines"
        for name in IN_QUERY
        if name != "language"
    },
}

NO_ID = b"null"


@dataclass(frozen=True, slots=True)
class Line:
    """The text or pair of a line, or its error. ``id`` is any short JSON value of the client."""

    id: bytes
    text: Text | ServiceError
    reserved: int = 0  # bytes, which are released when the line is answered


class LineReader:
    """Cuts pieces into lines. Blank lines are left out, but count in the line numbers.

    A line may continue in the next piece. Its bytes are stored if there is ``room``, which is given
    back when the line is answered. Otherwise its error is ``Overloaded``.
    """

    def __init__(self, max_bytes: int, room: InflightBytes) -> None:
        self._max_bytes = max_bytes
        self._room = room
        self._group_lines = 1  # the most lines of the next group
        self._number = 1  # number of the line that has not ended yet
        self._kept = bytearray()  # the bytes of that line so far
        self._size = 0  # bytes of that line so far, including dropped ones
        self._error: ServiceError | None = None  # why the bytes were dropped
        self._reserved = 0  # bytes of that line, and of lines not answered yet

    def feed(self, piece: bytes, group_bytes: Callable[[], int]) -> Iterator[list[Line]]:
        """The lines that end in this piece, in groups.

        A group ends with the line that makes it ``group_bytes`` long. The first one is a single
        line, and each may have twice as many as the one before, so that no stream gets far ahead
        when many begin at once.
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
        """The last line, if the stream ended without a newline."""
        return self._line(b"")

    def reserve(self, size: int) -> None:
        """Reserve bytes for as long as the stream lasts."""
        if not self._room.take(size):
            raise Overloaded(
                f"request bodies in flight leave no room for the {size} bytes that decompressing "
                "this one takes",
                reason="inflight_bytes",
            )
        self._reserved += size

    def answered(self, lines: Iterable[Line]) -> None:
        """Release the bytes that are reserved for these lines."""
        self._give_back(sum(line.reserved for line in lines))

    def close(self) -> None:
        """Release all reserved bytes: no more lines will be answered."""
        self._give_back(self._reserved)

    def _line(self, end: bytes) -> list[Line]:
        self._grow(len(end))
        number, error = self._number, self._error
        content, reserved = (bytes(self._kept) + end).strip(), len(self._kept)
        self._number, self._kept, self._size, self._error = number + 1, bytearray(), 0, None
        if error is not None:
            return [Line(NO_ID, error)]
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
        """Keep the first part of a line that has not ended, unless the line was dropped."""
        if self._error is not None:
            return
        if self._room.take(len(part)):
            self._reserved += len(part)
            self._kept += part
        else:
            self._drop(
                Overloaded(
                    f"line {self._number} was dropped: request bodies take too much memory; "
                    "send it again",
                    reason="inflight_bytes",
                )
            )

    def _drop(self, error: ServiceError) -> None:
        self._give_back(len(self._kept))
        self._kept, self._error = bytearray(), error

    def _give_back(self, size: int) -> None:
        self._reserved -= size
        self._room.give(size)


def answer_line(line_id: bytes, outcome: Outcome) -> bytes:
    return b'{"id":%b,%b\n' % (line_id, to_json(item(outcome))[1:])


def _parsed(content: bytes, number: int) -> tuple[bytes, Text | ServiceError]:
    try:
        value = validation.parse(content, f"line {number}")
    except InvalidRequest as error:
        return NO_ID, error.again()  # the raised one has the stack's frames, and so the line
    if not isinstance(value, dict):
        return NO_ID, InvalidRequest(f'line {number} must be an object: {{"id", "text"}}')
    # Not by to_json: the id may hold half of a surrogate pair, which that refuses.
    line_id = json.dumps(value.get("id")).encode()
    if len(line_id) > MOST_ID:
        return NO_ID, InvalidRequest(f"line {number}: the id has more than {MOST_ID} bytes as JSON")
    return line_id, _text(value, number)


def _text(value: dict[str, Any], number: int) -> Text | InvalidRequest:
    for option, reason in NOT_IN_LINES.items():
        if value.get(option) is not None:
            return InvalidRequest(f"line {number}: {reason}")
    if (text := validation.text_or_pair(value.get("text"), value.get("text_pair"))) is not None:
        return text
    field = "text_pair" if isinstance(value.get("text"), str) else "text"
    return InvalidRequest(f"line {number}: {field} must be a string")
