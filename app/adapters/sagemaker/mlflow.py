"""MLflow's tables as JSON: ``dataframe_split`` and ``dataframe_records``."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, Field, PlainValidator
from pydantic_core import PydanticCustomError

from app.adapters.forms.instances import TEXT_FIELDS, InstancesParameters, InstancesRequest


def _column(columns: Sequence[Any]) -> Any:
    """The column that has the texts: one of the known names, or the only one."""
    known = (name for name in TEXT_FIELDS if name in columns)
    column = next(known, columns[0] if len(columns) == 1 else None)
    if column is None:
        raise PydanticCustomError(
            "column",
            "must have one column, or a column named {names}",
            {"names": " or ".join(TEXT_FIELDS)},
        )
    return column


def _strings(values: Iterable[Any]) -> list[str]:
    texts = list(values)
    if not texts:
        raise PydanticCustomError("rows", "must have at least one row")
    if not all(isinstance(text, str) for text in texts):
        raise PydanticCustomError("rows", "must have a string in the text column of each row")
    return texts


def _split(value: Any) -> list[str]:
    columns, data = (
        (value.get("columns"), value.get("data")) if isinstance(value, dict) else (None, None)
    )
    if not isinstance(columns, list) or not isinstance(data, list):
        raise PydanticCustomError("split", "must be an object with the lists columns and data")
    if not all(isinstance(row, list) and len(row) == len(columns) for row in data):
        raise PydanticCustomError("split", "must have a list of as many values as columns per row")
    place = columns.index(_column(columns))
    return _strings(row[place] for row in data)


def _records(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(row, dict) and row for row in value):
        raise PydanticCustomError("records", "must be a list of objects")
    return _strings(row.get(_column(list(row))) for row in value)


class SplitRequest(BaseModel):
    """A table by columns and rows; other fields are ignored."""

    dataframe_split: Annotated[
        list[str], PlainValidator(_split, json_schema_input_type=dict[str, Any])
    ] = Field(description="an object with columns and data, as pandas writes it")
    params: InstancesParameters | None = None


class RecordsRequest(BaseModel):
    """A table as a list of objects; other fields are ignored."""

    dataframe_records: Annotated[
        list[str], PlainValidator(_records, json_schema_input_type=list[dict[str, Any]])
    ] = Field(description="one object per row")
    params: InstancesParameters | None = None


def as_instances(body: SplitRequest | RecordsRequest) -> InstancesRequest:
    """The texts of a table as instances, which MLflow answers in the same format."""
    texts = body.dataframe_split if isinstance(body, SplitRequest) else body.dataframe_records
    return InstancesRequest.model_construct(instances=texts, parameters=body.params)
