"""Tables from lines of text: plain lines, JSONL and streams."""

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from types import NoneType
from typing import Any, TextIO

from app.errors import EmptyText, InvalidRequest
from app.files.tables import Chunk, Table, Text, column_index, split_into_chunks
from app.files.text_files import (
    MAX_FIELD_CHARS,
    check_is_utf8,
    fraction_read,
    open_text,
    read_lines,
)

INT64_MAX = 2**63 - 1


class _TextColumn(Table):
    """A table with the single column ``text``; a row is its text."""

    def __init__(self) -> None:
        super().__init__(["text"], {"text": str})

    def records(self, rows: list[str]) -> list[dict[str, Any]]:
        return [{"text": text} for text in rows]


class Lines(_TextColumn):
    """A file with a text in each line."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        check_is_utf8(path)
        self._path = path

    def chunks(self, skip: int) -> Iterator[Chunk]:
        with open_text(self._path, "\n") as file:
            lines = islice(read_lines(file, MAX_FIELD_CHARS), skip, None)
            rows = ((line, line, len(line)) for line in lines)
            yield from split_into_chunks(rows, fraction_read(file))


class TextStream(_TextColumn):
    """Texts from arguments or standard input. ``chunks`` can be read only once."""

    def __init__(self, texts: Iterable[str], chunk_rows: int) -> None:
        super().__init__()
        self._texts = texts
        self._chunk_rows = chunk_rows

    def chunks(self, skip: int) -> Iterator[Chunk]:
        rows = ((text, text, len(text)) for text in islice(self._texts, skip, None))
        return split_into_chunks(rows, lambda: None, self._chunk_rows)


class Jsonl(Table):
    """A file with a JSON object in each line. Blank lines are skipped.

    The file is read twice: all columns must be known before the first row is written.
    """

    def __init__(self, path: Path, column: str) -> None:
        check_is_utf8(path)
        self._path = path
        self._column = column
        types: dict[str, type] = {}
        with open_text(path, "\n") as file:
            for _, line in self._lines(file):
                for name, value in (_json_object(line) or {}).items():
                    types[name] = _common_type(types.get(name, NoneType), value)
        super().__init__(list(types), types)
        if self.columns:
            column_index(column, self.columns, path)

    def chunks(self, skip: int) -> Iterator[Chunk]:
        with open_text(self._path, "\n") as file:
            lines = islice(self._lines(file), skip, None)
            rows = ((line, self._text(number, line), len(line)) for number, line in lines)
            yield from split_into_chunks(rows, fraction_read(file))

    def records(self, rows: list[str]) -> list[dict[str, Any]]:
        return [_json_object(line) or {} for line in rows]

    def json_objects(self, rows: list[str]) -> Iterator[str]:
        """The lines unchanged, so that numbers keep all digits; {} for an invalid line."""
        return ("{}" if _json_object(line) is None else line for line in rows)

    def _lines(self, file: TextIO) -> Iterator[tuple[int, str]]:
        for number, line in enumerate(read_lines(file, MAX_FIELD_CHARS), start=1):
            if line and not line.isspace():
                yield number, line

    def _text(self, number: int, line: str) -> Text:
        record = _json_object(line)
        if record is None:
            return InvalidRequest(f"line {number} is not a JSON object")
        text = record.get(self._column)
        if isinstance(text, str):
            return text
        if text is None:
            return EmptyText(f"line {number} has no {self._column!r}")
        return InvalidRequest(f"line {number}: {self._column!r} is not text")


def _json_object(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _common_type(known: type, value: Any) -> type:
    """The type of a column with values of type ``known`` and this value; ``object`` if mixed."""
    kind = type(value)
    if kind in (dict, list) or (kind is int and abs(value) > INT64_MAX):
        kind = object
    if NoneType in (known, kind):
        return known if kind is NoneType else kind
    if {known, kind} == {int, float}:
        return float
    return known if known is kind else object
