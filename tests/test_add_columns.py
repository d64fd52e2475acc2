"""`Classifier.add_columns`: the columns of results beside those of a table in memory."""

from collections import UserDict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sentiment_service import Classifier, ServiceError, UserError
from sentiment_service.cli.command import main

from tests.support.tiny_bundle import LABELS, make_bundle

SCORES = [f"score_{label}" for label in LABELS]
ADDED = ["label", "score", *SCORES, "polarity", "warnings", "error"]
TEXTS = ["love", None, "worst", "", "it"]
EXPECTED = ["positive", None, "negative", None, "neutral"]


@pytest.fixture(scope="module")
def classifier(bundle: Path) -> Iterator[Classifier]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SENTIMENT_MAX_BATCH_TOKENS", "512")  # so that nothing is measured
        with Classifier(bundle, runners=1, threads=1) as classifier:
            yield classifier


def _pandas(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame({name: pd.Series(list(values)) for name, values in columns.items()})


def _batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def _polars(**columns: Any) -> Any:
    return pytest.importorskip("polars").DataFrame(columns)


def _lists(table: Any) -> dict[str, list[Any]]:
    """The columns of any kind of table, with None for what is missing."""
    if isinstance(table, pa.Table | pa.RecordBatch):
        columns: dict[str, list[Any]] = table.to_pydict()
        return columns
    if hasattr(table, "to_dict") and not isinstance(table, pd.DataFrame):  # of polars
        table = table.to_dict(as_series=False)
    if isinstance(table, pd.DataFrame):
        table = {name: table[name].to_list() for name in table.columns}
    return {
        name: [None if value is pd.NA or value != value else value for value in values]
        for name, values in table.items()
    }


KINDS: dict[str, Callable[..., Any]] = {
    "pa.Table": lambda **columns: pa.table(columns),
    "pa.RecordBatch": _batch,
    "pandas": _pandas,
    "polars": _polars,
    "dict of lists": dict,
    "dict of arrays": lambda **columns: {n: np.array(v, object) for n, v in columns.items()},
}
kinds = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


@kinds
def test_each_kind_of_table_comes_back_with_the_columns(
    classifier: Classifier, make: Callable[..., Any]
) -> None:
    """The same kind, the same rows in their order; rows without a result say why.

    A table without rows gets the columns, too.
    """
    table = make(number=[5, 4, 3, 2, 1], text=TEXTS)
    made = classifier.add_columns(table)
    assert type(made) is type(table)
    columns = _lists(made)
    assert [*columns] == ["number", "text", *ADDED]
    assert columns["number"] == [5, 4, 3, 2, 1]
    assert columns["label"] == EXPECTED
    assert [error and error.split(":")[0] for error in columns["error"]] == [
        None if label else "empty_text" for label in EXPECTED
    ]
    assert columns["score"][1] is None
    assert columns["score"][0] == columns["score_positive"][0] > 0.5
    assert [*_lists(table)] == ["number", "text"]  # what was given stays as it was
    empty = _lists(classifier.add_columns(make(text=[])))
    assert [*empty.items()] == [(name, []) for name in ["text", *ADDED]]


@kinds
def test_no_column_is_lost(classifier: Classifier, make: Callable[..., Any]) -> None:
    """A taken name gets "predicted_", also twice, behind the prefix of one's own.

    As for Spark and SQL, the cases of letters do not distinguish names.
    """
    given = {"text": ["love"], "Label": ["mine"], "predicted_label": ["too"], "my_error": [1]}
    columns = _lists(classifier.add_columns(make(**given)))
    assert [*columns] == [*given, "predicted_predicted_label", *ADDED[1:]]
    assert {name: columns[name] for name in given} == given
    assert columns["predicted_predicted_label"] == ["positive"]
    columns = _lists(classifier.add_columns(make(**given), prefix="my_"))
    named = [f"my_{name}" for name in ADDED]
    assert [*columns] == [*given, *named[:-1], "predicted_my_error"]
    assert (columns["my_label"], columns["predicted_my_error"]) == (["positive"], [None])


def test_levels_of_columns(classifier: Classifier) -> None:
    """A frame of pandas whose columns have two levels gets them at the first one."""
    frame = pd.DataFrame({("tweet", "text"): ["love"], ("tweet", "id"): [1]})
    made = classifier.add_columns(frame, ("tweet", "text"))  # type: ignore[arg-type]
    assert [*made.columns][2:4] == [("label", ""), ("score", "")]
    assert made["label"].to_list() == ["positive"]
    again = classifier.add_columns(made, ("tweet", "text"))  # type: ignore[arg-type]
    assert again.columns[2 + len(ADDED)] == ("predicted_label", "")


@kinds
def test_what_is_not_a_text_is_an_error_in_its_row(
    classifier: Classifier, make: Callable[..., Any]
) -> None:
    """A column of numbers has an error in each row, and there is one warning."""
    with pytest.warns(UserWarning, match="2 of 2 values are neither text nor missing"):
        columns = _lists(classifier.add_columns(make(value=[1, 2]), "value"))
    assert columns["label"] == [None, None]
    assert [error.split(":")[0] for error in columns["error"]] == ["invalid_request"] * 2


INDEXES = {
    "repeated": [0, 1, 0, 1],
    "of one label": ["a"] * 4,
    "with None": [None, None, 1, 2],
    "descending": [3, 2, 1, 0],
    "levels": pd.MultiIndex.from_tuples([("a", 1), ("a", 1), ("b", 1), ("b", 2)], names=["x", "y"]),
    "times": pd.to_datetime(["2024-01-01"] * 4),
}


@pytest.mark.parametrize("index", INDEXES.values(), ids=INDEXES)
@pytest.mark.parametrize("dtype", ["object", "str", "string", "category", "string[pyarrow]"])
def test_rows_of_pandas_are_matched_by_position(
    classifier: Classifier, index: Any, dtype: str
) -> None:
    """Whatever the index and the type of the column: as many rows, each with its own result."""
    column = pd.Series(["love", None, "worst", "love"], index=index, dtype=dtype, name="text")
    frame = column.to_frame()
    made = classifier.add_columns(frame)
    assert made.index.equals(frame.index)
    assert made["text"].dtype == frame["text"].dtype
    assert _lists(made)["label"] == ["positive", None, "negative", "positive"]
    assert [*frame.columns] == ["text"]


def test_a_frame_stays_as_it_is_beside_the_columns_of_many_labels(tmp_path: Path) -> None:
    """pandas has nothing to warn of, and the names of its columns and its attributes stay."""
    bundle = make_bundle(tmp_path / "many", outputs=150, labels=[f"mood {n}" for n in range(150)])
    frame = pd.DataFrame({"text": ["love"]}).rename_axis(columns="mine")
    frame.attrs["from"] = "a survey"
    with Classifier(bundle, runners=1, threads=1) as classifier:
        made = classifier.add_columns(frame)
    assert made.shape == (1, 1 + 2 + 150 + 2)
    assert (made.columns.name, made.attrs) == ("mine", {"from": "a survey"})


def test_the_types_of_columns_do_not_depend_on_the_results(classifier: Classifier) -> None:
    """Tables of which one has no rows, one only errors, one only results can be put together."""
    for make in (_pandas, KINDS["pa.Table"]):
        tables = [
            classifier.add_columns(make(text=texts)) for texts in ([], [""], ["love"], ["", "it"])
        ]
        if make is _pandas:
            assert {str(table.dtypes[ADDED].to_dict()) for table in tables} == {
                str(tables[0].dtypes[ADDED].to_dict())
            }
        else:
            assert {str(table.select(ADDED).schema) for table in tables} == {
                str(tables[0].select(ADDED).schema)
            }


def test_arrow_keeps_types_metadata_and_odd_texts(classifier: Classifier) -> None:
    """Chunks, dictionaries, views and large strings; a text that is not UTF-8 fails alone."""
    bad = pa.array([b"love", b"caf\xe9", None], pa.binary()).view(pa.string())
    views = pa.array(["love", "worst"], pa.string_view())
    columns = {
        "chunked": pa.chunked_array([["love"], [], ["worst", None]]),
        "dictionary": pa.chunked_array([pa.array(["love", "worst", None]).dictionary_encode()]),
        "large": pa.array(["love", "worst", None], pa.large_string()),
        "view": pa.array(["love", "worst", None], pa.string_view()),
        "views": pa.DictionaryArray.from_arrays([0, 1, None], views),  # polars has categories so
        "bad": bad,
        "null": pa.nulls(3),
    }
    table = pa.table(columns).replace_schema_metadata({"pandas": "kept"})
    for name in columns:
        made = classifier.add_columns(table, name)
        assert made.schema.metadata == {b"pandas": b"kept"}
        assert made.select([*columns]).schema.equals(table.schema)
        labels = made["label"].to_pylist()
        if name == "bad":
            assert labels == ["positive", None, None]
            assert "not UTF-8" in made["error"].to_pylist()[1]
        else:
            assert labels == (["positive", "negative", None] if name != "null" else [None] * 3)
    assert classifier.classify(bad)[0].label == "positive"


def test_the_columns_are_those_of_the_command(
    classifier: Classifier, bundle: Path, tmp_path: Path
) -> None:
    """A table of Arrow gets what `sentiment classify` writes into a Parquet file."""
    table = pa.table({"text": [*TEXTS, "love " * 400], "label": ["x"] * 6})
    pq.write_table(table, tmp_path / "in.parquet")
    words = ["classify", "--model", str(bundle), "--input", str(tmp_path / "in.parquet")]
    assert main([*words, "--output", str(tmp_path / "out.parquet")]) == 0
    assert classifier.add_columns(table).equals(pq.read_table(tmp_path / "out.parquet"))


def test_a_batch_of_datasets_becomes_a_table_of_arrow(classifier: Classifier) -> None:
    """Dicts of lists would lose the types: datasets takes them from the first batch it gets."""

    class LazyBatch(UserDict[str, Any]):  # as datasets has it, which is not installed here
        pa_table = pa.table({"text": ["love"]})

    made = classifier.add_columns(LazyBatch())
    assert isinstance(made, pa.Table)
    assert made.schema.field("error").type == pa.string()


@cache
def _kept() -> Classifier:
    return Classifier(runners=1, threads=1)


def _added(table: Any) -> Any:
    return _kept().add_columns(table)


def test_what_datasets_and_dask_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that gets its Classifier from one with ``functools.cache``, as the docs say.

    datasets then finds in its cache what it has made. Dask refuses what it cannot hash.
    """
    monkeypatch.setenv("SENTIMENT_MAX_BATCH_TOKENS", "512")
    datasets = pytest.importorskip("datasets")
    given = datasets.Dataset.from_dict({"text": ["I love this!"]})
    made, again = (given.map(_added, batched=True) for _ in range(2))
    assert [*made["label"]] == ["positive"]
    assert made._fingerprint == again._fingerprint
    dask = pytest.importorskip("dask.dataframe")
    frame = dask.from_pandas(_pandas(text=["I love this!"]), npartitions=1)
    assert frame.map_partitions(_added).compute()["label"].to_list() == ["positive"]


@pytest.mark.filterwarnings("ignore")
def test_datasets(classifier: Classifier) -> None:
    """`map` adds the columns, with their types, also where the first batch has only errors."""
    datasets = pytest.importorskip("datasets")
    given = datasets.Dataset.from_dict({"text": [None, "love", "worst"]})
    made = given.map(classifier.add_columns, batched=True, batch_size=1)
    assert [*made["label"]] == [None, "positive", "negative"]
    assert classifier.classify(given["text"]).labels == [None, "positive", "negative"]


def test_options_are_those_of_classify(classifier: Classifier) -> None:
    """The overflow of long texts; a threshold is refused by a model with one label a text."""
    long = {"text": ["love " * 400]}
    assert classifier.add_columns(long, overflow="error")["error"][0].startswith("text_too_long: ")
    with pytest.raises(ServiceError, match="multi-label"):
        classifier.add_columns(long, threshold=0.5)


@pytest.mark.parametrize(
    ("table", "error", "words"),
    [
        (["love"], TypeError, "list is not a table"),
        ("love", TypeError, "str is not a table"),
        (pd.Series(["love"]), TypeError, "Series is not a table"),
        (pa.array(["love"]), TypeError, "StringArray is not a table"),
        (
            type("DataFrame", (), {"__module__": "modin"})(),
            TypeError,
            "modin.DataFrame is not a table",
        ),
        ({"text": "love"}, TypeError, "'text' holds one value"),
        ({"text": {"text": "love"}}, TypeError, "'text' holds one value"),
        ({"text": 3}, TypeError, "'text' holds one value"),
        ({"text": iter(["love"])}, TypeError, "'text' holds one value or an iterator"),
        ({"text": pa.array([2**60], pa.timestamp("us"))}, TypeError, r"timestamp\[us\] holds no"),
        ({"tweet": ["love"]}, UserError, "no column 'text'; its columns: 'tweet'"),
        (pd.DataFrame([["a", "b"]], columns=["text"] * 2), UserError, "several columns 'text'"),
        (pa.table([["a"], ["b"]], ["text"] * 2), UserError, "several columns 'text'"),
    ],
)
def test_what_is_not_a_table_is_refused(
    classifier: Classifier, table: Any, error: type[Exception], words: str
) -> None:
    """One line says what was wrong and what is accepted."""
    with pytest.raises(error, match=words):
        classifier.add_columns(table)


def test_a_lazy_frame_is_refused_unseen(classifier: Classifier) -> None:
    """The error says how to make it a table; polars does not warn of a look at its columns."""
    lazy = _polars(text=["love"]).lazy()
    with pytest.raises(TypeError, match=r"LazyFrame is not a table; .*collect\(\) of a LazyFrame"):
        classifier.add_columns(lazy)
