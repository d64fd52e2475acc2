"""Tables from lines of text: plain lines, JSONL, JSON and streams."""

import codecs
import io
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal

import msgspec

from sentiment_service.errors import CannotContinue, EmptyText, InvalidRequest, UserError
from sentiment_service.files.tables.table import (
    START,
    Chunk,
    Place,
    Table,
    TableSource,
    TextOrError,
    check_names,
    column_index,
    json_text,
    split_into_chunks,
)
from sentiment_service.files.tables.text_files import (
    MAX_FIELD_CHARS,
    TextFile,
    TextTable,
    check_is_utf8,
    read_lines,
)

INT64_MAX = 2**63 - 1


class _TextColumn(Table):
    """A table with the single column ``text``; a row is its text."""

    def __init__(self) -> None:
        super().__init__(["text"], {"text": str})

    def records(self, rows: list[str]) -> list[dict[str, Any]]:
        return [{"text": text} for text in rows]


class LinesTable(_TextColumn, TextTable):
    """A file with a text in each line."""

    def __init__(self, path: TableSource) -> None:
        super().__init__()
        check_is_utf8(path)
        self.path = path
        self.ends = [chunk.end for chunk in self.chunks()]

    def read_rows(self, file: TextFile) -> Iterator[tuple[str, TextOrError, int]]:
        return ((line, line, len(line)) for line in read_lines(file, MAX_FIELD_CHARS))


class TextStream(_TextColumn):
    """Texts from arguments or standard input. ``chunks`` can be read only once."""

    def __init__(self, texts: Iterable[str], chunk_rows: int) -> None:
        super().__init__()
        self._texts = texts
        self._chunk_rows = chunk_rows

    def chunks(self, start: Place = START) -> Iterator[Chunk]:
        rows = ((text, text, len(text)) for text in self._texts)
        return split_into_chunks(rows, chunk_rows=self._chunk_rows)


class JsonlTable(TextTable):
    """A file with a JSON object in each line. Blank lines are skipped.

    The file is read twice: all columns must be known before the first row is written.
    """

    def __init__(self, path: TableSource, column: str) -> None:
        check_is_utf8(path)
        self.path = path
        self._column = column
        self._row = "item" if isinstance(path, JsonList) else "line"  # what errors call a row
        first, types, ends = "", dict[str, type](), list[Place]()
        for chunk in self.chunks():
            first = first or chunk.rows[0]
            ends.append(chunk.end)
            for record in self.records(chunk.rows):
                for name, value in record.items():
                    types[name] = common_type(types.get(name, NoneType), _type_of(value))
        no_object = first and not types and _json_object(first) is None
        if no_object or first.lstrip().startswith("["):
            raise UserError(
                f"{path} is not JSON lines, which have an object in each line; a JSON list must be "
                "in a file that ends in .json"
            )
        super().__init__(list(types), types, ends)
        if self.columns:
            check_names(self.columns, path)
            column_index(column, self.columns, path)

    def read_rows(self, file: TextFile) -> Iterator[tuple[str, TextOrError, int]]:
        for number, line in self._lines(file):
            yield line, self._text(number, line), len(line)

    def records(self, rows: list[str]) -> list[dict[str, Any]]:
        return [_json_object(line) or {} for line in rows]

    def json_objects(self, rows: list[str]) -> Iterator[str]:
        """The lines unchanged, so that numbers keep all digits; {} for an invalid line.

        NaN and Infinity, which Python reads and which are not JSON, become null.
        """
        for line in rows:
            valid = _json_object(line, _refuse) is not None
            yield line if valid else json_text(_json_object(line) or {})

    def _lines(self, file: TextFile) -> Iterator[tuple[int, str]]:
        for number, line in enumerate(read_lines(file, MAX_FIELD_CHARS), start=file.lines + 1):
            if line and not line.isspace():
                yield number, line

    def _text(self, number: int, line: str) -> TextOrError:
        record = _json_object(line)
        if record is None:
            return InvalidRequest(f"{self._row} {number} is not a JSON object")
        text = record.get(self._column)
        if isinstance(text, str):
            return text
        if text is None:
            return EmptyText(f"{self._row} {number} has no {self._column!r}")
        return InvalidRequest(f"{self._row} {number}: {self._column!r} is not text")


@dataclass(frozen=True)
class JsonList:
    """A file with a JSON list, as a line of JSONL for each item. See ``Readable``.

    A text becomes ``{"text": …}``. The file is read as a whole.
    """

    source: TableSource
    suffix = ".jsonl"

    def __str__(self) -> str:
        return str(self.source)

    def open(self, mode: Literal["rb"]) -> io.BytesIO:
        """See ``Readable``.

        Raises:
            CannotContinue: it is not a JSON list.
        """
        with self.source.open(mode) as file:
            content = file.read().removeprefix(codecs.BOM_UTF8)
        try:
            items = msgspec.json.decode(content, type=list[msgspec.Raw])
        except msgspec.DecodeError as error:
            raise CannotContinue(
                f"{self} is not a JSON list of texts or objects ({error}); a file with an object "
                "in each line must end in .jsonl"
            ) from None
        return io.BytesIO(b"".join(map(_json_line, items)))


def _json_line(item: msgspec.Raw) -> bytes:
    # A line break can only be between the parts of an item.
    line = bytes(item).replace(b"\n", b" ").replace(b"\r", b" ")
    return b"%b\n" % line if line.startswith(b"{") else b'{"text": %b}\n' % line


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _json_object(
    line: str, parse_constant: Callable[[str], object] | None = None
) -> dict[str, Any] | None:
    try:
        value = json.loads(line, parse_constant=parse_constant)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _type_of(value: Any) -> type:
    kind = type(value)
    if kind in (dict, list) or (kind is int and abs(value) > INT64_MAX):
        return object
    return kind


def common_type(first: type, second: type) -> type:
    """The type of a column with values of both types; ``object`` if it is mixed."""
    if NoneType in (first, second):
        return first if second is NoneType else second
    if {first, second} == {int, float}:
        return float
    return first if first is second else object
