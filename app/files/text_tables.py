"""Tables in text files: lines, CSV and JSONL. ``parquet.py`` has another kind."""

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from types import NoneType
from typing import Any, TextIO

from app.errors import EmptyText, InvalidRequest, UserError
from app.files.tables import Chunk, Table, Text, check_is_file, in_chunks, position

# In a line or a cell. More is a file of another kind, or a quote that is never closed.
MOST_CHARS = 16_777_216
INT64_MAX = 2**63 - 1


class Lines(Table):
    """A text in each line, or in each of some strings."""

    def __init__(self, path: Path) -> None:
        super().__init__(["text"], {"text": str})
        check_is_file(path)
        self._path = path

    def chunks(self, skip: int) -> Iterator[Chunk]:
        with _opened(self._path, "\n") as file:
            lines = islice(read_lines(file, MOST_CHARS), skip, None)
            yield from in_chunks(((line, line, len(line)) for line in lines), _fraction(file))

    def records(self, rows: list[str]) -> list[dict[str, Any]]:
        return [{"text": line} for line in rows]


class Given(Table):
    """Texts from elsewhere: arguments, or standard input. They can be read once."""

    def __init__(self, texts: Iterable[str], chunk_rows: int) -> None:
        super().__init__(["text"], {"text": str})
        self._texts = texts
        self._chunk_rows = chunk_rows

    def chunks(self, skip: int) -> Iterator[Chunk]:
        rows = ((text, text, len(text)) for text in islice(self._texts, skip, None))
        return in_chunks(rows, lambda: None, self._chunk_rows)

    def records(self, rows: list[str]) -> list[dict[str, Any]]:
        return [{"text": text} for text in rows]


class Csv(Table):
    """Comma-separated values in UTF-8, with a header. Blank lines are no rows."""

    def __init__(self, path: Path, column: str) -> None:
        check_is_file(path)
        self._path = path
        csv.field_size_limit(MOST_CHARS)
        with _opened(path, "") as file:
            header = next(self._cells(csv.reader(file)), None)
        if header is None:
            raise UserError(f"{path} is empty; a CSV file begins with the names of its columns")
        super().__init__(header, dict.fromkeys(header, str))
        self._at = position(column, header, path)

    def chunks(self, skip: int) -> Iterator[Chunk]:
        with _opened(self._path, "") as file:
            reader = csv.reader(file)
            rows = islice(self._cells(reader), 1 + skip, None)
            found = ((*self._row(cells, reader.line_num), sum(map(len, cells))) for cells in rows)
            yield from in_chunks(found, _fraction(file))

    def records(self, rows: list[list[str]]) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, cells, strict=True)) for cells in rows]

    def cells(self, rows: list[list[str]]) -> list[list[Any]]:
        return rows

    def _cells(self, reader: Any) -> Iterator[list[str]]:
        try:
            yield from filter(None, reader)
        except csv.Error as error:
            raise UserError(
                f"{self._path}, line {reader.line_num}: {error}; is a quote never closed?"
            ) from None

    def _row(self, cells: list[str], line: int) -> tuple[list[str], Text]:
        width = len(self.columns)
        if len(cells) == width:
            return cells, cells[self._at]
        fault = InvalidRequest(f"line {line}: {len(cells)} cells, but {width} columns")
        return [*cells, *[""] * width][:width], fault


class Jsonl(Table):
    """A JSON object in each line. Blank lines are no rows.

    The file is read once before: which columns there are must be known for the first row.
    """

    def __init__(self, path: Path, column: str) -> None:
        check_is_file(path)
        self._path = path
        self._column = column
        types: dict[str, type] = {}
        with _opened(path, "\n") as file:
            for _, line in self._lines(file):
                for name, value in (_object(line) or {}).items():
                    types[name] = _type_of_both(types.get(name, NoneType), value)
        super().__init__(list(types), types)
        if self.columns:
            position(column, self.columns, path)

    def chunks(self, skip: int) -> Iterator[Chunk]:
        with _opened(self._path, "\n") as file:
            lines = islice(self._lines(file), skip, None)
            rows = ((line, self._text(number, line), len(line)) for number, line in lines)
            yield from in_chunks(rows, _fraction(file))

    def records(self, rows: list[str]) -> list[dict[str, Any]]:
        return [_object(line) or {} for line in rows]

    def objects(self, rows: list[str]) -> Iterator[str]:
        """As they came, to the last digit; none for what is no object."""
        return ("{}" if _object(line) is None else line for line in rows)

    def _lines(self, file: TextIO) -> Iterator[tuple[int, str]]:
        for number, line in enumerate(read_lines(file, MOST_CHARS), start=1):
            if line and not line.isspace():
                yield number, line

    def _text(self, number: int, line: str) -> Text:
        found = _object(line)
        if found is None:
            return InvalidRequest(f"line {number} is not a JSON object")
        text = found.get(self._column)
        if isinstance(text, str):
            return text
        if text is None:
            return EmptyText(f"line {number} has no {self._column!r}")
        return InvalidRequest(f"line {number}: {self._column!r} is not text")


def read_lines(source: TextIO, max_chars: int) -> Iterator[str]:
    """The lines; of one that is longer than ``max_chars`` only enough to see that it is."""
    while line := source.readline(max_chars + 2):
        rest = line
        while rest and not rest.endswith("\n"):
            rest = source.readline(max_chars)
        yield line.removesuffix("\n").removesuffix("\r")


def _opened(path: Path, newline: str) -> TextIO:
    """Bytes that are not UTF-8 become lone surrogates, which fail their text alone."""
    return path.open(encoding="utf-8-sig", errors="surrogateescape", newline=newline)


def _fraction(file: TextIO) -> Callable[[], float]:
    size = os.fstat(file.fileno()).st_size
    return lambda: file.buffer.tell() / size


def _object(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _type_of_both(known: type, value: Any) -> type:
    """What a column's values are, with another one: ``object`` where they differ."""
    kind = type(value)
    if kind in (dict, list) or (kind is int and abs(value) > INT64_MAX):
        kind = object
    if NoneType in (known, kind):
        return known if kind is NoneType else kind
    if {known, kind} == {int, float}:
        return float
    return known if known is kind else object
