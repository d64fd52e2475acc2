"""What a run on a cluster needs and Ray does not: parts, plans, and files of object stores."""

import gzip
import json
import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs
from sentiment_service.cli.command import main
from sentiment_service.config.settings import Settings
from sentiment_service.errors import CannotContinue, UserError
from sentiment_service.files.cluster.actor_share import Share, actor_share
from sentiment_service.files.cluster.object_store import (
    ObjectFile,
    StoreDirectory,
    check_is_outside,
    list_files,
)
from sentiment_service.files.cluster.parquet_parts import read_record, write_part
from sentiment_service.files.run.directory import RunDirectory
from sentiment_service.files.run.local import LocalClassifier
from sentiment_service.files.run.parts import InputFile, Part, divide, read_pieces
from sentiment_service.files.run.plan import PLAN, SUCCESS, ResumableRun, RunPlan, check_output
from sentiment_service.files.run.report import Tally
from sentiment_service.files.tables.formats import open_table
from sentiment_service.files.tables.table import Table, TableSource

TEXTS = ["love", "worst", "it", "", 'a "quoted"\nline', "naïve 日本 😀", "is"]


def _csv(path: Path, rows: int, first: int = 0) -> Path:
    lines = ["id,text"]
    for row in range(first, first + rows):
        text = TEXTS[row % len(TEXTS)].replace('"', '""')
        lines += ["", f'{row},"{text}"'] if row % 1_500 else [f"{row},too,many"]
    path.write_bytes(("\ufeff" + "\r\n".join(lines)).encode())
    return path


def _jsonl(path: Path, rows: int, first: int = 0) -> Path:
    lines = [
        json.dumps({"id": row, "text": TEXTS[row % len(TEXTS)]}) if row % 1_500 else "no object"
        for row in range(first, first + rows)
    ]
    path.write_text("\n\n".join(lines))
    return path


def _parquet(path: Path, rows: int, first: int = 0) -> Path:
    ids = range(first, first + rows)
    texts = [TEXTS[row % len(TEXTS)] for row in ids]
    pq.write_table(pa.table({"id": ids, "text": texts}), path, row_group_size=3_500)
    return path


def _lines(path: Path, rows: int) -> Path:
    path.write_text("\n".join(TEXTS[row % 4] for row in range(rows)))
    return path


def _json(path: Path, rows: int) -> Path:
    path.write_text(json.dumps([{"id": row, "text": TEXTS[row % 4]} for row in range(rows)]))
    return path


def _packed(path: Path, rows: int) -> Path:
    path.write_bytes(gzip.compress(_csv(path.with_suffix(""), rows).read_bytes()))
    return path


WRITERS: dict[str, Callable[[Path, int], Path]] = {
    ".csv": _csv,
    ".jsonl": _jsonl,
    ".parquet": _parquet,
    ".txt": _lines,
    ".json": _json,
    ".csv.gz": _packed,
}


def _table(source: TableSource) -> Table:
    return open_table(source, "text")


def _object(path: Path) -> ObjectFile:
    """The file as a store has it: only pyarrow's file system can open it."""
    return ObjectFile(fs.LocalFileSystem(), str(path), f"s3://{path}")


def _plan(source: Path, rows: int = 4_000, **options: object) -> RunPlan:
    files = list_files(str(source))
    return RunPlan(divide([read_pieces(file, "text", rows) for file in files], rows), options)


def _begun(source: Path, directory: RunDirectory, rows: int = 4_000) -> RunPlan:
    plan = _plan(source, rows)
    plan.begin(directory, resume=True)
    return plan


def _done(plan: RunPlan, directory: RunDirectory) -> dict[str, Tally]:
    return _Run(plan, directory).done()


@pytest.fixture(scope="module")
def classifier(bundle: Path) -> LocalClassifier:
    settings = Settings(model=(bundle,), device="cpu", runners=1, threads=1)
    return LocalClassifier(settings, measure=False)


@pytest.mark.parametrize(
    ("suffix", "stored"),
    [
        (suffix, stored)
        for suffix in WRITERS
        for stored in (False, True)
        if not (stored and suffix == ".csv.gz")
    ],
)
def test_chunks_from_the_end_of_any_chunk(tmp_path: Path, suffix: str, stored: bool) -> None:
    """They are those of a reading from the start, with the same line numbers in errors.

    The table has travelled to another process, and the file is a path or one of an object store.
    """
    path = WRITERS[suffix](tmp_path / f"in{suffix}", 9_001)
    table = _table(_object(path) if stored else path)
    chunks = list(table.chunks())
    assert [len(chunk.texts) for chunk in chunks] == [2_000] * 4 + [1_001]
    there = pickle.loads(pickle.dumps(table))  # noqa: S301 (our own)
    for index, chunk in enumerate(chunks[:-1], start=1):
        rest = list(there.chunks(chunk.end))
        assert [_shown(c.texts) for c in rest] == [_shown(c.texts) for c in chunks[index:]]
        assert [c.end for c in rest] == [c.end for c in chunks[index:]]
        assert there.records(rest[0].rows) == table.records(chunks[index].rows)


def _shown(texts: Sequence[object]) -> list[str]:
    return [text if isinstance(text, str) else f"{text!r}" for text in texts]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_parts_have_each_row_once(tmp_path: Path, suffix: str) -> None:
    """A large file is in several parts and small files share one; all are in order."""
    folder = tmp_path / "in"
    folder.mkdir()
    for name, (first, rows) in {"a": (0, 9_000), "b": (9_000, 500), "c": (9_500, 700)}.items():
        WRITERS[suffix](folder / f"{name}{suffix}", rows, first)  # type: ignore[call-arg]
    parts = _plan(folder).parts
    assert [part.name for part in parts] == [
        "part-00000-of-00003.parquet",
        "part-00001-of-00003.parquet",
        "part-00002-of-00003.parquet",
    ]
    assert [part.rows for part in parts] == [4_000, 4_000, 2_200]
    assert [len(part.pieces) for part in parts] == [1, 1, 3]
    found = [
        record.get("id")
        for part in parts
        for piece in part.pieces
        for chunk in piece.chunks()
        for record in piece.table.records(chunk.rows)
    ]
    expected = [None if suffix == ".jsonl" and row % 1_500 == 0 else row for row in range(10_200)]
    assert [row if row is None else int(row) for row in found] == expected


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_parts_are_equal_to_the_file_of_the_command(
    bundle: Path, classifier: LocalClassifier, tmp_path: Path, suffix: str
) -> None:
    """Columns, results and errors of all rows are the same to the last bit, whatever the order."""
    source, target = WRITERS[suffix](tmp_path / f"in{suffix}", 5_000), tmp_path / "out.parquet"
    options = ["--model", str(bundle), "--input", str(source), "--output", str(target)]
    assert main(["classify", *options]) == 0
    directory = RunDirectory(str(tmp_path / "out"))
    plan = _begun(source, directory, 2_000)
    for part in reversed(plan.parts):
        write_part(part, classifier, directory, plan.digest)
    tables = [pq.read_table(directory.path / part.name) for part in plan.parts]
    whole = pa.concat_tables(table.replace_schema_metadata() for table in tables)
    assert whole.equals(pq.read_table(target).replace_schema_metadata())
    tally = Tally.total(_done(plan, directory).values())
    assert (tally.rows, tally.errors) == (5_000, whole["error"].drop_null().length())


def test_a_part_counts_only_if_it_is_whole_and_of_this_plan(
    classifier: LocalClassifier, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not done are damaged parts, those of another plan, without all rows, or being written."""
    directory = RunDirectory(str(tmp_path / "out"))
    plan = _begun(_csv(tmp_path / "in.csv", 12_000), directory, 2_000)
    for part in plan.parts:
        write_part(part, classifier, directory, plan.digest)
    first, second, third, fourth, fifth, sixth = (
        Path(directory.path / part.name) for part in plan.parts
    )
    first.write_bytes(first.read_bytes()[:-10])
    whole = fifth.read_bytes()
    footer = int.from_bytes(whole[-8:-4], "little")
    fifth.write_bytes(whole[: -8 - footer] + bytes(footer) + whole[-8:])
    write_part(plan.parts[1], classifier, directory, "another plan")
    (piece,) = plan.parts[5].pieces
    short = Part(sixth.name, [replace(piece, rows=0)])
    write_part(short, classifier, directory, plan.digest)
    third.rename(third.with_name(f"{third.name}.0.tmp"))
    assert list(_done(plan, directory)) == [fourth.name]
    named = {message.partition(" ")[0] for message in caplog.messages}
    assert named == {str(first), str(second), str(fifth), str(sixth)}
    directory.remove_leftovers()
    assert directory.names() == {*(part.name for part in plan.parts), PLAN} - {third.name}


class _Run(ResumableRun):
    """A run like that of Ray, in this process."""

    classifier: LocalClassifier

    def classify(self, parts: Sequence[Part]) -> None:
        for part in parts:
            write_part(part, self.classifier, self.directory, self.plan.digest)

    def finish(self) -> None:
        self.directory.write(SUCCESS, Path.touch)

    def read_record(self, name: str) -> dict[str, Any] | None:
        return read_record(self.directory, name)


def test_a_finished_directory_is_said_to_be_complete(
    classifier: LocalClassifier, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --resume, one line says so; a damaged part is classified again."""
    plan, directory = _plan(_csv(tmp_path / "in.csv", 3_000)), RunDirectory(str(tmp_path / "out"))
    run = _Run(plan, directory)
    run.classifier = classifier
    said = []
    for damaged in (False, False, True):
        if damaged:
            (directory.path / plan.parts[0].name).write_bytes(b"")
        run.complete(resume=True)
        said.append(capsys.readouterr().err)
    assert said[1] == f"sentiment: {directory.address} is complete; nothing is left to do\n"
    assert said[0].startswith("3,000 rows in ")
    assert said[2].startswith("3,000 rows in ")


def _local(path: Path) -> RunDirectory:
    return RunDirectory(str(path))


def _store(path: Path) -> RunDirectory:
    """A directory whose files cannot be renamed: they are written elsewhere and copied."""
    return StoreDirectory(fs.SubTreeFileSystem("/", fs.LocalFileSystem()), str(path), "s3://out")


@pytest.mark.parametrize("make", [_local, _store])
def test_a_part_is_written_whole_or_not_at_all(
    classifier: LocalClassifier, tmp_path: Path, make: Callable[[Path], RunDirectory]
) -> None:
    """An input that changed during the run gives an error, and no file, not even a hidden one."""
    source, directory = _csv(tmp_path / "in.csv", 3_000), make(tmp_path / "out")
    plan = _begun(source, directory)
    os.utime(source, ns=(1, 1))
    with pytest.raises(CannotContinue, match=r"in.csv has changed since the start"):
        write_part(plan.parts[0], classifier, directory, plan.digest)
    assert directory.names() == {PLAN}
    plan = _plan(source)
    assert write_part(plan.parts[0], classifier, directory, plan.digest) == 3_000
    assert list(_done(plan, directory)) == ["part-00000-of-00001.parquet"]


def test_only_the_same_run_is_continued(tmp_path: Path) -> None:
    """Other files or options are refused by name; without --resume, any second run is."""
    folder = tmp_path / "in"
    folder.mkdir()
    source = _csv(folder / "a.csv", 10)
    directory = RunDirectory(str(tmp_path / "out"))
    directory.create()
    # A run was killed before it had a plan, so there is nothing to continue yet.
    directory.write(f"{PLAN}.0.tmp", Path.touch)
    check_output(directory, resume=False)
    _plan(folder, column="text").begin(directory, resume=True)
    directory.remove_leftovers()
    assert directory.names() == {PLAN}
    _plan(folder, column="text").begin(directory, resume=True)
    check_output(directory, resume=True)
    with pytest.raises(UserError, match=r"unfinished run; add --resume to continue it, or delete"):
        check_output(directory, resume=False)
    directory.write(SUCCESS, Path.touch)
    with pytest.raises(UserError, match=r"complete run; give another --output, or delete"):
        check_output(directory, resume=False)
    with pytest.raises(UserError, match=r"'text' and is 'body' now; choose another --output, or"):
        _plan(folder, column="body").begin(directory, resume=True)
    _csv(folder / "b.csv", 10)
    with pytest.raises(
        UserError, match=r"b.csv was added, removed or changed; choose another --output"
    ):
        _plan(folder, column="text").begin(directory, resume=True)
    (folder / "b.csv").unlink()
    os.utime(source, ns=(1, 1))
    with pytest.raises(
        UserError, match=r"a.csv was added, removed or changed; choose another --output, or"
    ):
        _plan(folder, column="text").begin(directory, resume=True)
    Path(directory.path / PLAN).write_text("{")
    with pytest.raises(UserError, match=r"cannot be continued"):
        _plan(folder, column="text").begin(directory, resume=True)


def test_a_plan_of_stored_files(tmp_path: Path) -> None:
    """The plan names them by their addresses."""
    path = _csv(tmp_path / "in.csv", 3)
    file = InputFile(_object(path), size=1, mtime_ns=2)
    plan = RunPlan(divide([read_pieces(file, "text", 2_000)], 2_000), {"column": "text"})
    assert plan.document["inputs"] == {f"s3://{path}": [1, 2]}


def test_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    """Results never go among files of something else."""
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(UserError, match=r"files of another kind"):
        check_output(RunDirectory(str(tmp_path)), resume=True)


def test_an_output_inside_of_the_input_is_refused(tmp_path: Path) -> None:
    """Else --resume would take results for inputs. Links and ".." do not hide it."""
    (tmp_path / "in").mkdir()
    (tmp_path / "link").symlink_to("in")
    for output in ("in/out", "in/x/../out", "x/../in/out", "link/out", "in"):
        with pytest.raises(UserError, match=r" is inside of --input .*; choose another"):
            check_is_outside(str(tmp_path / output), f"{tmp_path}/in/")
    for output in ("input", "in/../out"):
        check_is_outside(str(tmp_path / output), f"{tmp_path}/x/../in")


@pytest.mark.parametrize(
    ("cpus", "options", "share"),
    [
        ([0, 1, 1], {}, Share(1, 0, 2)),
        ([64, 64], {}, Share(4, 0, 32)),
        ([6, 6], {}, Share(3, 0, 4)),
        ([2, 16], {}, Share(2, 0, 9)),
        ([16], {"runners": 8}, Share(8, 0, 2)),
        ([16], {"runners": 2, "threads": 3}, Share(6, 0, 2)),
    ],
)
def test_the_cpus_of_an_actor(cpus: list[int], options: dict[str, int], share: Share) -> None:
    """As few CPUs as possible are idle; the settings decide first. A dead node does not count."""
    nodes = [{"Alive": True, "Resources": {"CPU": float(count)}} for count in cpus]
    dead = {"Alive": False, "Resources": {"CPU": 99.0}}
    assert actor_share(Settings(**options), [*nodes, dead]) == share  # type: ignore[arg-type]


def test_the_gpus_of_an_actor() -> None:
    """With --device cuda each actor has one GPU and a share of its node's CPUs."""
    nodes = [
        {"Alive": True, "Resources": {"CPU": 16.0, "GPU": 8.0}},
        {"Alive": True, "Resources": {"CPU": 64.0}},
    ]
    assert actor_share(Settings(device="cuda"), nodes) == Share(2, 1, 8)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": "cuda"}, "no node of the cluster has a GPU"),
        ({"runners": 3}, "no node of the cluster has 3 CPUs"),
    ],
)
def test_a_cluster_that_is_too_small(options: dict[str, object], words: str) -> None:
    """The error says what no node has, instead of waiting for it."""
    nodes = [{"Alive": True, "Resources": {"CPU": 2.0}}]
    with pytest.raises(UserError, match=words):
        actor_share(Settings(**options), nodes)  # type: ignore[arg-type]


def test_files_of_a_directory_and_of_a_glob(tmp_path: Path) -> None:
    """A directory has the files below it, too, sorted; names with "_" or "." are notes of tools."""
    for name in ("b.csv", "a.csv", "day=1/c.csv", "_SUCCESS", ".b.csv.crc", "_old/d.csv"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("text\n")
    found = [str(f.source) for f in list_files(f"{tmp_path}/")]
    assert found == [str(tmp_path / name) for name in ("a.csv", "b.csv", "day=1/c.csv")]
    found = [str(f.source) for f in list_files(f"{tmp_path}/[ab].csv")]
    assert found == [str(tmp_path / name) for name in ("a.csv", "b.csv")]
    assert [f.source.suffix for f in list_files(f"{tmp_path}/day=*/*.csv")] == [".csv"]


def test_a_name_with_the_characters_of_a_glob(tmp_path: Path) -> None:
    """A file or directory that has this very name is read."""
    path = tmp_path / "in [1]" / "reviews[2024].csv"
    path.parent.mkdir()
    path.write_text("text\n")
    for address in (path, path.parent):
        assert [str(file.source) for file in list_files(str(address))] == [str(path)]


@pytest.mark.parametrize(
    ("names", "address", "words"),
    [
        ([], "in", "in has no files"),
        (["a.csv"], "in/*.jsonl", "has no files"),
        (
            ["a.csv", "b.jsonl"],
            "in",
            "files that end in .csv, .jsonl; --input accepts files of one format",
        ),
        (
            ["a.csv", "b.csv.gz"],
            "in",
            "end in .csv, .gz; --input accepts files of one format: .parquet .csv",
        ),
        ([], "none", "none does not exist"),
        ([], "http://in/a.csv", "begins with one of: s3:// gs://"),
    ],
)
def test_inputs_that_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    names: list[str],
    address: str,
    words: str,
) -> None:
    """One line says what is wrong and what is accepted."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    for name in names:
        (tmp_path / "in" / name).write_text("text\n")
    with pytest.raises(UserError) as caught:
        list_files(address)
    assert words in str(caught.value)


def test_files_with_different_columns(tmp_path: Path) -> None:
    """CSV and Parquet files must agree; the error names the file. JSONL gets the columns of all.

    A file without the column of texts is named, too, before anything is classified.
    """
    (tmp_path / "a.csv").write_text("id,text\n")
    (tmp_path / "b.csv").write_text("id,text,more\n")
    with pytest.raises(UserError, match=r"b.csv has other columns than .*a.csv"):
        _plan(tmp_path)
    (tmp_path / "a.jsonl").write_text('{"text": "a", "n": 1}\n')
    (tmp_path / "b.jsonl").write_text('{"text": "b", "n": 1.5, "who": "me"}\n')
    (part,) = _plan(tmp_path / "*.jsonl").parts
    for piece in part.pieces:
        assert piece.table.types == {"text": str, "n": float, "who": str}
    pq.write_table(pa.table({"text": ["a"], "n": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"text": ["a"], "n": ["1"]}), tmp_path / "b.parquet")
    with pytest.raises(UserError, match=r"n: string, not .*n: int64"):
        _plan(tmp_path / "*.parquet")
    (tmp_path / "b.csv").write_text("body\n")
    with pytest.raises(UserError, match=r"b.csv has no column 'text'"):
        _plan(tmp_path / "*.csv")


def test_files_without_rows(classifier: LocalClassifier, tmp_path: Path) -> None:
    """They give one part with the columns and no rows."""
    directory = RunDirectory(str(tmp_path / "out"))
    plan = _begun(_csv(tmp_path / "in.csv", 0), directory)
    assert write_part(plan.parts[0], classifier, directory, plan.digest) == 0
    assert pq.read_table(directory.path / plan.parts[0].name).num_rows == 0
    assert list(_done(plan, directory)) == ["part-00000-of-00001.parquet"]
