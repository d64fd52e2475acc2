"""Texts from columns of Arrow, and results as columns of Arrow. Needs pyarrow."""

from collections.abc import Sequence

import pyarrow as pa

from app.errors import EmptyText
from app.files.tables.outputs import result_columns, result_values
from app.files.tables.table import ResultItem, Text


def texts(column: pa.Array) -> list[Text]:
    """The texts of a column of strings; an error for a row without a text.

    Decoded here and not by pyarrow, so that bytes that are not UTF-8 fail only their text.
    """
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return [
        EmptyText("the row has no text") if raw is None else raw.decode("utf-8", "surrogateescape")
        for raw in column.cast(pa.large_binary()).to_pylist()
    ]


def result_schema(columns: Sequence[str], labels: Sequence[str]) -> pa.Schema:
    """The columns of results for a table that has ``columns``."""
    types = [pa.string(), pa.float32(), *[pa.float32()] * len(labels), pa.string()]
    return pa.schema(zip(result_columns(columns, labels), types, strict=True))


def result_arrays(
    results: Sequence[ResultItem], labels: Sequence[str], schema: pa.Schema
) -> list[pa.Array]:
    """The results, of which there must be one at least, as columns of ``schema``."""
    columns = zip(*(result_values(result, labels) for result in results), strict=True)
    return [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
