"""How to read and to write a file, by the ending of its name.

A file of results has every column of the table, then the result of its text.
"""

import csv
import io
import json
from abc import abstractmethod
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from sentiment_service.errors import UserError
from sentiment_service.files.csv_table import SEPARATORS, CsvTable
from sentiment_service.files.json_tables import JsonListTable, JsonlTable, XlsxTable, parsed
from sentiment_service.files.results import ResultColumns, ResultItem, error_text, free_names
from sentiment_service.files.table import (
    CHUNK_ROWS,
    TEXT,
    Chunk,
    ClassifiedChunk,
    Output,
    Table,
    TextColumn,
    json_text,
)
from sentiment_service.files.text_files import (
    PACKED,
    PLAIN,
    SURROGATEESCAPE_OR_REPLACE,
    FileOptions,
    TextFile,
    inner_suffix,
)


class TextOutput(Output):
    @abstractmethod
    def lines(self, chunk: Chunk, results: Sequence[ResultItem]) -> Iterator[str]:
        """A line for each row, with its line end."""

    def chunk(self, chunk: Chunk, results: Sequence[ResultItem]) -> bytes:
        return _encoded("".join(self.lines(chunk, results)))


class LinesOutput(TextOutput):
    """Label, score and text, separated by tabs. Each run of white space in a text is a space."""

    def lines(self, chunk: Chunk, results: Sequence[ResultItem]) -> Iterator[str]:
        for text, result in zip(chunk.texts, results, strict=True):
            shown = " ".join(text.split()) if isinstance(text, str) else ""
            if "error" in result:
                yield f"error\t{result['error']['code']}\t{shown}\n"
            else:
                yield f"{result['label']}\t{result['score']:.4f}\t{shown}\n"


class ResultsOutput(TextOutput):
    """Only the results, as a JSON object in each line, without the table's columns."""

    def lines(self, chunk: Chunk, results: Sequence[ResultItem]) -> Iterator[str]:
        return (json.dumps(result) + "\n" for result in results)


class CsvOutput(TextOutput):
    """Values with a separator, such as a comma. Lines end with LF."""

    def __init__(self, table: Table, columns: ResultColumns, separator: str) -> None:
        self._table = table
        self._columns = columns
        self._separator = separator
        names = [*table.columns, *free_names(columns.types, table.columns)]
        self.header = _encoded(self._line(names))

    def lines(self, chunk: Chunk, results: Sequence[ResultItem]) -> Iterator[str]:
        for cells, result in zip(self._table.cells(chunk.rows), results, strict=True):
            yield self._line([*map(_csv_cell, [*cells, *self._columns.values(result)])])

    def _line(self, cells: Sequence[Any]) -> str:
        buffer = io.StringIO()
        csv.writer(buffer, delimiter=self._separator).writerow(cells)
        # It was written with CR LF, because then ``csv`` quotes cells that have CR or LF.
        return buffer.getvalue().removesuffix("\r\n") + "\n"


class JsonlOutput(TextOutput):
    """A JSON object in each line. The labels' scores are an object within it."""

    def __init__(self, table: Table, columns: ResultColumns) -> None:
        self._table = table
        self._members = ["label", "score", "scores", *columns.members]
        self._names = free_names([*self._members, "error"], table.columns)

    def lines(self, chunk: Chunk, results: Sequence[ResultItem]) -> Iterator[str]:
        for row, result in zip(self._table.json_objects(chunk.rows), results, strict=True):
            values = [*map(result.get, self._members), error_text(result)]
            added = json.dumps(dict(zip(self._names, values, strict=True)))
            # The row's members are copied as text, so that numbers keep all digits.
            members = row.strip()[1:-1].strip()
            yield "{" + (members and f"{members}, ") + f"{added[1:]}\n"


class GrowingOutput(Output):
    """Rows whose columns are known when all have been read: until then, they are lines of JSON.

    A row has two of them, its own and its result. ``output`` makes the final kind of file.
    """

    def __init__(self, table: Table, output: Callable[[], Output]) -> None:
        self._table = table
        self._output = output

    def chunk(self, chunk: Chunk, results: Sequence[ResultItem]) -> bytes:
        rows = self._table.json_objects(chunk.rows)
        pairs = zip(rows, results, strict=True)
        return _encoded("".join(f"{row}\n{json.dumps(result)}\n" for row, result in pairs))

    def finish(self, chunks: Path) -> Path:
        complete = self.new_file(chunks)
        with chunks.open(encoding="utf-8", errors="surrogateescape", newline="\n") as lines:
            pieces = iter(lambda: [*islice(lines, 2 * CHUNK_ROWS)], [])
            self._output().write(complete, map(_saved_chunk, pieces))
        return complete


def _saved_chunk(lines: Sequence[str]) -> ClassifiedChunk:
    rows = [(line, parsed(line)) for line in lines[::2]]
    return Chunk(rows, []), [json.loads(line) for line in lines[1::2]]


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", SURROGATEESCAPE_OR_REPLACE)


def _csv_cell(value: Any) -> Any:
    """JSON for the types that ``csv`` would write in Python's notation, and base64 for bytes."""
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return json_text(value) if isinstance(value, bool | dict | list) else value


def open_table(path: Path, column: str, file_options: FileOptions = PLAIN) -> Table:
    """Open a file and check its beginning. ``column`` is that of the texts."""
    suffix = inner_suffix(path)
    if suffix not in TEXT and path.suffix.lower() in PACKED:
        raise UserError(
            f"{path} holds a file that ends in {suffix or 'nothing'}; accepted in a compressed "
            f"file: {' '.join(TEXT)}"
        )
    match suffix:
        case ".txt":
            file = TextFile(path, file_options.encoding)
            return TextColumn(file.lines(), file=file)
        case ".csv" | ".tsv":
            return CsvTable(path, column, file_options)
        case ".json":
            return JsonListTable(path, column, file_options)
        case ".xlsx":
            return XlsxTable(path, column, file_options)
        case ".parquet":
            from sentiment_service.files.parquet import ParquetTable

            return ParquetTable(path, column)
        case _:
            return JsonlTable(path, column, file_options)


def output_format(suffix: str, table: Table, columns: ResultColumns) -> Output:
    """The format of a file with this ending, for the rows of ``table`` with their results."""
    make: Callable[[], Output]
    match suffix:
        case ".txt":
            return LinesOutput()
        case ".csv" | ".tsv":
            make = partial(CsvOutput, table, columns, SEPARATORS[suffix])
        case ".parquet":
            from sentiment_service.files.parquet import ParquetOutput

            make = partial(ParquetOutput, table, columns)
        case _:
            make = partial(JsonlOutput, table, columns)
    return GrowingOutput(table, make) if table.grows else make()
