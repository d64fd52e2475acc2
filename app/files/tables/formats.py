"""Which kind of table a file has, by the ending of its name."""

from collections.abc import Callable

from app.files.tables.csv_table import Csv
from app.files.tables.table import Source, Table
from app.files.tables.text_tables import Jsonl, Lines


def table_opener(suffix: str) -> Callable[[Source, str], Table]:
    """A function that opens a file with this ending; it gets the file and its column of texts."""
    match suffix.lower():
        case ".txt":
            return lambda source, _: Lines(source)
        case ".csv":
            return Csv
        case ".parquet":
            from app.files.tables.parquet import Parquet

            return Parquet
        case _:
            return Jsonl
