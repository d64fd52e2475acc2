"""How to read and to write a file, by the ending of its name."""

from collections.abc import Callable, Sequence

from app.files.tables.csv_table import CsvTable
from app.files.tables.outputs import CsvOutput, JsonlOutput, LinesOutput, OutputFormat
from app.files.tables.table import Table, TableSource
from app.files.tables.text_tables import JsonlTable, LinesTable


def table_opener(suffix: str) -> Callable[[TableSource, str], Table]:
    """A function that opens a file with this ending; it gets the file and its column of texts."""
    match suffix.lower():
        case ".txt":
            return lambda source, _: LinesTable(source)
        case ".csv":
            return CsvTable
        case ".parquet":
            from app.files.tables.parquet import ParquetTable

            return ParquetTable
        case _:
            return JsonlTable


def output_format(suffix: str, table: Table, labels: Sequence[str]) -> OutputFormat:
    """The format of a file with this ending, for the rows of ``table`` with their results."""
    match suffix.lower():
        case ".txt":
            return LinesOutput()
        case ".csv":
            return CsvOutput(table, labels)
        case ".parquet":
            from app.files.tables.parquet import ParquetOutput

            return ParquetOutput(table, labels)
        case _:
            return JsonlOutput(table)
