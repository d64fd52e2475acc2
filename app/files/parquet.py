"""Parquet, by pyarrow: the extra ``files``."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from app.errors import EmptyText, UserError
from app.files.outputs import Outcome, Output, result_columns, values
from app.files.tables import CHUNK_ROWS, Chunk, Table, check_is_file, position
from app.files.unicode import well_formed

ARROW_TYPES = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}


class Parquet(Table):
    """Record batches; their columns stay as they are, whatever their types."""

    def __init__(self, path: Path, column: str) -> None:
        check_is_file(path)
        try:
            with pq.ParquetFile(path) as file:
                self.schema = file.schema_arrow
        except pa.ArrowException as error:
            raise UserError(f"{path} cannot be read as Parquet: {error}") from None
        super().__init__(self.schema.names, dict.fromkeys(self.schema.names, object))
        self._path = path
        self._at = position(column, self.columns, path)
        kind = self.schema.field(self._at).type
        if not _is_text(kind):
            raise UserError(f"{path}: column {column!r} has {kind}, not text")

    def chunks(self, skip: int) -> Iterator[Chunk]:
        with pq.ParquetFile(self._path) as file:
            total, end = file.metadata.num_rows, 0
            # One thread: the others compute.
            for batch in file.iter_batches(CHUNK_ROWS, use_threads=False):
                start, end = end, end + batch.num_rows
                if end > skip:
                    rows = batch.slice(max(0, skip - start))
                    yield Chunk(rows, _texts(rows.column(self._at)), end / total)

    def records(self, rows: pa.RecordBatch) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = rows.to_pylist()
        return found


class ParquetOutput(Output):
    """The table's columns, then the results; a row group for each chunk."""

    def __init__(self, table: Table, labels: Sequence[str]) -> None:
        self._table = table
        self._labels = labels
        types = [pa.string(), pa.float32(), *[pa.float32()] * len(labels), pa.string()]
        self._results = pa.schema(zip(result_columns(table, labels), types, strict=True))
        if isinstance(table, Parquet):
            self._given = table.schema
        else:
            fields = [
                (name, ARROW_TYPES.get(kind, pa.string())) for name, kind in table.types.items()
            ]
            self._given = pa.schema(fields)
        # Schemas are unified by name; here a name may be there twice.
        self._schema = pa.schema([*self._given, *self._results], metadata=self._given.metadata)

    def write(self, path: Path, chunk: Chunk, outcomes: Sequence[Outcome]) -> None:
        columns = zip(*(values(outcome, self._labels) for outcome in outcomes), strict=True)
        results = [
            pa.array(column, field.type)
            for column, field in zip(columns, self._results, strict=True)
        ]
        batch = pa.record_batch([*self._given_columns(chunk), *results], schema=self._schema)
        with pq.ParquetWriter(path, self._schema) as writer:
            writer.write_batch(batch)

    def join(self, parts: Iterable[Path], path: Path) -> None:
        with pq.ParquetWriter(path, self._schema) as whole:
            for part in parts:
                whole.write_table(pq.read_table(part, schema=self._schema, use_threads=False))

    def _given_columns(self, chunk: Chunk) -> list[pa.Array]:
        if isinstance(self._table, Parquet):
            columns: list[pa.Array] = chunk.rows.columns
            return columns
        records = self._table.records(chunk.rows)
        return [
            pa.array(
                [
                    _value(record.get(field.name), self._table.types[field.name])
                    for record in records
                ],
                field.type,
            )
            for field in self._given
        ]


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return kind in (pa.string(), pa.large_string(), pa.null())


def _texts(column: pa.Array) -> list[Any]:
    """Text whose bytes are not UTF-8 fails by itself, so they are decoded here."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return [
        EmptyText("the row has no text") if raw is None else raw.decode("utf-8", "surrogateescape")
        for raw in column.cast(pa.large_binary()).to_pylist()
    ]


def _value(value: Any, kind: type) -> Any:
    """As the column's type wants it; where the values' types differ, as JSON."""
    if value is None or kind in (int, float, bool):
        return value
    return well_formed(value if kind is str else json.dumps(value, ensure_ascii=False))
