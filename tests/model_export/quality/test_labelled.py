"""Labelled texts: which files are read, what a label may be called, and what is refused."""

import csv
import gzip
import io
import json
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from openpyxl import Workbook
from sentiment_export.quality.labelled import Columns, Example, read_examples, read_texts
from sentiment_service.errors import UserError
from sentiment_service.files.text_files import FileOptions

from tests.support.tiny_bundle import LABELS

EMOTIONS = ["anger", "joy", "love, deep"]


def _write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_rows_are_read_as_they_stand(tmp_path: Path) -> None:
    """Quotes, spaces and other line separators belong to the text; blank rows do not count.

    A byte order mark, with which Windows' editors begin files, is no part of the first group.
    """
    content = '\ufeffen\tpositive\t"quoted, as is" \r\n\nes\tneutral\tuno\u2028dos\x0btres\n'
    assert read_examples(_write(tmp_path / "x.tsv", content), LABELS) == [
        Example("en", ("positive",), '"quoted, as is" '),
        Example("es", ("neutral",), "uno\u2028dos\x0btres"),
    ]


@pytest.mark.parametrize(
    ("labels", "written", "meant"),
    [
        (LABELS, "POS", "positive"),
        (LABELS, "Neutral", "neutral"),
        (LABELS, "LABEL_0", "negative"),
        (["POS", "NEG", "MIXED"], "positive", "POS"),
        (["1 star", "2 stars"], "LABEL_1", "2 stars"),
        (["Gut", "Schlecht"], "gut", "Gut"),
        ([" Gut", "pos "], " Gut", " Gut"),
        ([" Gut", "pos "], "positive", "pos "),
        (["neg", "negative", "positive"], "neg", "neg"),
        (["LABEL_1", "LABEL_0"], "LABEL_1", "LABEL_1"),
        (["LABEL_1", "LABEL_0"], "label_1", None),
        (["neg", "negative", "positive"], "NEG", None),
    ],
)
def test_labels_may_be_spelled_as_in_the_checkpoint(
    tmp_path: Path, labels: list[str], written: str, meant: str | None
) -> None:
    """In other letter cases, by position, or in another spelling, if only one can be meant.

    Spaces at the ends of a label do not count.
    """
    path = _write(tmp_path / "x.tsv", f"en\t{written}\tok\n")
    if meant is None:
        with pytest.raises(UserError, match=f"label '{written}' is not one of"):
            read_examples(path, labels)
    else:
        assert [example.label for example in read_examples(path, labels)] == [meant]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("en\tpositive\tok\nen\tpositive\n", ":2: expected .* found 2 columns"),
        ("en\tpositive\tone\ttwo\n", ":1: expected .* found 4 columns"),
        ("just a text\n", ":1: expected .* found 1 columns"),
        ("en\tneutral\tok\n\nen\tgood\tok\n", ":3: label 'good' is not one of"),
        ("en\tLABEL_3\tok\n", ":1: label 'LABEL_3' is not one of"),
        ("en\tneutral\tok\nen\tneutral\t\n", ":2: the text is blank"),
        ("en\tneutral\t \u200b\n", ":1: the text is blank"),
        ("en\tneutral\ta\0b\n", ":1: the text .* holds a NUL character"),
        ("en\t \tok\n", ":1: the row has no label"),
        ("en\t2\tok\n", ":1: label '2' is not one of the model's: negative, neutral, positive"),
        ("", "holds no labelled texts"),
        ("\n \n", "holds no labelled texts"),
        (b"en\tpositive\t\xff\n", "is not text in UTF-8"),
        (None, "there is no file"),
    ],
)
def test_a_malformed_row_is_named(tmp_path: Path, content: str | bytes | None, says: str) -> None:
    """File and row, in one line; or that the file is not there."""
    path = tmp_path / "labelled.tsv"
    if content is not None:
        _write(path, content)
    with pytest.raises(UserError, match=says) as caught:
        read_examples(path, LABELS)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


REVIEWS: list[dict[str, object]] = [
    {"id": 1, "tweet": "good, so good", "sentiment": "POS", "language": "en"},
    {"id": 2, "tweet": "bad\nday", "sentiment": "label_0", "language": "es"},
]


def _table(path: Path, rows: list[dict[str, object]]) -> Path:
    """The rows as the kind of file that the name says."""
    text = io.StringIO(newline="")
    match path.suffix:
        case ".parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
            return path
        case ".xlsx":
            book = Workbook()
            for cells in (list(rows[0]), *(list(row.values()) for row in rows)):
                book.worksheets[0].append(cells)
            book.save(path)
            return path
        case ".zip":
            inner = _table(path.with_suffix(""), rows)
            with ZipFile(path, "w") as archive:
                archive.write(inner, inner.name)
            return path
        case ".csv" | ".tsv":
            separator = {".csv": ",", ".tsv": "\t"}[path.suffix]
            table = csv.DictWriter(text, list(rows[0]), delimiter=separator)
            table.writeheader()
            table.writerows(rows)
        case ".json":
            json.dump(rows, text)
        case _:
            text.writelines(json.dumps(row) + "\n" for row in rows)
    content = text.getvalue().encode()
    return _write(path, gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.mark.parametrize(
    "kind", ["csv", "tsv", "json", "jsonl", "jsonl.gz", "parquet", "xlsx", "csv.zip"]
)
def test_tables_are_read_by_the_names_of_their_columns(tmp_path: Path, kind: str) -> None:
    """Their order and other columns do not matter; a group is read on request."""
    path = _table(tmp_path / f"x.{kind}", REVIEWS)
    columns = Columns("tweet", "sentiment", "language")
    assert read_examples(path, LABELS, columns) == [
        Example("en", ("positive",), "good, so good"),
        Example("es", ("negative",), "bad\nday"),
    ]
    ungrouped = read_examples(path, LABELS, Columns("tweet", "sentiment"))
    assert [example.group for example in ungrouped] == ["", ""]


def test_a_blank_row_of_a_workbook_is_no_example(tmp_path: Path) -> None:
    """It has neither a text nor a label, so it is no fault of the file."""
    first, second = REVIEWS
    path = _table(tmp_path / "x.xlsx", [first, dict.fromkeys(first), second])
    assert len(read_examples(path, LABELS, Columns("tweet", "sentiment"))) == 2


@pytest.mark.parametrize(
    ("value", "group"),
    [(0, "0"), (False, "False"), (1, "1"), ("", ""), (None, ""), (float("nan"), "")],
)
def test_a_group_keeps_its_name(tmp_path: Path, value: object, group: str) -> None:
    """Also one whose name counts as false in Python; a gap is no group."""
    path = _table(tmp_path / "x.jsonl", [{"text": "a", "label": "positive", "of": value}])
    (example,) = read_examples(path, LABELS, Columns(group="of"))
    assert example.group == group


@pytest.mark.parametrize(
    "content",
    [
        "label\ttext\npositive\tgood café\n",
        "id\ttext\tlabel\n1\tgood café\tpositive\n",
        "\ufefftext\tlabel\ngood café\tpositive\n",
    ],
)
def test_tsv_with_the_usual_names_needs_no_flags(tmp_path: Path, content: str) -> None:
    """A first row with the names text and label is a header, and no row."""
    path = tmp_path / "labelled.tsv"
    path.write_text(content, encoding="utf-8")
    assert read_examples(path, LABELS) == [Example("", ("positive",), "good café")]


def test_texts_in_another_encoding(tmp_path: Path) -> None:
    """Also of TSV without a header."""
    path = tmp_path / "texts.tsv"
    path.write_text("en\tpositive\tgood café\n", "windows-1252")
    found, refused, _ = read_texts(path, file_options=FileOptions(encoding="windows-1252"))
    assert (found, refused) == (["good café"], 0)


def test_labelled_texts_in_another_encoding(tmp_path: Path) -> None:
    """Tables and TSV without a header, also in an archive; an encoding of Parquet is refused."""
    rows = "en\tpositive\tgood café\n"
    names = Columns("tweet", "sentiment")
    utf16 = FileOptions(encoding="utf-16")
    for path, content, columns in (
        (tmp_path / "a.tsv", rows, Columns()),
        (tmp_path / "b.tsv", f"x\tsentiment\ttweet\n{rows}", names),
        (tmp_path / "c.csv", f"x\tsentiment\ttweet\n{rows}".replace("\t", ","), names),
    ):
        path.write_text(content, "utf-16")
        with ZipFile(tmp_path / "packed.zip", "w") as archive:
            archive.write(path, path.name)
        for file in (path, tmp_path / "packed.zip"):
            (example,) = read_examples(file, LABELS, replace(columns, file=utf16))
            assert (example.labels, example.text) == (("positive",), "good café")
    with pytest.raises(UserError, match="--encoding is for text"):
        read_examples(_table(tmp_path / "x.parquet", REVIEWS), LABELS, replace(names, file=utf16))


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("joy", ("joy",)),
        ("joy, ANGER", ("anger", "joy")),
        ("LABEL_1,joy", ("joy",)),
        ("love, deep", ("love, deep",)),
        ("", ()),
    ],
)
def test_several_labels_are_separated_by_commas(
    tmp_path: Path, written: str, meant: tuple[str, ...]
) -> None:
    """In any order, and none at all is an answer, too; a label may itself have a comma."""
    path = _write(tmp_path / "x.tsv", f"en\t{written}\tok\n")
    (example,) = read_examples(path, EMOTIONS, multi_label=True)
    assert example.labels == meant


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_several_labels_may_be_a_list(tmp_path: Path, kind: str) -> None:
    """In JSONL and Parquet, so that no label needs a separator."""
    rows: list[dict[str, object]] = [
        {"text": "a", "label": ["love, deep", "anger"]},
        {"text": "b", "label": []},
    ]
    examples = read_examples(_table(tmp_path / f"x.{kind}", rows), EMOTIONS, multi_label=True)
    assert [example.labels for example in examples] == [("anger", "love, deep"), ()]


def test_several_labels_may_be_json_in_a_cell(tmp_path: Path) -> None:
    """So does ``sentiment classify`` write them into CSV. A label may look like the begin of it."""
    rows: list[dict[str, object]] = [
        {"text": "a", "label": '["love, deep", "anger"]'},
        {"text": "b", "label": "[]"},
        {"text": "c", "label": "[sic],joy"},
    ]
    path = _table(tmp_path / "x.csv", rows)
    examples = read_examples(path, [*EMOTIONS, "[sic]"], multi_label=True)
    assert [one.labels for one in examples] == [("anger", "love, deep"), (), ("joy", "[sic]")]


def test_not_all_of_a_thousand_labels_are_named(tmp_path: Path) -> None:
    """So that what is wrong, and the nearest label, can be found in the message."""
    path = _write(tmp_path / "x.csv", "text,label\na,clas 7\n")
    with pytest.raises(UserError, match=r"class 99 … \(the nearest is class 7\)") as caught:
        read_examples(path, [f"class {number}" for number in range(1_000)])
    assert len(str(caught.value)) < 1_500


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"text": "a", "label": None}, "x.jsonl, row 2: the row has no label"),
        ({"text": "a"}, "x.jsonl, row 2: the row has no label"),
        ({"text": "a", "label": float("nan")}, "row 2: the row has no label"),
        ({"text": "a", "label": " "}, "row 2: the row has no label"),
        ({"text": None, "label": "neutral"}, "row 2: line 2 has no 'text'"),
        ({"text": 3, "label": "neutral"}, "row 2: line 2: 'text' is not text"),
        ({"text": " ", "label": "neutral"}, "row 2: the text is blank"),
        ({"text": "a", "label": ["neutral", "positive"]}, "one label, but the row has 2"),
        ({"text": "a", "label": "postive"}, r"'postive' is not .* \(the nearest is positive\)"),
        ({"text": "a", "label": 2}, "'2' is not .* or their positions, LABEL_0"),
        ({"text": "a", "label": "secret " * 9}, "label of 62 characters is not one of"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(
    tmp_path: Path, row: dict[str, object], says: str
) -> None:
    """By its number, and without repeating a text that stands where a label should."""
    rows: list[dict[str, object]] = [{"text": "a", "label": "neutral"}, row]
    with pytest.raises(UserError, match=says) as caught:
        read_examples(_table(tmp_path / "x.jsonl", rows), LABELS)
    assert "secret" not in str(caught.value)


def test_the_first_of_many_bad_rows_is_named(tmp_path: Path) -> None:
    """With the number of the others, so that nobody corrects a thousand rows one by one."""
    path = _write(tmp_path / "x.csv", "text,label\na,good\nb,positive\nc,\nd,bad\n")
    with pytest.raises(UserError, match=r"row 1: label 'good' .*; 2 more rows cannot be used"):
        read_examples(path, LABELS)


@pytest.mark.parametrize(
    ("name", "columns", "says"),
    [
        (
            "x.csv",
            Columns(),
            "no column 'text'; --column accepts one of: 'id', 'tweet', 'sentiment'",
        ),
        ("x.csv", Columns("tweet"), "no column 'label'; --label-column accepts one of: 'id'"),
        ("x.csv", Columns("tweet", "sentiment", "x"), "no column 'x'; --group-column accepts"),
        (
            "x.txt",
            Columns("tweet"),
            "x.txt has no named columns: it does not end in .csv .tsv .jsonl",
        ),
        ("none.csv", Columns(), "there is no file .*none.csv"),
    ],
)
def test_a_wrong_column_is_named_with_its_flag(
    tmp_path: Path, name: str, columns: Columns, says: str
) -> None:
    """And with the columns that there are."""
    _table(tmp_path / "x.csv", REVIEWS)
    with pytest.raises(UserError, match=says):
        read_examples(tmp_path / name, LABELS, columns)


@pytest.mark.parametrize(("name", "content"), [("x.jsonl", ""), ("x.csv", "text,label\n")])
def test_a_table_without_rows_is_refused(tmp_path: Path, name: str, content: str) -> None:
    """There is nothing to score."""
    with pytest.raises(UserError, match="holds no labelled texts"):
        read_examples(_write(tmp_path / name, content), LABELS)
