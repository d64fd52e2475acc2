"""How each kind of file is read, and how the results are written."""

import bz2
import csv
import datetime
import gzip
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from openpyxl import Workbook
from sentiment_service.errors import CannotContinue, ServiceError, UserError
from sentiment_service.files.csv_table import rows_without_header
from sentiment_service.files.formats import open_table, output_format
from sentiment_service.files.results import ResultColumns, ResultItem, free_names
from sentiment_service.files.table import CHUNK_CHARS, CHUNK_ROWS, Table, json_text
from sentiment_service.files.text_files import BOMB_BYTES, BOMB_TIMES, START_BYTES, FileOptions

COLUMNS = ResultColumns(["bad", "good"], multi_label=False)
GOOD: ResultItem = {"label": "good", "score": 0.75, "scores": {"bad": 0.25, "good": 0.75}}
FAILED: ResultItem = {"error": {"code": "empty_text", "message": "no text"}}

GZIPPED = gzip.compress(b"text\nlove\n", mtime=0)  # of no time: tests have the same names each time


class _Input:
    """A file that can be read as a table, again and again."""

    def __init__(self, path: Path, column: str = "text", **options: str) -> None:
        self._path, self._column, self._options = path, column, FileOptions(**options)
        self.table()

    def table(self) -> Table:
        """The table, which can be read once."""
        return open_table(self._path, self._column, self._options)


def _texts(source: _Input) -> list[str]:
    """Each row's text, or the code and message of its error."""
    texts = [text for chunk in source.table().chunks() for text in chunk.texts]
    return [f"{t.code}: {t.detail}" if isinstance(t, ServiceError) else t for t in texts]


def _written(source: _Input, suffix: str, path: Path, results: Sequence[ResultItem] = ()) -> bytes:
    """The file with these results for the first texts, and ``GOOD`` for the others."""
    table, left = source.table(), list(results)
    output = output_format(suffix, table, COLUMNS)
    content = output.header
    for chunk in table.chunks():
        content += output.chunk(chunk, [left.pop(0) if left else GOOD for _ in chunk.texts])
    (path / "chunks").write_bytes(content)
    output.finish(path / "chunks").rename(path / "whole")
    return (path / "whole").read_bytes()


def _file(path: Path, name: str, content: bytes) -> Path:
    (path / name).write_bytes(content)
    return path / name


def _workbook(
    *rows: Sequence[Any], more: dict[str, Sequence[Sequence[Any]]] | None = None
) -> bytes:
    book = Workbook()
    sheets = {"First": rows, **(more or {})}
    for name, content in sheets.items():
        sheet = book.create_sheet(name)
        for row in content:
            sheet.append(row)
        sheet.row_dimensions[sheet.max_row + 2].height = 30  # a row without cells
    book.remove(book.worksheets[0])
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


def test_lines(tmp_path: Path) -> None:
    """Each line is a text, even an empty one. A byte order mark is not part of the first text."""
    path = _file(tmp_path, "a.txt", "\ufefflove\r\n\né \u2028 so\nend".encode())
    table = _Input(path)
    assert _texts(table) == ["love", "", "é \u2028 so", "end"]
    assert (
        _written(table, ".txt", tmp_path, [GOOD, FAILED])
        == (
            "good\t0.7500\tlove\nerror\tempty_text\t\ngood\t0.7500\té so\ngood\t0.7500\tend\n"
        ).encode()
    )


def test_csv_cells_stay_unchanged(tmp_path: Path) -> None:
    """Quotes, commas, line ends in cells and bytes that are not UTF-8 are written unchanged."""
    content = (
        b'\xef\xbb\xbfid,text\r\n1,"a ""b"", c"\r\n2,"two\nlines"\r\n\r\n3,\xff\r\n4,"cr\rin"\n5,\n'
    )
    table = _Input(_file(tmp_path, "a.csv", content))
    assert _texts(table) == ['a "b", c', "two\nlines", "\udcff", "cr\rin", ""]
    written = _written(table, ".csv", tmp_path, [GOOD, FAILED])
    assert written.startswith(
        b'id,text,label,score,score_bad,score_good,warnings,error\n1,"a ""b"", c",good,'
    )
    assert b"\n3,\xff,good,0.75,0.25,0.75,,\n" in written
    rows = list(csv.reader(written.decode("utf-8", "surrogateescape").splitlines(keepends=True)))
    assert rows[2] == ["2", "two\nlines", "", "", "", "", "", "empty_text: no text"]
    assert rows[4] == ["4", "cr\rin", "good", "0.75", "0.25", "0.75", "", ""]


def test_csv_rows_of_another_width(tmp_path: Path) -> None:
    """A row with too few or too many cells fails in its place and names its line; others do not.

    Surplus cells are written as part of the last one.
    """
    table = _Input(_file(tmp_path, "a.csv", b"id,text\n1\n2,two\n3,three,more\n4,four\n"))
    assert _texts(table) == [
        "invalid_request: line 2: the header has 2 columns, but this row has 1",
        "two",
        "invalid_request: line 4: the header has 2 columns, but this row has 3",
        "four",
    ]
    assert _written(table, ".csv", tmp_path).splitlines()[1:4] == [
        b"1,,good,0.75,0.25,0.75,,",
        b"2,two,good,0.75,0.25,0.75,,",
        b'3,"three,more",good,0.75,0.25,0.75,,',
    ]
    tabs = _Input(_file(tmp_path, "a.tsv", b"text\nx\ty\t\n\n"))
    assert json.loads(_written(tabs, ".jsonl", tmp_path))["text"] == "x\ty\t"


NOT_LINES = r"is not JSON lines.* a JSON list must be in a file that ends in \.json"
NOT_A_LIST = r"is not a JSON list of texts or objects \(.*\); .* must end in \.jsonl"


def _parquet(columns: Sequence[pa.Array], names: Sequence[str]) -> bytes:
    """A Parquet file."""
    file = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_arrays(columns, names), file)
    content: bytes = file.getvalue().to_pybytes()
    return content


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [
        ("a.txt", b"", b"text"),
        ("a.csv", b"id,text", b"id,text"),
        ("a.xlsx", _workbook(["id", "text"]), b"id,text"),
        ("a.jsonl", b"\n", None),
        ("a.json", b"[]", None),
    ],
    ids=["lines", "CSV", "workbook", "JSONL", "JSON"],
)
def test_a_file_without_rows(
    tmp_path: Path, name: str, content: bytes, columns: bytes | None
) -> None:
    """Its output has none; its columns are written, if it has any."""
    table = _Input(_file(tmp_path, name, content))
    assert _texts(table) == []
    header = b"".join((columns + b"," if columns else b"", b"label,score,score_bad,score_good,"))
    assert _written(table, ".csv", tmp_path) == header + b"warnings,error\n"


@pytest.mark.parametrize(
    ("name", "content", "column", "texts"),
    [
        ("another delimiter in a name.csv", b"text; raw\nx;y\n", "text; raw", ["x;y"]),
        ("an empty object.json", b"[{}]", "text", ["empty_text: item 1 has no 'text'"]),
        # Longer than Python's csv reads by default.
        ("a long cell.csv", b"text\n" + b"x" * 100_000 + b"\n", "text", ["x" * 100_000]),
    ],
)
def test_a_file_that_is_not_refused(
    tmp_path: Path, name: str, content: bytes, column: str, texts: list[str]
) -> None:
    """What only looks like one of the faults above is read."""
    assert _texts(_Input(_file(tmp_path, name, content), column)) == texts


@pytest.mark.parametrize(
    ("name", "content", "written"),
    [
        ("a.tsv", b'id\ttext\n1\t"a ""b"",\tc"\n', '{"id": "1", "text": "a \\"b\\",\\tc", '),
        ("a.json", b'\xef\xbb\xbf[\n "love" , "it"]', '{"text": "love", '),
        ("a.json", b'[{"id":\n 1.10,\r\n "text": "a\\nb"}]', '{"id":  1.10,   "text": "a\\nb", '),
    ],
)
def test_tsv_and_json_lists(tmp_path: Path, name: str, content: bytes, written: str) -> None:
    """Quotes of TSV are those of CSV. An item of a list is a text or an object, which is kept."""
    table = _Input(_file(tmp_path, name, content))
    assert _written(table, ".jsonl", tmp_path).decode().startswith(written)
    packed = _Input(_file(tmp_path, f"{name}.gz", gzip.compress(content, mtime=0)))
    assert _texts(packed) == _texts(table)
    again = _file(tmp_path, "again.tsv", _written(table, ".tsv", tmp_path))
    assert _texts(_Input(again)) == _texts(table)


def test_items_of_a_json_list_without_a_text(tmp_path: Path) -> None:
    """Each has an error in its place, and the others do not."""
    content = b'["\xc3\xa9 \xc3\xa9", null, 3, ["x"], {"id": 1}, {"text": ""}, "\xff"]'
    assert _texts(_Input(_file(tmp_path, "a.json", content))) == [
        "é é",
        "empty_text: item 2 has no 'text'",
        "invalid_request: item 3: 'text' is not text",
        "invalid_request: item 4: 'text' is not text",
        "empty_text: item 5 has no 'text'",
        "",
        "\udcff",
    ]


@pytest.mark.parametrize(
    ("rows", "texts"),
    [
        ('1,a\n2,"open\n3,b\n', ["a", 3, "b"]),  # to the end of the file
        ('1,a\n2,"open\n3,b\n4,"closed"\n', ["a", 3, "b", "closed"]),  # to the next quote
        ('1,"open\r\n2,""\r\n3,"""closed"""\r\n', [2, "", '"closed"']),
        ('1,"I ""love"" it"\n2,"I "love" it"\n3,b\n', ['I "love" it', 3, "b"]),  # not doubled
        ('"two\nlines","open\n2,"closed"\n', [2, 3, "closed"]),  # it opens a line later
        ('1,"open\n\n2,"a, b"\n3,"open', [2, "a, b", 5]),
        ('1,"open\r2,b\r', [2, "b"]),  # CR alone
        ('1,"open\n' + "2,x\n" * 200, [2, *["x"] * 200]),
    ],
)
def test_a_quote_that_is_not_closed(tmp_path: Path, rows: str, texts: list[str | int]) -> None:
    """Only the row in which it opens has an error, which names its line; the next lines are rows.

    A number stands for an error with this line.
    """
    found = _texts(_Input(_file(tmp_path, "a.csv", f"id,text\n{rows}".encode())))
    assert len(found) == len(texts)
    for one, expected in zip(found, texts, strict=True):
        if isinstance(expected, str):
            assert one == expected
        else:
            assert one.startswith(f"invalid_request: line {expected}: ")


def test_a_quote_before_much_text(tmp_path: Path) -> None:
    """Looking for its end stops at the size limit of a cell, and takes no row."""
    limit = csv.field_size_limit(500)
    try:
        content = b'id,text\n1,"open\n' + b"2,x\n" * 1_000 + b'3,"y"\n'
        found = _texts(_Input(_file(tmp_path, "a.csv", content)))
    finally:
        csv.field_size_limit(limit)
    assert "line 2: the row cannot be read (field larger than field limit (500)" in found[0]
    assert found[1:] == ["x"] * 1_000 + ["y"]


THREAD = """1\t"This phone is great, they said
2\tworst battery ever
3\tyou will never charge it they said"
4\tmeh
"""


@pytest.mark.parametrize(
    ("rows", "texts"),
    [
        (
            THREAD,
            [
                '"This phone is great, they said',
                "worst battery ever",
                'you will never charge it they said"',
                "meh",
            ],
        ),
        ('1\t"Great" said nobody\n2\tmeh\n', ['"Great" said nobody', "meh"]),
        ('1\t"open\n2\tmeh', ['"open', "meh"]),
        # Whoever writes one quote like any other character writes all so.
        ('1\t"Great" said nobody\n2\t"meh"\n', ['"Great" said nobody', '"meh"']),
        # A cell in quotes, also over several lines.
        ('1\t"what a ""lovely"" day"\n2\tmeh', ['what a "lovely" day', "meh"]),
        ('1\t"two\r\nlines"\n2\t"a\tb"\n', ["two\r\nlines", "a\tb"]),
        # The next quote is in another column.
        ('1\t"open\nb"\t2\n3\tmeh\n', ['"open', "2", "meh"]),
        ('"1\ta\n2"\tb\n', ["a", "b"]),
        ('"1\n2"\tb\n', ["b"]),
        ('1\tsize 5" or 6"\n2\t6"\n', ['size 5" or 6"', '6"']),
    ],
)
def test_quotes_behind_tabs(tmp_path: Path, rows: str, texts: list[str]) -> None:
    """A quote never takes other rows into its cell; it is a character if it is none of CSV.

    The labelled files of the exporter have the same rule.
    """
    assert _texts(_Input(_file(tmp_path, "a.tsv", f"id\ttext\n{rows}".encode()))) == texts
    plain = _file(tmp_path, "plain.tsv", rows.encode())
    assert [row.cells[1] for row in rows_without_header(plain, 2)] == texts
    bars = f"id\ttext\n{rows}".replace("\t", "|").encode()
    assert _texts(_Input(_file(tmp_path, "a.csv", bars))) == [t.replace("\t", "|") for t in texts]
    packed = _file(tmp_path, "a.tsv.gz", gzip.compress(f"id\ttext\n{rows}".encode()))
    assert _texts(_Input(packed)) == texts


def test_a_quote_far_behind_the_beginning(tmp_path: Path) -> None:
    """It is judged by itself if the beginning of the file has none."""
    rows = [f"{row}\tlove it" for row in range(100_000)]
    rows[90_000:90_003] = THREAD.splitlines()[:3]
    texts = _texts(_Input(_file(tmp_path, "a.tsv", "\n".join(["id\ttext", *rows]).encode())))
    assert len(texts) == 100_000
    assert texts[90_000:90_003] == [row.split("\t")[1] for row in THREAD.splitlines()[:3]]


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ('1,a\n2,"great, they said\n3,worst, I hate it\n4,they said"\n5,b\n', 3),
        ('1,"two\nlines"\n', None),
        ('1,"two\nlines, really"\n', 2),
        ('1,"two, really\nlines"\n', None),
    ],
)
def test_a_cell_of_several_lines_that_could_be_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, rows: str, line: int | None
) -> None:
    """In CSV it is one cell, and a warning names its line: no line vanishes in silence."""
    found = _texts(_Input(_file(tmp_path, "a.csv", f"id,text\n{rows}".encode())))
    assert any("\n" in text for text in found)
    assert len(caplog.messages) == (line is not None)
    assert all(f"a.csv, line {line}: a cell in quotes has" in text for text in caplog.messages)


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.tsv", "a.jsonl", "a.txt.gz", "a.csv.gz"])
@pytest.mark.parametrize("ends", ["\r", "\r\n", "\n", "mixed"])
def test_line_ends(tmp_path: Path, name: str, ends: str) -> None:
    """LF, CR LF and CR alone end a line, also in one file."""
    texts = ["love", "worst ever", "meh", "é"]
    lines = [json.dumps({"text": text}) if "jsonl" in name else text for text in texts]
    lines = (["text"] if "sv" in name else []) + lines
    each = ["\r", "\n", "\r\n", "\r", "\n"] if ends == "mixed" else [ends] * 5
    content = "".join(map("".join, zip(lines, each, strict=False))).encode()
    content = gzip.compress(content, mtime=0) if name.endswith(".gz") else content
    assert _texts(_Input(_file(tmp_path, name, content))) == texts


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        ("sep=;\r\nid;text\r\n1;love\r\n", ["id", "text"]),
        ('"sep=|"\nid|text\n1|love', ["id", "text"]),
        ("\n\r\nsep=;\n\nid;text\n1;love\n", ["id", "text"]),
        ("\ufeffsep=\t\nid\ttext\n1\tlove\n", ["id", "text"]),
        ("\n\nid;text\n1;love\n", ["id", "text"]),
        ("\r\n\r\nid,text\r\n1,love\r\n", ["id", "text"]),
        ('"Question 1:\nHow was it?";text\n1;love\n', ["Question 1:\nHow was it?", "text"]),
        ('\n"Question, 1:\n\n;How?"|text\n1|love\n', ["Question, 1:\n\n;How?", "text"]),
        ('text;"sep=,"\nlove;1\n', ["text", "sep=,"]),
    ],
)
@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_headers_of_spreadsheets(
    tmp_path: Path, name: str, content: str, columns: list[str]
) -> None:
    """A line `sep=`, blank lines before the header and names of several lines, as Excel writes."""
    source = _Input(_file(tmp_path, name, content.encode()))
    assert source.table().columns == columns
    assert _texts(source) == ["love"]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".txt"])
@pytest.mark.parametrize(
    ("encoding", "named"),
    [
        ("utf-16", "UTF-16"),
        ("utf-16-le", "UTF-16LE"),
        ("utf-16-be", "UTF-16BE"),
        ("utf-32", "UTF-32"),
        ("windows-1252", "WINDOWS-1252"),
    ],
)
def test_text_in_another_encoding(tmp_path: Path, suffix: str, encoding: str, named: str) -> None:
    """The file is refused with the name of a likely encoding; with that, it is read."""
    texts = ["text", "le café", "naïve"]
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    content = "\r\n".join(lines if suffix == ".jsonl" else texts)
    path = _file(tmp_path, f"a file{suffix}", content.encode(encoding))
    with pytest.raises(UserError, match=rf"not text in UTF-8.* add --encoding {named.lower()}, or"):
        _Input(path)
    assert _texts(_Input(path, encoding=named.lower()))[-2:] == texts[1:]


def test_bytes_that_an_encoding_does_not_have(tmp_path: Path) -> None:
    """Only their text fails, and is written with U+FFFD. A byte order mark is no text."""
    path = _file(tmp_path, "a.csv", b"text\ncaf\xe9\nbad \x81\n")
    source = _Input(path, encoding="cp1252")
    assert _texts(source) == ["café", "bad \udc7f"]
    assert b"\nbad \xef\xbf\xbd,good," in _written(source, ".csv", tmp_path)
    marked = _file(tmp_path, "b.csv", "text\nnaïve\n".encode("utf-16"))
    for encoding in ("utf-16", "UTF-16LE", "utf_16_be"):  # the mark of the file decides
        assert _texts(_Input(marked, encoding=encoding)) == ["naïve"]
    items = _file(tmp_path, "a.json", '["café", "naïve"]'.encode("utf-16"))
    assert _texts(_Input(items, encoding="utf-16")) == ["café", "naïve"]


def _zip(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with ZipFile(content, "w", ZIP_DEFLATED) as archive:
        for name, file in files.items():
            archive.writestr(name, file)
    return content.getvalue()


def _zstd(content: bytes) -> bytes:
    compressed: bytes = pa.compress(content, "zstd", asbytes=True)
    return compressed


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": _zstd,
    ".zip": lambda content: _zip(
        {"__MACOSX/._table.csv": b"", ".DS_Store": b"", "table.csv": content}
    ),
}


@pytest.mark.parametrize("ending", PACKERS)
def test_compressed_files(tmp_path: Path, ending: str) -> None:
    """They are read as what they hold; half of one is named as damaged, wherever that is seen."""
    rows = "".join(f"love {row} {row * 7919 % 10007}\n" for row in range(100_000))
    content = b"text\n" + rows.encode()
    name = "a.zip" if ending == ".zip" else f"a.csv{ending}"
    packed = PACKERS[ending](content)
    source = _Input(_file(tmp_path, name, packed))
    texts = _texts(source)
    assert (len(texts), texts[-1]) == (100_000, rows.splitlines()[-1])
    assert (source.table().expected_rows(1) or 0) >= 1
    half = _file(tmp_path, f"half_{name}", packed[: len(packed) // 2])
    with pytest.raises(CannotContinue, match=rf"half_{name} cannot be unpacked: ."):
        _texts(_Input(half))


DAY = datetime.datetime(2024, 2, 29, 12, 30)  # noqa: DTZ001 - Excel has no zones


def test_workbooks(tmp_path: Path) -> None:
    """The first sheet or the named one, with the types of its cells.

    A blank row between others is an error in its place, so that results match the sheet; those
    before the names and after the last row are skipped. Line ends of Windows are read as such.
    """
    rows: list[list[Any]] = [
        [],
        ["id", "text", None, "day"],
        [1, "love", "more", DAY],
        [],
        [2, None, None, None, 0.5],
    ]
    rows += [[3, 7], [4, "#N/A"], [5, '=CONCAT("lo","ve")'], [6, "two_x000D_\nlines, é"]]
    path = _file(tmp_path, "a.XLSX", _workbook(*rows, more={"Other": [["text"], ["worst"]]}))
    source = _Input(path)
    assert _texts(source) == [
        "love",
        "empty_text: row 4 has no 'text'",
        "empty_text: row 5 has no 'text'",
        "invalid_request: row 6: 'text' is not text",
        "empty_text: row 7 has the error #N/A of a formula",
        "empty_text: row 8 has no 'text'",  # nothing has computed it
        "two\r\nlines, é",
    ]
    assert _texts(_Input(path, sheet="Other")) == ["worst"]
    lines = _written(source, ".csv", tmp_path).decode().splitlines()
    assert lines[0].startswith("id,text,day,column C,column E,label,")
    assert lines[1].startswith("1,love,2024-02-29 12:30:00,more,,good,")
    made = pq.read_table(pa.BufferReader(_written(source, ".parquet", tmp_path)))
    assert made["id"].to_pylist() == [1, None, 2, 3, 4, 5, 6]
    assert made["column E"].to_pylist()[:3] == [None, None, 0.5]
    last = _written(source, ".jsonl", tmp_path).splitlines()[-1]
    assert json.loads(last)["text"] == "two\r\nlines, é"


def test_a_workbook_whose_column_is_named_like_one_without_a_name(tmp_path: Path) -> None:
    """The column without a name gets another one, so that no cell replaces another."""
    rows: list[list[Any]] = [["text", "column C", None, "unnamed column C"]]
    rows += [["love", 1, 2, 3], ["it", 4, None, 5]]
    source = _Input(_file(tmp_path, "a.xlsx", _workbook(*rows)))
    first, second = map(json.loads, _written(source, ".jsonl", tmp_path).splitlines())
    names = ["column C", "unnamed column C", "unnamed unnamed column C"]
    assert [first[name] for name in names] == [1, 3, 2]
    assert [second.get(name) for name in names] == [4, 5, None]


ODS = b"PK\x03\x04" + bytes(26) + b"mimetypeapplication/vnd.oasis.opendocument.spreadsheet"
XLSX = b"PK\x03\x04\x14" + bytes(20) + b"xl/workbook.xml"
XLS = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500)
UTF_16 = gzip.compress("café".encode("utf-16-le"), mtime=0)


def _encrypted() -> bytes:
    content = bytearray(_zip({"a.csv": b"text\nlove\n"}))
    content[6] |= 1  # the flag of encryption, in the header of the member and in the list of all
    content[content.index(b"PK\x01\x02") + 8] |= 1
    return bytes(content)


PAGES = _parquet([pa.array(["x" * 50] * 10)], ["text"])
# A file of a name with a content, and what is said of it.
REFUSED: list[tuple[str, bytes, str]] = [
    ("a.csv", b"", "is empty"),
    ("a.csv", b"\n\n", "is empty"),
    ("a.csv", b"\xef\xbb\xbf", "is empty"),
    ("a.csv", b"id|x\n", r"no column 'text'; --column accepts one of: 'id\|x'"),
    ("a.csv", b'"id,text\n1,x\n', "names of the columns cannot be read .*; a quote"),
    ("a.csv", b"id,text,id\n1,x,2\n", "several columns with the same name: 'id'; give each"),
    # Names that differ only in bytes that are not UTF-8.
    ("a.csv", b"text,\xe9,\xe8\n" + "é".encode() * 4, "with the same name: '\ufffd'"),
    ("a file.jsonl", b'[{"text": "love"}, {"text": "it"}]', NOT_LINES),
    ("a file.jsonl", b'[\n{"text": "love"},\n{"text": "it"}\n]\n', NOT_LINES),
    ("a file.jsonl", b'\n  [{"text": "love"},\n{"text": "it"}]\n', NOT_LINES),
    ("a file.jsonl", b'{\n  "text": "love"\n}\n', NOT_LINES),
    ("a.jsonl", b'{"id": 1}\n{"tweet": "x"}\n', "no column 'text'.*: 'id', 'tweet'"),
    ("a.json", b"", NOT_A_LIST),
    ("a.json", b'{"text": "love"}', NOT_A_LIST),
    ("a.json", b'{"text": "love"}\n{"text": "it"}', NOT_A_LIST),
    ("a.json", b'["love", nan]', NOT_A_LIST),
    ("a.json", b'["love", NaN', NOT_A_LIST),
    ("a.json", b'["cut \\ud83d", "\\ud8x0"]', NOT_A_LIST),
    ("a.json", b'["love", \\ud83d]', NOT_A_LIST),
    ("a.json", b"[" * 100_000 + b"]" * 100_000, NOT_A_LIST),
    ("a.json", b'[{"tweet": "love"}]', "no column 'text'; --column accepts one of: 'tweet'"),
    # Other kinds of files.
    ("a.csv", ODS, "is not text, but an OpenDocument file: save it as"),
    ("a.csv", XLSX, "but an .xlsx workbook: let its name end in .xlsx"),
    ("a.tsv", XLS, "but an .xls workbook, or one with a password: save"),
    ("a.txt", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "not text, but a PDF document"),
    ("a.csv", _parquet([pa.array(["x"])], ["text"]), "not text, but Parquet: let its name"),
    ("a.jsonl", b"PK\x03\x04\x14" + bytes(200), "is not text, but a ZIP archive"),
    ("a.csv", bz2.compress(b"text\nlove\n" * 9), "is not text, but compressed with bzip2"),
    ("a.csv", GZIPPED, "not text, but .* let its name end in .gz"),
    # Compressed ones.
    ("a.csv.gz", b"text\nlove\n", "is not as the ending .gz says, but text: let its name end in"),
    ("a.csv.gz", GZIPPED[:-9], "cannot be unpacked: .* ended before"),
    ("a.csv.gz", GZIPPED[:10] + b"xx", "cannot be unpacked"),
    ("a.csv.gz", gzip.compress(GZIPPED), "not text, but compressed with gzip"),
    ("a.txt.gz", UTF_16, "if it is UTF-16LE, add --encoding utf-16le, or convert it"),
    ("a.csv.bz2", GZIPPED, "not as the ending .bz2 says, but compressed with gzip"),
    ("a.csv.zst", b"text\n", "not as the ending .zst says, but text: let its name end in"),
    ("a.zip", _zip({"a.csv": b"", "b.csv": b""}), r"a.zip holds 2 files \('a.csv', 'b.csv'"),
    ("a.zip", _zip({}), "a.zip holds no file; accepted is a ZIP archive with one file"),
    ("a.zip", _zip({"a.pdf": b"text"}), "holds a file that ends in .pdf; accepted in"),
    ("a.zip", _zip({"a.zip": b"PK"}), "holds a file that ends in .zip; accepted"),
    ("a.zip", _zip({"a": b""}), "holds a file that ends in nothing; accepted"),
    ("a.zip", _encrypted(), "a.zip is encrypted; unpack it with its password"),
    ("a.zip", _workbook(["text"]), "a.zip is an .xlsx workbook: let its name end in .xlsx"),
    ("a.zip", b"PK\x03\x04" + bytes(99), "cannot be unpacked: File is not a zip file"),
    ("a.zip", GZIPPED, "not as the ending .zip says, but compressed with gzip"),
    ("a.xlsx", b"text\nlove\n", "not as the ending .xlsx says, but text: let its name end"),
    ("a.xlsx", XLS, "an .xls workbook, or one with a password"),
    ("a.xlsx", _zip({"a.csv": b"text\n"}), "cannot be read as .xlsx: "),
    ("a.xlsx", _workbook(["text"])[:-99], "cannot be read as .xlsx: "),
    ("a.xlsx", _workbook(), "no cell in its first sheet; --sheet NAME reads another"),
    ("a.xlsx", _workbook(["text"], ['=CONCAT("lo","ve")']), "has only formulas without values"),
    ("a.xlsx", _workbook(["id", "text"], [1, "=B3"], [], [2, "=B2"]), "'text' has only formulas"),
    ("a.xlsx", _workbook(["tweet"]), "no column 'text'; --column accepts one of: 'tweet'"),
    ("a.xlsx", _workbook(["text", "x", "x"]), "several columns with the same name: 'x'"),
    ("a.parquet", b"", "cannot be read as Parquet"),
    ("a.parquet", b"text\n", "not as the ending .parquet says, but text"),
    # Of which a page is damaged.
    ("a.parquet", PAGES[:4] + b"\xff" * 56 + PAGES[60:], "cannot be read"),
    ("a.parquet", b"PAR1 and nothing else", "cannot be read as Parquet"),
    ("a.parquet", b"PAR1" + bytes(8) + b"\x08\0\0\0PAR1", "cannot be read as Parquet"),
    ("a.parquet", b"PARE\x1c\x1c\0\0\0\x05\0\0\0PARE", "as Parquet: Could not read encrypted"),
    ("a.parquet", _parquet([pa.array([1])], ["text"]), "'text' has the type int64"),
    ("a.parquet", _parquet([pa.array(["x"])] * 2, ["text"] * 2), "same name: 'text'; give"),
    ("a.parquet", _parquet([pa.array(["x"])], ["tweet"]), "no column 'text'.*: 'tweet'"),
]


@pytest.mark.parametrize(("name", "content", "says"), REFUSED, ids=range(len(REFUSED)))
def test_a_file_that_is_refused(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    """One clear line names the file, what it is and what is accepted."""
    _refused(_file(tmp_path, name, content), says)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("a.xlsx", {"sheet": "B"}, "no sheet 'B'; --sheet accepts one of"),
        ("a.csv", {"encoding": "utf-16"}, "a.csv is not text in utf-16: "),
    ],
)
def test_options_that_do_not_fit_the_file(
    tmp_path: Path, name: str, options: dict[str, str], says: str
) -> None:
    """The line names them and what is accepted."""
    content = _workbook(["text"]) if name == "a.xlsx" else b"text\n"
    _refused(_file(tmp_path, name, content), says, **options)


def _refused(path: Path, says: str, **options: str) -> None:
    with pytest.raises((UserError, CannotContinue), match=says) as error:
        _texts(_Input(path, **options))
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("ending", [*PACKERS, ".xlsx"])
def test_a_file_that_expands_without_end(tmp_path: Path, ending: str) -> None:
    """It is refused in bounded memory, before it fills a disk."""
    megabytes, line = BOMB_BYTES // 2**20 + 1, b"a" * (2**20 - 1) + b"\n"
    path = tmp_path / (name := f"a{ending}" if ending in (".zip", ".xlsx") else f"a.txt{ending}")
    if ending in (".zip", ".xlsx"):
        inside = "xl/workbook.xml" if ending == ".xlsx" else "a.txt"
        with ZipFile(path, "w", ZIP_DEFLATED) as archive, archive.open(inside, "w") as member:
            for _ in range(megabytes):
                member.write(line)
    else:  # of several parts
        path.write_bytes(PACKERS[ending](line) * megabytes)
    with pytest.raises(CannotContinue, match=f"{name} expands to more than {BOMB_TIMES} times"):
        for _ in open_table(path, "text").chunks():
            pass


def test_a_few_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    """They do not make the file one in another encoding, wherever blocks of reading end."""
    content = "é\n".encode() * 600_000
    assert len(_texts(_Input(_file(tmp_path, "a.txt", b"\xe9\n" + b"x" + content)))) == 600_001
    assert _texts(_Input(_file(tmp_path, "b.txt", "é\n".encode() + b"\xe9"))) == ["é", "\udce9"]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.json", "a.txt", "a.csv.gz"])
def test_a_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Its beginning is read once more, to judge it, and nothing else twice."""
    texts = [f"love it {row}" for row in range(100_000)]
    lines = ["text", *texts] if "sv" in name else texts
    if name == "a.jsonl":
        lines = [json.dumps({"text": text}) for text in texts]
    content = json.dumps(texts) if name == "a.json" else "\n".join(lines)
    raw = gzip.compress(content.encode()) if name.endswith(".gz") else content.encode()
    path = _file(tmp_path, name, raw)
    before = _bytes_read()
    assert sum(len(chunk.texts) for chunk in open_table(path, "text").chunks()) == 100_000
    buffers = 500_000  # what Python reads ahead: 128 KiB a file since 3.14
    assert _bytes_read() - before < len(raw) + START_BYTES + buffers


def _bytes_read() -> int:
    """How many bytes this process has read."""
    facts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(facts["rchar"])


def test_whole_numbers_of_any_length(tmp_path: Path) -> None:
    """A number of more digits than Python reads is a number, and keeps all of them."""
    digits = "7" * 5_000
    lines = [f'{{"text": "love", "n": {digits}}}', f'{{"text": "it", "n": -{digits}}}']
    source = _Input(_file(tmp_path, "a.jsonl", "\n".join(lines).encode()))
    assert _texts(source) == ["love", "it"]
    assert f'"n": {digits}, "label"' in _written(source, ".jsonl", tmp_path).decode()
    assert f"love,{digits},good" in _written(source, ".csv", tmp_path).decode()
    _written(source, ".parquet", tmp_path)
    assert digits in pq.read_table(tmp_path / "whole")["n"].to_pylist()[0]
    listed = _file(tmp_path, "a.json", f"[{', '.join(lines)}]".encode())
    assert _texts(_Input(listed)) == ["love", "it"]


@pytest.mark.parametrize(
    ("name", "separator"), [("a.csv", ";"), ("a.csv", "|"), ("a.csv", "\t"), ("a.tsv", ",")]
)
def test_another_separator_is_seen_in_the_header(tmp_path: Path, name: str, separator: str) -> None:
    """As spreadsheets write it; what is written has the separator of its own ending."""
    rows = [["id", "text"], ["1", f'a{separator}b, "c"'], ["2", "two\nlines"]]
    with (tmp_path / name).open("w", newline="") as file:
        csv.writer(file, delimiter=separator).writerows(rows)
    table = _Input(tmp_path / name)
    assert _texts(table) == [text for _, text in rows[1:]]
    assert _written(table, ".csv", tmp_path).startswith(b"id,text,label,score,")


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_jsonl_with_constants_that_json_lacks(tmp_path: Path, name: str) -> None:
    """NaN and infinity become null, also in a row that fails or as text; other lines stay.

    It is so in a JSON list, too.
    """
    lines = ['{"text": "lo\\"ve, NaN", "n": [NaN, 1]}', '{"text": 7, "n": -Infinity}']
    lines += ['{"n":  1.10}', '{"text": NaN, "n": 2}']
    content = "\n".join(lines) if name == "a.jsonl" else f"[{','.join(lines)}]"
    table = _Input(_file(tmp_path, name, content.encode()))
    assert _texts(table)[0] == 'lo"ve, NaN'
    assert (
        _texts(table)[3] == f"empty_text: {'line' if name == 'a.jsonl' else 'item'} 4 has no 'text'"
    )
    written = _written(table, ".jsonl", tmp_path, [GOOD, FAILED, FAILED]).decode().splitlines()
    rows = [json.loads(line, parse_constant=pytest.fail) for line in written]
    assert [row["n"] for row in rows] == [[None, 1], None, 1.1, 2]
    assert written[2].startswith('{"n":  1.10, ')


def test_jsonl_lines_stay_unchanged(tmp_path: Path) -> None:
    """A line's members are written unchanged, with all digits; a bad line fails in its place.

    The error quotes its begin.
    """
    lines = [
        '{"text": "love", "n": 1.10, "big": 12345678901234567890123, "é": null}',
        "",
        ' { "text" : "a\\ud83d" } ',
        "not\tJSON" + "x" * 500,
        "[1]",
        '{"text": 7}',
        "{ }",
        '{"text": null}',
    ]
    table = _Input(_file(tmp_path, "a.jsonl", "\r\n".join(lines).encode()))
    assert table.table().columns == ["text", "n", "big", "é"]
    texts = [
        "love",
        "a\ud83d",
        f"invalid_request: line 4 is not a JSON object: 'not\\tJSON{'x' * 192}'",
        "invalid_request: line 5 is not a JSON object: '[1]'",
        "invalid_request: line 6: 'text' is not text",
        "empty_text: line 7 has no 'text'",
        "empty_text: line 8 has no 'text'",
    ]
    assert _texts(table) == texts
    written = _written(table, ".jsonl", tmp_path, [GOOD, GOOD, FAILED]).decode().splitlines()
    scores = '{"bad": 0.25, "good": 0.75}'
    good = f'"label": "good", "score": 0.75, "scores": {scores}, "warnings": null, "error": null}}'
    failed = '"label": null, "score": null, "scores": null, "warnings": null, '
    failed += '"error": "empty_text: no text"}'
    assert written[:3] == [
        lines[0][:-1] + ", " + good,
        '{"text" : "a\\ud83d", ' + good,
        "{" + failed,
    ]
    assert all(isinstance(json.loads(line), dict) for line in written)


def test_half_a_pair_of_surrogates_in_a_json_list(tmp_path: Path) -> None:
    """As in JSON lines, it stays as it is, and fails only its own text."""
    items = [
        '{"text": "love", "n": 1.10, "big": 12345678901234567890123}',
        ' { "text" :\r\n "cut \\ud83d" , "\\uDE00": "\\ud83d\\ud83d\\ude00\\ud83d\\n" } ',
        '"pair \\uD83D\\uDE00 \\\\ud83d \\\\\\ud83d"',
        r'"\ufffd, \udcff\"\ud7ff"',
        '"é"',
    ]
    source = _Input(_file(tmp_path, "a.json", f"[{','.join(items)}]".encode()))
    pair = "pair \U0001f600 \\ud83d \\\ud83d"
    assert _texts(source) == ["love", "cut \ud83d", pair, '\ufffd, \udcff"\ud7ff', "é"]
    written = _written(source, ".jsonl", tmp_path).decode().splitlines()
    assert written[0].startswith(items[0][:-1] + ", ")
    assert written[1].startswith("{" + items[1].strip().replace("\r\n", "  ")[1:-1].strip() + ", ")
    assert [line.startswith('{"text": ' + item) for line, item in zip(written, items, strict=True)][
        2:
    ] == [True] * 3


def test_parquet_keeps_its_columns_and_types(tmp_path: Path) -> None:
    """All columns keep their types. Null, or bytes that are not UTF-8, fail only in their row."""
    raw = pa.array([b"love", None, b"\xff"], pa.binary())
    text = pa.StringArray.from_buffers(3, *raw.buffers()[1:], raw.buffers()[0], 1)
    table = pa.table(
        {
            "when": pa.array([1, 2, 3], pa.timestamp("ns")),
            "text": text,
            "list": [[1], [], None],
            "kind": pa.array(["a", "b", "a"]).dictionary_encode(),
        },
        metadata={"pandas": "{}"},
    )
    pq.write_table(table, tmp_path / "a.parquet")
    source = _Input(tmp_path / "a.parquet")
    assert _texts(source) == ["love", "empty_text: the row has no text", "\udcff"]
    assert _texts(_Input(tmp_path / "a.parquet", "kind")) == ["a", "b", "a"]
    _written(source, ".parquet", tmp_path, [GOOD, FAILED])
    whole = pq.read_table(tmp_path / "whole")
    assert whole.select(["when", "text", "list", "kind"]).equals(
        pq.read_table(tmp_path / "a.parquet")
    )
    assert whole.schema.metadata[b"pandas"] == b"{}"
    assert whole.schema.names[4:] == [
        *("label", "score", "score_bad", "score_good", "warnings", "error")
    ]
    assert whole["label"].to_pylist() == ["good", None, "good"]
    assert whole["error"].to_pylist() == [None, "empty_text: no text", None]


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view"])
def test_parquet_kinds_of_text(tmp_path: Path, kind: str) -> None:
    """All types of strings that Arrow has are texts, and stay as they are in Parquet."""
    texts = pa.array(["love", None, "x" * 40], getattr(pa, kind)())
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    table = _Input(tmp_path / "a.parquet")
    assert _texts(table) == ["love", "empty_text: the row has no text", "x" * 40]
    _written(table, ".parquet", tmp_path)
    assert pq.read_table(tmp_path / "whole")["text"].type == texts.type


DATES = {
    "ns": pa.array([1_500, None], pa.timestamp("ns")),
    "far": pa.array([2**58, None], pa.timestamp("us", tz="UTC")),
    "date": pa.array([2**22, None], pa.int32()).cast(pa.date32()),
    "time": pa.array([7, None], pa.time64("ns")),
    "duration": pa.array([7, None], pa.duration("ns")),
    "kind": pa.array([1_500, None], pa.timestamp("ns")).dictionary_encode(),
}
NS = pa.timestamp("ns")
WITHIN = {
    "times": pa.array([[1, None], None], pa.list_(pa.time64("ns"))),
    "large": pa.array([[1], None], pa.large_list(NS)),
    "two": pa.array([[1, 86_400], None], pa.list_(pa.duration("us"), 2)),
    "far": pa.array([[253_402_300_800_000], None], pa.list_(pa.timestamp("ms"))),
    "kinds": pa.ListArray.from_arrays(
        [0, 2, 2], pa.array([1, 2], NS).dictionary_encode(), mask=pa.array([False, True])
    ),
    "record": pa.array(
        [{"a": 1, "b": [{"c": 3}]}, None],
        pa.struct({"a": NS, "b": pa.list_(pa.struct({"c": pa.date32()}))}),
    ),
    "map": pa.array([[(0, 5)], None], pa.map_(pa.date32(), pa.duration("s"))),
}
NUMBERS_AND_BYTES = {
    "number": [float("nan"), None],
    "numbers": [[1.5, float("inf")], None],
    "raw": pa.array([b"\0\xff", None]),
    "raws": pa.array([[b"a", None], None]),
}


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (
            DATES,
            {
                "ns": "1970-01-01 00:00:00.000001500",
                "far": "11103-08-29 17:22:31.711744Z",
                "date": "13453-08-13",
                "time": "00:00:00.000000007",
                "duration": 7,
                "kind": "1970-01-01 00:00:00.000001500",
            },
        ),
        (
            WITHIN,
            {
                "times": ["00:00:00.000000001", None],
                "large": ["1970-01-01 00:00:00.000000001"],
                "two": [1, 86_400],
                "far": ["10000-01-01 00:00:00.000"],
                "kinds": [
                    "1970-01-01 00:00:00.000000001",
                    "1970-01-01 00:00:00.000000002",
                ],
                "record": {"a": "1970-01-01 00:00:00.000000001", "b": [{"c": "1970-01-04"}]},
                "map": [["1970-01-01", 5]],
            },
        ),
        (
            NUMBERS_AND_BYTES,
            {"number": None, "numbers": [1.5, None], "raw": "AP8=", "raws": ["YQ==", None]},
        ),
    ],
)
def test_parquet_values_that_text_lacks(
    tmp_path: Path, columns: dict[str, Any], expected: dict[str, Any], suffix: str
) -> None:
    """Dates and times are text with all digits, durations numbers, bytes base64.

    So are those within lists and objects. In JSON, NaN and infinity are null.
    """
    pq.write_table(pa.table({"text": ["love", "it"], **columns}), tmp_path / "a.parquet")
    written = _written(_Input(tmp_path / "a.parquet"), suffix, tmp_path).decode()
    if suffix == ".csv":
        first, second = csv.DictReader(written.splitlines())
        json_texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in expected.items()}
        expected = json_texts | ({"number": "nan"} if "number" in expected else {})
    else:
        lines = written.splitlines()
        first, second = (json.loads(line, parse_constant=pytest.fail) for line in lines)
    assert {name: first[name] for name in expected} == expected
    assert not any(second[name] for name in expected)


def test_old_parquet_timestamps(tmp_path: Path) -> None:
    """A far date of INT96, which Spark uses as "no end", keeps its year."""
    when = pa.array([253_402_300_799_000_000], pa.timestamp("us"))
    path = tmp_path / "a.parquet"
    columns = pa.table({"text": ["x"], "when": when})
    pq.write_table(columns, path, use_deprecated_int96_timestamps=True)
    table = _Input(path).table()
    (chunk,) = table.chunks()
    assert table.records(chunk.rows)[0]["when"] == "9999-12-31 23:59:59.000000"


@pytest.mark.parametrize(
    "column",
    [
        pa.StructArray.from_arrays([pa.array(["x"])] * 2, names=["a", "a"]),
        pa.array([[b"\xff"]], pa.list_(pa.binary())).view(pa.list_(pa.string())),
    ],
)
def test_a_parquet_column_that_cannot_be_text(tmp_path: Path, column: pa.Array) -> None:
    """One line names the column and what to do; Parquet keeps the column."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["x"], "both": column}), path)
    table = _Input(path)
    with pytest.raises(UserError) as error:
        _written(table, ".csv", tmp_path)
    said = str(error.value)
    assert said.startswith(f"{path}: column 'both' can only be written as Parquet (")
    assert said.endswith("); leave it out, or write Parquet")
    assert "\n" not in said
    _written(table, ".parquet", tmp_path)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_parquet_strings_that_are_not_utf8(tmp_path: Path, suffix: str) -> None:
    """They do not refuse the file: each is written as the same bytes of a CSV file would be."""
    raw = pa.array([b"caf\xe9", None], pa.binary()).view(pa.string())
    names = {"note": raw, "kind": raw.dictionary_encode()}
    pq.write_table(pa.table({"text": ["love", "it"], **names}), tmp_path / "a.parquet")
    first, second = _written(_Input(tmp_path / "a.parquet"), suffix, tmp_path).splitlines()[-2:]
    if suffix == ".csv":
        assert first.startswith(b"love,caf\xe9,caf\xe9,good,")
        assert second.startswith(b"it,,,good,")
    else:
        assert [json.loads(first)[name] for name in names] == ["caf\ufffd"] * 2
        assert [json.loads(second)[name] for name in names] == [None] * 2


def _write_sources(path: Path) -> None:
    """The same table as CSV, JSONL and Parquet."""
    rows: list[dict[str, Any]] = [
        {"id": 1, "text": "a,\udcffb", "list": [1, "é"]},
        {"id": None, "text": "c", "list": None},
    ]
    _file(path, "a.csv", b'id,text,list\n1,"a,\xffb","[1, ""\xc3\xa9""]"\n,c,\n')
    _file(
        path, "a.jsonl", b'{"id": 1, "text": "a,\xffb", "list": [1, "\xc3\xa9"]}\n{"text": "c"}\n'
    )
    clean = [row | {"text": str(row["text"]).replace("\udcff", "\ufffd")} for row in rows]
    schema = pa.schema({"id": pa.int64(), "text": pa.string(), "list": pa.string()})
    listed = [
        row | {"list": row["list"] and json.dumps(row["list"], ensure_ascii=False)} for row in clean
    ]
    pq.write_table(pa.Table.from_pylist(listed, schema), path / "a.parquet")


@pytest.mark.parametrize("source", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("target", [".csv", ".jsonl", ".parquet"])
def test_every_kind_can_be_written_as_every_other(tmp_path: Path, source: str, target: str) -> None:
    """All columns are written; a value that the target has no type for becomes JSON text."""
    _write_sources(tmp_path)
    written = _written(_Input(tmp_path / f"a{source}"), target, tmp_path)
    rows: list[dict[str, Any]]
    if target == ".csv":
        rows = list(csv.DictReader(written.decode("utf-8", "replace").splitlines()))
    elif target == ".jsonl":
        rows = [json.loads(line) for line in written.decode("utf-8", "replace").splitlines()]
    else:
        rows = pq.read_table(tmp_path / "whole").to_pylist()
    assert [row["text"] for row in rows] == ["a,\ufffdb", "c"]
    assert [str(row.get("id") or "") for row in rows] == ["1", ""]
    first = rows[0]["list"]
    assert (json.loads(first) if isinstance(first, str) else first) == [1, "é"]
    assert not rows[1].get("list")
    assert [row["label"] for row in rows] == ["good", "good"]
    assert [float(rows[0].get("score_bad") or rows[0]["scores"]["bad"])] == [0.25]


LAST = 2**53  # up to here, each whole number has a float


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (["1234567890123456789", "NaN"], pa.int64(), [1234567890123456789, None]),
        (["-Infinity", "1", "Infinity"], pa.int64(), [None, 1, None]),
        (["NaN", "1.5"], pa.float64(), [None, 1.5]),
        (["NaN", '"a"', "null"], pa.string(), [None, "a", None]),
        (["NaN", "true"], pa.bool_(), [None, True]),
        ([f"{LAST}", "1.5", f"-{LAST}"], pa.float64(), [LAST, 1.5, -LAST]),
        ([f"{LAST + 1}", "1", "1.5", "null"], pa.string(), [f"{LAST + 1}", "1", "1.5", None]),
        (["1.5", "1", f"-{LAST + 1}", "NaN"], pa.string(), ["1.5", "1", f"-{LAST + 1}", None]),
        (["1e400", f"{LAST + 1}"], pa.string(), ["null", f"{LAST + 1}"]),
        ([f"{2**70}", "1", "1.5"], pa.string(), [f"{2**70}", "1", "1.5"]),
        (["true", "1", f"{LAST + 1}"], pa.string(), ["true", "1", f"{LAST + 1}"]),
        (["[]", '[1, "a", [NaN]]', "{}"], pa.string(), ["[]", '[1, "a", [null]]', "{}"]),
        (["1", "null"], pa.int64(), [1, None]),
        (["1", "2.5"], pa.float64(), [1.0, 2.5]),
        (["true", "false"], pa.bool_(), [True, False]),
        (["1", '"one"'], pa.string(), ["1", "one"]),
        (['"a \\"b\\""', "[1]", '"\\ud83d"'], pa.string(), ['a "b"', "[1]", "\ufffd"]),
        (['{"a": "\\ud83d"}', "null"], pa.string(), ['{"a": "\ufffd"}', None]),
        (["1", "9999999999999999999"], pa.string(), ["1", "9999999999999999999"]),
    ],
)
def test_jsonl_columns_have_types_in_parquet(
    tmp_path: Path, values: list[str], kind: pa.DataType, expected: list[Any]
) -> None:
    """A column with one type keeps it. In one of mixed types, as in CSV, all but strings is JSON.

    NaN and infinity are null, whatever the type of their column. Whole numbers and others become
    JSON text if floats would change one of them.
    """
    lines = [f'{{"text": "love", "n": {value}}}' for value in values]
    source = _Input(_file(tmp_path, "a.jsonl", "\n".join(lines).encode()))
    _written(source, ".parquet", tmp_path)
    column = pq.read_table(tmp_path / "whole")["n"]
    assert (column.type, column.to_pylist()) == (kind, expected)


def test_lists_in_very_many_lists() -> None:
    """They are refused in one line."""
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(CannotContinue, match="too many lists and objects within each other"):
        json_text(nested)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_a_name_of_a_column_that_parquet_cannot_hold(tmp_path: Path, name: str) -> None:
    """It gets U+FFFD for what is not UTF-8, as texts do."""
    content = {
        "a.csv": b"text,pr\xe9nom\nlove,\xc3\xa9\xc3\xa9\n",
        "a.jsonl": b'{"text": "love", "pr\xe9nom": "\xc3\xa9\xc3\xa9"}',
    }
    table = _Input(_file(tmp_path, name, content[name]))
    _written(table, ".parquet", tmp_path)
    (row,) = pq.read_table(tmp_path / "whole").to_pylist()
    assert (row["text"], row["pr\ufffdnom"], row["label"]) == ("love", "éé", "good")


def test_result_columns_do_not_replace_input_columns(tmp_path: Path) -> None:
    """A result column whose name is taken gets the prefix "predicted_", repeatedly if needed.

    "Label" takes "label": Spark could not read a file with both.
    """
    content = b"label,text,Predicted_Label,Error,score_bad\nmine,x,mine,mine,mine\n"
    table = _Input(_file(tmp_path, "a.csv", content))
    header, row = _written(table, ".csv", tmp_path).decode().splitlines()
    added = "predicted_predicted_label,score,predicted_score_bad,score_good,warnings"
    assert header == f"label,text,Predicted_Label,Error,score_bad,{added},predicted_error"
    assert row == "mine,x,mine,mine,mine,good,0.75,0.25,0.75,,"
    assert free_names(["score_Good", "score_good"], []) == ["score_Good", "predicted_score_good"]


def test_result_members_do_not_replace_input_members(tmp_path: Path) -> None:
    """A name that any row uses counts as taken, so a result column has one name in all rows."""
    content = b'{"text": "x"}\n{"text": "y", "label": 1, "scores": 2}\n'
    table = _Input(_file(tmp_path, "a.jsonl", content))
    first, second = map(json.loads, _written(table, ".jsonl", tmp_path).splitlines())
    assert [*first] == [
        *("text", "predicted_label", "score", "predicted_scores", "warnings", "error")
    ]
    assert (second["label"], second["scores"], second["predicted_label"]) == (1, 2, "good")


def test_chunks_are_bounded(tmp_path: Path) -> None:
    """A chunk ends at a number of rows or characters."""
    rows = ["x" * (CHUNK_CHARS // 3)] * 8 + ["x"] * (CHUNK_ROWS + 1)
    table = _Input(_file(tmp_path, "a.txt", "\n".join(rows).encode()))
    sizes = [len(chunk.texts) for chunk in table.table().chunks()]
    assert sizes == [4, 4, CHUNK_ROWS, 1]
