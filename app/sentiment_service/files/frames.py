"""Tables in memory: of pyarrow, pandas or polars, or a dict of columns."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from sentiment_service.errors import UserError
from sentiment_service.files.results import ResultColumns, ResultItem
from sentiment_service.files.table import column_index

if TYPE_CHECKING:
    import pandas as pd

Frame = TypeVar("Frame")
# Columns of results: their names, with a value for each row.
Added = dict[str, list[Any]]


def values_of(column: Iterable[Any]) -> list[Any]:
    """What a column holds. In a column of Arrow, an error stands for a row without a text."""
    if not _is_from("pyarrow", column, "Array", "ChunkedArray"):
        return list(column)
    from sentiment_service.files.parquet import is_text, texts

    # pyarrow cannot decode a column in which one text is not UTF-8.
    arrow: Any = column
    return texts(arrow) if is_text(arrow.type) else cast(list[Any], arrow.to_pylist())


def texts_of(table: Any, column: str) -> list[Any]:
    """The values of the table's column of texts."""
    names = _names(table)
    column_index(column, names, "the table", "column")
    if names.count(column) > 1:
        raise UserError(f"the table has several columns {column!r}; give each its own name")
    values = table[column]
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise TypeError(f"{column!r} holds one value; a column has one for each row")
    return values_of(values)


def with_results(
    table: Frame, column: str, columns: ResultColumns, results: Iterable[ResultItem]
) -> Frame:
    """The table with the columns of its rows' results, which are in the order of its rows."""
    names = _names(table)
    whole: Any = table
    if _is_from("pyarrow", whole, "Table", "RecordBatch"):
        return cast(Frame, columns.with_arrow(whole, results, columns.arrow_schema(names)))
    added = columns_of(results, columns, names)
    if isinstance(whole, Mapping):
        arrays = isinstance(whole[column], np.ndarray)
        whole = {**whole, **(_as_arrays(added, columns) if arrays else added)}
    elif _is_from("pandas", whole, "DataFrame"):
        whole = whole.copy(deep=False)
        for name, values in as_pandas(added, columns).items():
            whole[name] = values.array  # by position: an index may repeat
    else:
        whole = whole.with_columns(_as_polars(added, columns))
    return cast(Frame, whole)


def columns_of(
    results: Iterable[ResultItem], columns: ResultColumns, taken: Sequence[str] = ()
) -> Added:
    """The columns of the results, beside columns with the names ``taken``."""
    names, rows = columns.names(taken), [*map(columns.values, results)]
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def as_pandas(added: Added, columns: ResultColumns, index: Any = None) -> "pd.DataFrame":
    """A frame whose columns have the same types for any results, also for none."""
    import pandas as pd

    types = {str: str, float: float, list: object}
    kinds = zip(added.items(), columns.types.values(), strict=True)
    series = {name: pd.Series(values, index, types[kind]) for (name, values), kind in kinds}
    return pd.DataFrame(series, index)


def _names(table: Any) -> list[str]:
    if isinstance(table, Mapping):
        return [*table]
    if _is_from("pyarrow", table, "Table", "RecordBatch"):
        return [*table.schema.names]
    if _is_from("pandas", table, "DataFrame") or _is_from("polars", table, "DataFrame"):
        return [*table.columns]
    raise TypeError(
        f"{type(table).__name__} is not a table; give a Table or RecordBatch of pyarrow, a "
        "DataFrame of pandas or polars, or a dict of columns"
    )


def _is_from(package: str, value: Any, *types: str) -> bool:
    """Whether the value has one of these types of a package, which nothing may have imported."""
    module = sys.modules.get(package)
    return module is not None and isinstance(value, tuple(getattr(module, t) for t in types))


def _as_arrays(added: Added, columns: ResultColumns) -> dict[str, Any]:
    arrays = {name: np.empty(len(values), object) for name, values in added.items()}
    for (name, values), kind in zip(added.items(), columns.types.values(), strict=True):
        arrays[name][:] = values
        if kind is float:
            arrays[name] = arrays[name].astype(float)
    return arrays


def _as_polars(added: Added, columns: ResultColumns) -> list[Any]:
    import polars as pl

    types = {str: pl.String, float: pl.Float64, list: pl.List(pl.String)}
    kinds = zip(added.items(), columns.types.values(), strict=True)
    return [pl.Series(name, values, types[kind]) for (name, values), kind in kinds]
