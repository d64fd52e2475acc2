"""How to read and to write a file, by the ending of its name."""

from pathlib import Path

from sentiment_service.files.result_columns import ResultColumns
from sentiment_service.files.tables.csv_table import SEPARATORS, CsvTable
from sentiment_service.files.tables.json_tables import JsonListTable, JsonlTable
from sentiment_service.files.tables.outputs import (
    CsvOutput,
    GrowingOutput,
    JsonlOutput,
    LinesOutput,
    Output,
)
from sentiment_service.files.tables.table import Table, TextColumn
from sentiment_service.files.tables.text_files import TextFile, inner_suffix


def open_table(path: Path, column: str) -> Table:
    """Open a file and check its beginning. ``column`` is that of the texts.

    Raises:
        UserError: the file cannot be used.
        OSError: it cannot be read.
    """
    match inner_suffix(path):
        case ".txt":
            return LinesTable(path)
        case ".csv" | ".tsv":
            return CsvTable(path, column)
        case ".json":
            return JsonListTable(path, column)
        case ".parquet":
            from sentiment_service.files.tables.parquet import ParquetTable

            return ParquetTable(path, column)
        case _:
            return JsonlTable(path, column)


class LinesTable(TextColumn):
    """A file with a text in each line."""

    def __init__(self, path: Path) -> None:
        self._file = TextFile(path)
        super().__init__(self._file.lines())

    def expected_rows(self, read: int) -> int:
        return self._file.expected(read)


def output_format(suffix: str, table: Table, columns: ResultColumns) -> Output:
    """The format of a file with this ending, for the rows of ``table`` with their results."""
    suffix = suffix.lower()
    if suffix == ".txt":
        return LinesOutput()
    if table.grows:
        return GrowingOutput(table, lambda: _output(suffix, table, columns))
    return _output(suffix, table, columns)


def _output(suffix: str, table: Table, columns: ResultColumns) -> Output:
    match suffix:
        case ".csv" | ".tsv":
            return CsvOutput(table, columns, SEPARATORS[suffix])
        case ".parquet":
            from sentiment_service.files.tables.parquet import ParquetOutput

            return ParquetOutput(table, columns)
        case _:
            return JsonlOutput(table, columns)
