"""CSV and TSV files, and the one rule for their quotes."""

import csv
import logging
import operator
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import dropwhile, islice
from pathlib import Path
from typing import Any

from sentiment_service.errors import InvalidRequest, UserError
from sentiment_service.files.table import Chunk, Table, TextOrError, split_into_chunks, text_index
from sentiment_service.files.text_files import (
    MAX_FIELD_CHARS,
    PLAIN,
    FileOptions,
    TextFile,
    inner_suffix,
)

SEPARATORS = {".csv": ",", ".tsv": "\t"}
OTHER_SEPARATORS = (";", "|")
# Many programs that write these write a quote like any other character.
MAYBE_UNQUOTED = ("\t", "|")
# A first line such as "sep=;" is for spreadsheets; blank lines before it do not count.
SEPARATOR_LINE = re.compile(r'"?sep=(.)"?\s*$', re.IGNORECASE)
LINE_END = re.compile(r"\r\n|\r|\n")
UNCLOSED = "unexpected end of data"  # in the words of Python's csv
csv.field_size_limit(MAX_FIELD_CHARS)

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Row:
    """The cells of a row, which has so many lines; the first is the line ``number``.

    ``fault`` says how its quotes break the rule; then they are characters of its cells.
    """

    number: int
    cells: list[str]
    lines: int = 1
    fault: str = ""
    doubtful: bool = False  # its lines could be rows, too


def read_rows(
    lines: Iterable[str], separator: str, *, width: int = 0, quotes: bool = True
) -> Iterator[Row]:
    """Each row that is not blank, from lines with their ends.

    A cell that begins with a quote ends with the next one that is not doubled. If something else
    follows, or there is no other quote, the row has a fault, and ends with its line.

    A cell of several lines that could be rows, too, is doubtful. Where quotes may be characters,
    behind tabs and bars, that is a fault, and so is a cell of several lines in a row of other than
    ``width`` cells. Without ``quotes``, all are characters.
    """
    rest, number = iter(lines), 1
    waiting: deque[str] = deque()  # lines that a faulty quote had taken
    while line := waiting.popleft() if waiting else next(rest, ""):
        row = Row(number, line.rstrip("\r\n").split(separator))
        if quotes and '"' in line:
            taken = [line]
            try:
                cells = next(
                    csv.reader(_taking(taken, waiting, rest), delimiter=separator, strict=True)
                )
            except csv.Error as error:
                row.fault = str(error)
            else:
                _judge(row, cells, len(taken), separator, width)
            if row.fault:
                waiting.extendleft(reversed(taken[1:]))
        number += row.lines
        if not _is_blank(line):
            yield row


def _is_blank(line: str) -> bool:
    return not line.strip("\r\n")


def _taking(taken: list[str], waiting: deque[str], rest: Iterator[str]) -> Iterator[str]:
    """The only line in ``taken``, then the next ones, which are added to it."""
    yield taken[0]
    while line := waiting.popleft() if waiting else next(rest, ""):
        taken.append(line)
        yield line


def _judge(row: Row, cells: list[str], lines: int, separator: str, width: int) -> None:
    """Give the row its cells, if the quotes can be meant as such."""
    if lines > 1:
        row.doubtful = _could_be_rows(cells, separator, width or len(cells))
        if separator in MAYBE_UNQUOTED and (row.doubtful or len(cells) != (width or len(cells))):
            row.fault = "the quote would take the next rows"
            return
    row.cells, row.lines = cells, lines


def _could_be_rows(cells: list[str], separator: str, width: int) -> bool:
    """Whether the lines of a cell have the separators of the end, the middle and a row's begin."""
    for index, cell in enumerate(cells):
        first, *middle = LINE_END.split(cell)
        if middle:
            last = middle.pop()
            found = [line.count(separator) for line in (first, last, *middle)]
            needed = [width - 1 - index, index, *[width - 1] * len(middle)]
            if all(map(operator.ge, found, needed)):
                return True
    return False


class CsvTable(Table):
    """A file of values with a header, separated by what the ending says, or by ; or |.

    Blank lines are skipped. ``read_rows`` has the rule for quotes.
    """

    file: TextFile

    def __init__(self, path: Path, column: str, file_options: FileOptions = PLAIN) -> None:
        self.file = TextFile(path, file_options.encoding)
        self._path = path
        lines, known = [*dropwhile(_is_blank, self.file.start)], None
        if lines and (found := SEPARATOR_LINE.match(lines[0])):
            lines, known = lines[1:], found[1]
        self._separator = known or _separator(lines, SEPARATORS[inner_suffix(path)], column)
        header = next(read_rows(lines, self._separator), None)
        if header is None:
            raise UserError(f"{path} is empty; a CSV file must begin with the names of its columns")
        if header.fault and self._separator not in MAYBE_UNQUOTED:
            raise UserError(f"{path}: the names of the columns {_advice(header)}")
        self._first = len(self.file.start) - len(lines) + header.number - 1 + header.lines
        self._text_index = text_index(column, header.cells, path)
        super().__init__(header.cells, dict.fromkeys(header.cells, str))
        self._quotes = _uses_quotes(
            self.file.start[self._first :],
            self._separator,
            len(header.cells),
            whole=self.file.is_short,
        )

    def chunks(self) -> Iterator[Chunk]:
        return split_into_chunks(self._rows())

    def records(self, rows: list[list[str]]) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in rows]

    def cells(self, rows: list[list[str]]) -> list[list[Any]]:
        return rows

    def _rows(self) -> Iterator[tuple[list[str], TextOrError, int]]:
        width, warned = len(self.columns), False
        lines = islice(self.file.lines_with_ends(), self._first, None)
        for row in read_rows(lines, self._separator, width=width, quotes=self._quotes):
            row.number += self._first
            if row.doubtful and not warned:
                warned = True
                logger.warning(
                    "%s, line %d: a cell in quotes has %d lines, each of which could be a row; if "
                    "they are rows, double the quote that begins the cell, and put it in quotes",
                    *(self._path, row.number, row.lines),
                )
            size = sum(map(len, row.cells))
            yield *self._checked(row), size

    def _checked(self, row: Row) -> tuple[list[str], TextOrError]:
        """The row with as many cells as there are columns, and its text.

        Surplus cells are part of the last one, so that nothing is lost.
        """
        width, found = len(self.columns), len(row.cells)
        if row.fault and self._separator not in MAYBE_UNQUOTED:
            error = InvalidRequest(f"line {row.number}: the row {_advice(row)}")
        elif found == width:
            return row.cells, row.cells[self._text_index]
        else:
            error = InvalidRequest(
                f"line {row.number}: the header has {width} columns, but this row has {found}"
            )
        last = self._separator.join(row.cells[width - 1 :])
        return [*[*row.cells, *[""] * width][: width - 1], last], error


def rows_without_header(path: Path, width: int, file_options: FileOptions = PLAIN) -> Iterator[Row]:
    """The rows of a file with tabs that are not blank; each should have ``width`` cells."""
    file = TextFile(path, file_options.encoding)
    quotes = _uses_quotes(file.start, "\t", width, whole=file.is_short)
    for row in read_rows(file.lines_with_ends(), "\t", width=width, quotes=quotes):
        if any(cell.strip() for cell in row.cells):
            yield row


def _uses_quotes(start: Sequence[str], separator: str, width: int, *, whole: bool) -> bool:
    """Whether quotes in a file that begins with these lines are more than characters.

    Behind tabs and bars they are not, if one of them breaks the rule of ``read_rows``. Unless the
    lines are the ``whole`` file, a quote may be closed in a later line.
    """
    if separator not in MAYBE_UNQUOTED:
        return True
    faults = {row.fault for row in read_rows(start, separator, width=width)} - {""}
    return not (faults if whole else faults - {UNCLOSED})


def _advice(row: Row) -> str:
    return (
        f"cannot be read ({row.fault}); a quote that begins a cell must end it, and quotes inside "
        "must be doubled"
    )


def _separator(lines: Sequence[str], usual: str, column: str) -> str:
    """What the ending says, unless ``column`` is only a name of the header with another one."""
    for separator in (usual, *SEPARATORS.values(), *OTHER_SEPARATORS):
        header = next(read_rows(lines, separator), None)
        if header and column in header.cells:
            return separator
    return usual
