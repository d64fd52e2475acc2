"""CSV and TSV files."""

import csv
from collections.abc import Iterator
from typing import Any

from sentiment_service.errors import CannotContinue, InvalidRequest, UserError
from sentiment_service.files.tables.table import TableSource, TextOrError, check_names, column_index
from sentiment_service.files.tables.text_files import (
    MAX_FIELD_CHARS,
    TextFile,
    TextTable,
    check_is_utf8,
)

SEPARATORS = {".csv": ",", ".tsv": "\t"}
OTHER_SEPARATORS = (";", "|")
csv.field_size_limit(MAX_FIELD_CHARS)


class CsvTable(TextTable):
    """A file of values in UTF-8 with a header, separated by what the ending says, or by ; or |.

    Quotes mean the same in both kinds. Blank lines are skipped.

    The whole file is read once before its first chunk: a quote that is not closed must be found
    before hours of work, and not after them.
    """

    newline = ""

    def __init__(self, path: TableSource, column: str) -> None:
        check_is_utf8(path)
        self.path = path
        with TextFile(path, "") as file:
            self._separator = _separator(path, file.readline(MAX_FIELD_CHARS), column)
        with TextFile(path, "") as file:
            _, header = next(self._lines(file), (0, []))
        if not header:
            raise UserError(f"{path} is empty; a CSV file must begin with the names of its columns")
        check_names(header, path)
        super().__init__(header, dict.fromkeys(header, str))
        self._text_index = column_index(column, header, path)
        self.ends = [chunk.end for chunk in self.chunks()]

    def read_rows(self, file: TextFile) -> Iterator[tuple[list[str], TextOrError, int]]:
        begins = not file.lines
        rows = self._lines(file)
        if begins:
            next(rows, None)  # the header
        for line, row in rows:
            yield *self._checked(row, line), sum(map(len, row))

    def records(self, rows: list[list[str]]) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in rows]

    def cells(self, rows: list[list[str]]) -> list[list[Any]]:
        return rows

    def _lines(self, file: TextFile) -> Iterator[tuple[int, list[str]]]:
        """Each row that is not blank, with the number of its last line."""
        # Strict, because otherwise a quote that is never closed takes all that follows into its
        # cell, up to the next quote or the end of the file, without an error.
        reader = csv.reader(file, strict=True, delimiter=self._separator)
        last_line = lines = file.lines
        try:
            for row in reader:
                last_line = lines + reader.line_num
                if row:
                    yield last_line, row
        except csv.Error as error:
            raise CannotContinue(
                f"{self.path}, line {last_line + 1}: the row that begins here cannot be read (line "
                f"{lines + reader.line_num}: {error}); a quote must end its cell, and quotes "
                "inside must be doubled"
            ) from None

    def _checked(self, row: list[str], line: int) -> tuple[list[str], TextOrError]:
        """The row with as many cells as there are columns, and its text."""
        width = len(self.columns)
        if len(row) == width:
            return row, row[self._text_index]
        error = InvalidRequest(
            f"line {line}: the header has {width} columns, but this row has {len(row)}"
        )
        return [*row, *[""] * width][:width], error


def _separator(path: TableSource, header: str, column: str) -> str:
    """What the ending says, unless ``column`` is only a name of the header with another one."""
    usual = SEPARATORS[path.suffix.lower()]
    possible = (usual, *SEPARATORS.values(), *OTHER_SEPARATORS)
    fits = (s for s in possible if column in next(csv.reader([header], delimiter=s), []))
    return next(fits, usual)
