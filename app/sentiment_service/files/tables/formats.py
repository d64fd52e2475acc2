"""How to read and to write a file, by the ending of its name."""

import gzip
import zlib
from pathlib import Path

from sentiment_service.errors import UserError, first_line
from sentiment_service.files.tables.csv_table import SEPARATORS, CsvTable
from sentiment_service.files.tables.outputs import (
    CsvOutput,
    JsonlOutput,
    LinesOutput,
    OutputFormat,
    ResultColumns,
)
from sentiment_service.files.tables.table import Table, TableSource
from sentiment_service.files.tables.text_files import Unpacked, check_is_utf8
from sentiment_service.files.tables.text_tables import JsonList, JsonlTable, LinesTable


def open_table(source: TableSource, column: str) -> Table:
    """Read and check a file, by the ending of its name. ``column`` is that of the texts.

    Raises:
        UserError: the file cannot be used.
        OSError: it cannot be read.
    """
    match source.suffix.lower():
        case ".gz" if isinstance(source, Path):
            try:
                return open_table(Unpacked(source), column)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise UserError(f"{source} cannot be unpacked: {first_line(error)}") from None
        case ".txt":
            return LinesTable(source)
        case ".csv" | ".tsv":
            return CsvTable(source, column)
        case ".json":
            check_is_utf8(source)
            return JsonlTable(JsonList(source), column)
        case ".parquet":
            from sentiment_service.files.tables.parquet import ParquetTable

            return ParquetTable(source, column)
        case _:
            return JsonlTable(source, column)


def output_format(suffix: str, table: Table, columns: ResultColumns) -> OutputFormat:
    """The format of a file with this ending, for the rows of ``table`` with their results."""
    match suffix.lower():
        case ".txt":
            return LinesOutput()
        case ".csv" | ".tsv" as ending:
            return CsvOutput(table, columns, SEPARATORS[ending])
        case ".parquet":
            from sentiment_service.files.tables.parquet import ParquetOutput

            return ParquetOutput(table, columns)
        case _:
            return JsonlOutput(table, columns)
