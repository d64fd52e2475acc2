"""Parquet files, and what is in columns of Arrow. They need pyarrow, from the extra ``files``."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sentiment_service.errors import CannotContinue, EmptyText, ServiceError, UserError, first_line
from sentiment_service.files.results import ResultColumns, ResultItem, free_names
from sentiment_service.files.table import (
    CHUNK_ROWS,
    Chunk,
    ClassifiedChunk,
    Output,
    Table,
    json_text,
    text_index,
)
from sentiment_service.files.text_files import well_formed

ARROW_TYPES = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
RESULT_TYPES = {str: pa.string(), float: pa.float32(), list: pa.list_(pa.string())}


def result_schema(columns: ResultColumns, taken: Sequence[str]) -> pa.Schema:
    """The columns of results beside a table of Arrow with the columns ``taken``."""
    kinds = [RESULT_TYPES[kind] for kind in columns.types.values()]
    return pa.schema(zip(free_names(columns.types, taken), kinds, strict=True))


def result_arrays(
    columns: ResultColumns, results: Iterable[ResultItem], schema: pa.Schema
) -> list[pa.Array]:
    """The results as columns of ``schema``, which ``result_schema`` made."""
    rows = [*map(columns.values, results)]
    return [
        pa.array([row[index] for row in rows], field.type) for index, field in enumerate(schema)
    ]


def texts(column: Any) -> list[str | ServiceError]:
    """The texts of a column of strings; an error for a row without a text."""
    return [EmptyText("the row has no text") if text is None else text for text in _strings(column)]


def _strings(column: Any) -> list[str | None]:
    """Decoded here and not by pyarrow, which fails if one of them is not UTF-8."""
    if pa.types.is_dictionary(column.type):  # it cannot decode one of views, or more than 2 GiB
        column = column.cast(pa.dictionary(column.type.index_type, pa.large_string()))
    return [
        None if raw is None else raw.decode("utf-8", "surrogateescape")
        for raw in column.cast(pa.large_binary()).to_pylist()
    ]


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds texts, or nothing at all."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return kind in (pa.string(), pa.large_string(), pa.string_view(), pa.null())


class ParquetTable(Table):
    """A Parquet file. ``rows`` are record batches, so that all columns keep their types."""

    def __init__(self, path: Path, column: str) -> None:
        try:
            with _opened(path) as file:
                self.schema = file.schema_arrow
                self._count: int = file.metadata.num_rows
        except (pa.ArrowException, OSError) as error:
            if getattr(error, "errno", None) is not None:
                raise  # of the system; pyarrow's own errors do not name the file
            raise UserError(f"{path} cannot be read as Parquet: {first_line(error)}") from None
        super().__init__(self.schema.names, dict.fromkeys(self.schema.names, object))
        self._path = path
        self._text_index = text_index(column, self.columns, path)
        kind = self.schema.field(self._text_index).type
        if not is_text(kind):
            raise UserError(f"{path}: column {column!r} has the type {kind}, not text")

    def chunks(self) -> Iterator[Chunk]:
        try:
            with _opened(self._path) as file:
                # Reading takes one thread; the model needs the others. Where row groups begin and
                # end does not matter.
                for rows in file.iter_batches(CHUNK_ROWS, use_threads=False):
                    yield Chunk(rows, texts(rows.column(self._text_index)))
        except (pa.ArrowException, OSError) as error:
            raise CannotContinue(f"{self._path} cannot be read: {first_line(error)}") from None

    def expected_rows(self, read: int) -> int:
        return self._count

    def records(self, rows: pa.RecordBatch) -> list[dict[str, Any]]:
        """See ``Table``. Dates and times are text, and durations are numbers in their unit.

        Python's types for them have neither nanoseconds nor years after 9999.
        """
        columns = map(self._values, self.columns, rows.columns)
        return [dict(zip(self.columns, row, strict=True)) for row in zip(*columns, strict=True)]

    def _values(self, name: str, column: pa.Array) -> list[Any]:
        if is_text(column.type):
            return _strings(column)
        try:
            values: list[Any] = column.cast(_writable(column.type)).to_pylist()
        except (pa.ArrowException, ValueError, OverflowError) as error:
            raise UserError(
                f"{self._path}: column {name!r} can only be written as Parquet "
                f"({first_line(error)}); leave it out, or write Parquet"
            ) from None
        return values


class ParquetOutput(Output):
    """The table's columns, then the columns of results. Each chunk is a row group.

    Until the file is complete, each chunk is a stream of Arrow.
    """

    def __init__(self, table: Table, columns: ResultColumns) -> None:
        self._table = table
        self._columns = columns
        names = [*map(well_formed, table.columns)]
        self._result_schema = result_schema(columns, names)
        if isinstance(table, ParquetTable):
            self._table_schema = table.schema
        else:
            types = [ARROW_TYPES.get(kind, pa.string()) for kind in table.types.values()]
            self._table_schema = pa.schema(zip(names, types, strict=True))
        self.schema = pa.schema(
            [*self._table_schema, *self._result_schema], metadata=self._table_schema.metadata
        )

    def chunk(self, chunk: Chunk, results: Sequence[ResultItem]) -> bytes:
        buffer = pa.BufferOutputStream()
        with pa.ipc.new_stream(buffer, self.schema) as stream:
            stream.write_batch(self._batch(chunk, results))
        content: bytes = buffer.getvalue().to_pybytes()
        return content

    def finish(self, chunks: Path) -> Path:
        complete = self.new_file(chunks)
        with pa.OSFile(str(chunks)) as file, pq.ParquetWriter(complete, self.schema) as whole:
            while file.tell() < file.size():
                for batch in pa.ipc.open_stream(file):
                    whole.write_batch(batch)
        return complete

    def write(self, path: Path, chunks: Iterable[ClassifiedChunk]) -> None:
        with pq.ParquetWriter(path, self.schema) as whole:
            for chunk, results in chunks:
                whole.write_batch(self._batch(chunk, results))

    def _batch(self, chunk: Chunk, results: Sequence[ResultItem]) -> pa.RecordBatch:
        arrays = result_arrays(self._columns, results, self._result_schema)
        return pa.record_batch([*self._table_arrays(chunk), *arrays], schema=self.schema)

    def _table_arrays(self, chunk: Chunk) -> list[pa.Array]:
        if isinstance(self._table, ParquetTable):
            arrays: list[pa.Array] = chunk.rows.columns
            return arrays
        records = self._table.records(chunk.rows)
        return [
            pa.array([_arrow_value(record.get(name), kind) for record in records], field.type)
            for field, (name, kind) in zip(
                self._table_schema, self._table.types.items(), strict=True
            )
        ]


def _opened(path: Path) -> pq.ParquetFile:
    # Spark's old timestamps (INT96) have microseconds. By default, they would be read as
    # nanoseconds, in which the year 9999 becomes 1816 without an error.
    return pq.ParquetFile(path, coerce_int96_timestamp_unit="us")


def _writable(kind: pa.DataType) -> pa.DataType:
    """The type with text for dates and times, and numbers for durations, also within values."""

    def member(field: pa.Field) -> pa.Field:
        return field.with_type(_writable(field.type))

    types = pa.types
    if types.is_dictionary(kind):
        return _writable(kind.value_type)
    if types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind):
        return pa.string()
    if types.is_duration(kind):
        return pa.int64()
    if types.is_map(kind):
        return pa.map_(member(kind.key_field), member(kind.item_field), kind.keys_sorted)
    if types.is_fixed_size_list(kind):
        return pa.list_(member(kind.value_field), kind.list_size)
    if types.is_large_list(kind):
        return pa.large_list(member(kind.value_field))
    if types.is_list(kind):
        return pa.list_(member(kind.value_field))
    if types.is_struct(kind):
        return pa.struct([*map(member, kind)])
    return kind


def _arrow_value(value: Any, kind: type) -> Any:
    """The value for a column of type ``kind``; where types are mixed, JSON of all but strings."""
    if value is None or kind in (int, float, bool):
        return value
    return well_formed(value) if isinstance(value, str) else json_text(value)
