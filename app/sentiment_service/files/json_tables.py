"""Tables of JSON objects: JSON lines, lists in JSON, and workbooks, whose rows become objects."""

import json
import re
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from decimal import Decimal
from itertools import chain, islice
from pathlib import Path
from types import NoneType
from typing import Any
from zipfile import ZipFile

import msgspec

from sentiment_service.errors import (
    CannotContinue,
    EmptyText,
    InvalidRequest,
    UserError,
    first_line,
)
from sentiment_service.files.results import free_names
from sentiment_service.files.table import (
    Chunk,
    Table,
    TextOrError,
    json_text,
    split_into_chunks,
    text_index,
)
from sentiment_service.files.text_files import PLAIN, FileOptions, TextFile, check_expansion

INT64_MAX = 2**63 - 1
FLOAT_INT_MAX = 2**53  # up to here, each whole number has a float
SHOWN_CHARS = 200  # of a line that cannot be read
INT_DIGITS = 4_000  # Python refuses to read longer whole numbers
# Each escape in JSON; with a group, unless it is half of a pair of surrogates without the other.
ESCAPE = re.compile(
    rb"(\\u[Dd][89ABab][0-9A-Fa-f]{2}\\u[Dd][C-Fc-f][0-9A-Fa-f]{2})"
    rb"|\\u[Dd][89A-Fa-f][0-9A-Fa-f]{2}|(\\.)"
)
# A string, or in a group a constant that JSON lacks.
CONSTANT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|(-?Infinity|NaN)')
NOT_A_LIST = (
    "is not a JSON list of texts or objects ({}); a file with an object in each line must end in "
    ".jsonl"
)
# A line, and the object in it; None if there is none.
JsonRow = tuple[str, dict[str, Any] | None]


class JsonlTable(Table):
    """A file with a JSON object in each line. Blank lines are skipped.

    The columns and their types grow while the file is read.
    """

    grows = True
    kind = "line"  # what errors call a row
    not_this = (
        "is not JSON lines, which have an object in each line; a JSON list must be in a file that "
        "ends in .json"
    )

    def __init__(self, path: Path, column: str, file_options: FileOptions = PLAIN) -> None:
        self._path, self._column, self._options = path, column, file_options
        self._names: list[str] = []
        self._types: dict[str, type] = {}
        self._exact: set[str] = set()  # columns with a whole number that may have no float
        super().__init__(self._names, self._types)
        self._numbered = self.open(path)
        self._chunks = split_into_chunks(self._rows())
        first = next(self._chunks, None)
        if first is None:
            return
        self._chunks = chain([first], self._chunks)
        line, record = first.rows[0]
        if line.lstrip().startswith("[") or (record is None and not self._names):
            raise UserError(f"{path} {self.not_this}")
        if self._names:
            text_index(column, self._names, path)

    def open(self, path: Path) -> Iterator[tuple[int, str]]:
        """Each row's number and its JSON."""
        self.file = TextFile(path, self._options.encoding)
        return enumerate(self.file.lines(), start=1)

    def chunks(self) -> Iterator[Chunk]:
        return self._chunks

    def records(self, rows: list[JsonRow]) -> list[dict[str, Any]]:
        return [record or {} for _, record in rows]

    def json_objects(self, rows: list[JsonRow]) -> Iterator[str]:
        """The lines unchanged, so that numbers keep all digits; {} for an invalid line.

        NaN and Infinity, which Python reads and which are not JSON, become null.
        """
        for line, record in rows:
            constants = "NaN" in line or "Infinity" in line
            if record is None or (constants and parsed(line, _refuse) is None):
                yield json_text(record or {})
            else:
                yield line

    def _rows(self) -> Iterator[tuple[JsonRow, TextOrError, int]]:
        for number, line in self._numbered:
            if line and not line.isspace():
                record = parsed(line)
                for name, value in (record or {}).items():
                    if name not in self._types:
                        self._names.append(name)
                    kind = _common(self._types.get(name, NoneType), _type_of(value))
                    if type(value) is int and abs(value) > FLOAT_INT_MAX:
                        self._exact.add(name)
                    self._types[name] = object if kind is float and name in self._exact else kind
                text: TextOrError
                if record is None:  # then the error is all that is left of the line
                    begin = repr(line[:SHOWN_CHARS])
                    text = InvalidRequest(f"{self.kind} {number} is not a JSON object: {begin}")
                else:
                    text = self._text(number, record)
                yield (line, record), text, len(line)

    def _text(self, number: int, record: dict[str, Any]) -> TextOrError:
        text = record.get(self._column)
        if isinstance(text, str):
            return text
        if text is None:
            return EmptyText(f"{self.kind} {number} has no {self._column!r}")
        return InvalidRequest(f"{self.kind} {number}: {self._column!r} is not text")


class JsonListTable(JsonlTable):
    """A file with a JSON list of objects or texts; a text becomes ``{"text": …}``.

    The file is read as a whole.
    """

    kind = "item"
    not_this = NOT_A_LIST.format("none of its first items can be read")

    def open(self, path: Path) -> Iterator[tuple[int, str]]:
        content = TextFile(path, self._options.encoding).content()
        try:
            items = _items(content)
        except (msgspec.DecodeError, RecursionError) as error:
            raise UserError(f"{path} {NOT_A_LIST.format(error)}") from None
        return enumerate(map(_json_line, items), start=1)


class XlsxTable(JsonlTable):
    """A sheet of a workbook; its first row that is not blank has the names of the columns.

    A column without a name has its letter, if it has a value. A blank row is one without a text.
    """

    kind = "row"

    def open(self, path: Path) -> Iterator[tuple[int, str]]:
        with closing(self._sheet(path)) as rows:
            yield from self._objects(enumerate(rows, start=1), path)

    def _objects(
        self, rows: Iterable[tuple[int, Sequence[Any]]], path: Path
    ) -> Iterator[tuple[int, str]]:
        from openpyxl.utils import get_column_letter

        filled = ((number, row) for number, row in rows if any(cell is not None for cell in row))
        begin, first = next(filled, (0, ()))
        header = {place: str(name) for place, name in enumerate(first) if name is not None}
        if not header:
            which = repr(self._options.sheet) if self._options.sheet else "first"
            raise UserError(f"{path} has no cell in its {which} sheet; --sheet NAME reads another")
        names = [*header.values()]
        text_index(self._column, names, path)
        self._names += names
        self._types |= dict.fromkeys(names, NoneType)
        last, blank, any_text = begin, json_text(dict.fromkeys(names)), False
        for number, row in filled:
            yield from ((between, blank) for between in range(last + 1, number))
            last = number
            record: dict[str, Any] = dict.fromkeys(names)
            for place, value in enumerate(row):
                if value is not None:
                    if not (name := header.get(place)):
                        letters = f"column {get_column_letter(place + 1)}"
                        (name,) = free_names([letters], names, "unnamed ")
                    record[name] = value
            any_text |= record[self._column] is not None
            yield number, json_text(record)
        if any_text:
            return
        place = next(place for place, name in header.items() if name == self._column)
        with closing(self._sheet(path, data_only=False)) as formulas:
            if any(any(row[place : place + 1]) for row in islice(formulas, begin, None)):
                raise CannotContinue(
                    f"{path}: the column {self._column!r} has only formulas without values; open "
                    "the file in Excel and save it, so that they are computed"
                )

    def _sheet(self, path: Path, *, data_only: bool = True) -> Generator[Sequence[Any], None, None]:
        """The values of each row. Of a formula, it is the one that was last computed.

        Without ``data_only``, it is the formula.
        """
        from openpyxl import load_workbook
        from openpyxl.utils.escape import unescape

        sheet = self._options.sheet
        with path.open("rb") as file:
            try:
                sizes = [member.file_size for member in ZipFile(file).infolist()]
                check_expansion(path, path.stat().st_size, sum(sizes))
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of what it does not read, such as colours
                    book = load_workbook(file, read_only=True, data_only=data_only)
            except CannotContinue:
                raise
            except Exception as error:  # openpyxl has no errors of its own
                raise UserError(f"{path} cannot be read as .xlsx: {first_line(error)}") from None
            names = [one.title for one in book.worksheets]
            if not names or sheet not in (None, *names):
                shown = ", ".join(map(repr, names))
                raise UserError(f"{path} has no sheet {sheet!r}; --sheet accepts one of: {shown}")
            chosen = book.worksheets[names.index(sheet) if sheet else 0]
            chosen.reset_dimensions()  # some programs write wrong ones
            try:
                for row in chosen.iter_rows(values_only=True):
                    # Excel writes a line end of Windows as "_x000D_\n".
                    yield [unescape(cell) if isinstance(cell, str) else cell for cell in row]
            except Exception as error:
                raise CannotContinue(f"{path} cannot be read: {first_line(error)}") from None

    def _text(self, number: int, record: dict[str, Any]) -> TextOrError:
        from openpyxl.cell.cell import ERROR_CODES

        text = super()._text(number, record)
        if text in ERROR_CODES:
            return EmptyText(f"row {number} has the error {text} of a formula")
        return text


def _items(content: bytes) -> list[msgspec.Raw]:
    """The items of a JSON list, unchanged."""
    try:
        return msgspec.json.decode(content, type=list[msgspec.Raw])
    except msgspec.DecodeError:
        # msgspec refuses half of a pair of surrogates, which must fail only its own text, and NaN
        # and infinity, which are null in JSON lines. With something else of the same length, it
        # finds where the items are.
        paired = ESCAPE.sub(lambda found: found[1] or found[2] or rb"\ufffd", content)
        paired = CONSTANT.sub(lambda found: b"1" * len(found[1] or b"") or found[0], paired)
        items, end = [], 0
        for item in map(bytes, msgspec.json.decode(paired, type=list[msgspec.Raw])):
            start = paired.index(item, end)
            end = start + len(item)
            items.append(msgspec.Raw(content[start:end]))
        return items


def _json_line(item: msgspec.Raw) -> str:
    # A line break can only be between the parts of an item.
    line = bytes(item).decode("utf-8", "surrogateescape").replace("\n", " ").replace("\r", " ")
    return line if line.startswith("{") else f'{{"text": {line}}}'


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _whole_number(digits: str) -> int | Decimal:
    return int(digits) if len(digits) < INT_DIGITS else Decimal(digits)


def parsed(
    line: str, parse_constant: Callable[[str], object] = lambda _: None
) -> dict[str, Any] | None:
    """The JSON object in a line, with None for NaN and infinity; None if there is none."""
    try:
        value = json.loads(line, parse_constant=parse_constant)
    except ValueError:
        try:  # more slowly, for numbers with very many digits
            value = json.loads(line, parse_constant=parse_constant, parse_int=_whole_number)
        except ValueError:
            return None
    except RecursionError:
        return None
    return value if isinstance(value, dict) else None


def _type_of(value: Any) -> type:
    kind = type(value)
    if kind in (dict, list, Decimal) or (kind is int and abs(value) > INT64_MAX):
        return object
    return kind


def _common(first: type, second: type) -> type:
    """The type of a column with values of both types; ``object`` if it is mixed."""
    if NoneType in (first, second):
        return first if second is NoneType else second
    if {first, second} == {int, float}:
        return float
    return first if first is second else object
