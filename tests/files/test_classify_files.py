"""`sentiment classify` with files: what it writes, and that an interrupted run loses nothing."""

import csv
import errno
import json
import logging
import os
import resource
import signal
import stat
import subprocess
import sys
import termios
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sentiment_service.cli.command import main
from sentiment_service.engine.model.model import Model
from sentiment_service.engine.text.text_tokenizer import Encoding
from sentiment_service.errors import CannotContinue
from sentiment_service.files import command, formats, parquet
from sentiment_service.files import table as tables
from sentiment_service.files.csv_table import CsvTable
from sentiment_service.files.output_file import OutputFile
from sentiment_service.files.results import ResultColumns, ResultItem, Warnings
from sentiment_service.files.table import Chunk, ClassifiedChunk

from tests.conftest import FLAGS, Listen
from tests.support import serving
from tests.support.serving import (
    COMMAND,
    ROOT,
    Process,
    Program,
    environment,
    eventually,
    patched,
    run_program,
    state_of,
    terminal,
)
from tests.support.tiny_bundle import make_bundle, write_manifest

# Chunks of about ten rows, and each batch takes at least 5 ms.
SLOW_COMMAND = patched(
    """
from sentiment_service.files import parquet, table as tables
from sentiment_service.engine.model.model import Model
tables.CHUNK_CHARS, parquet.CHUNK_ROWS = 300, 40
infer = Model.infer
Model.infer = lambda self, encodings: (time.sleep(0.005), infer(self, encodings))[1]
"""
)
WORDS = ["love", "worst", "it", "", "is"]


@pytest.fixture
def slow_commands_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that this process can continue its runs."""
    monkeypatch.setattr(tables, "CHUNK_CHARS", 300)
    monkeypatch.setattr(parquet, "CHUNK_ROWS", 40)


def _classify(
    *arguments: str | Path, command: Sequence[str] = COMMAND, **options: Any
) -> "subprocess.CompletedProcess[str]":
    return run_program(*command, "classify", *arguments, **options)


@contextmanager
def _started(
    *arguments: str | Path, command: Sequence[str] = SLOW_COMMAND, **options: Any
) -> Iterator[Program]:
    usual: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stderr": subprocess.PIPE,
        "env": environment(),
    }
    command = [*command, "classify", *map(str, arguments)]
    with Program(command, cwd=ROOT, text=True, **(usual | options)) as process:
        yield process


def _said(process: Program, code: int) -> str:
    """What the process has written to standard error until its end, with this exit code."""
    assert process.stderr
    assert process.wait(60) == code
    written: str = process.stderr.read()
    return written


def _rows(count: int) -> list[tuple[str, str]]:
    return [(str(n), " ".join([WORDS[n % 5]] * (1 + n % 7)).strip()) for n in range(count)]


def _csv(path: Path, count: int) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("id", "text"), *_rows(count)])
    return path


def _parquet(path: Path, count: int) -> Path:
    ids, texts = zip(*_rows(count), strict=True)
    pq.write_table(pa.table({"id": ids, "text": texts}), path)
    return path


def _jsonl(path: Path, count: int) -> Path:
    rows = [dict(zip(("id", "text"), row, strict=True)) for row in _rows(count)]
    rows[-1]["label"] = "a column that only the last row has"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def _made(make: Callable[[Path, int], Path], folder: Path, count: int) -> Path:
    """A file whose name has the ending of its kind."""
    return make(folder / f"in.{make.__name__.strip('_')}", count)


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _read_inputs(path: Path) -> list[tuple[str, str]]:
    """The columns that ``_rows`` made."""
    return [(row["id"], row["text"]) for row in _read(path)]


def _files(source: Path, target: Path, bundle: Path) -> list[str]:
    return ["--model", str(bundle), "--input", str(source), "--output", str(target)]


def _finished(output: Path) -> list[dict[str, Any]]:
    """What is recorded of the chunks that are finished."""
    try:
        lines = Path(f"{output}.progress").read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines[1:] if line.endswith(b"\n")]


def _chunks(output: Path) -> int:
    return len(_finished(output))


def _saved_rows(output: Path) -> int:
    return sum(chunk["tally"]["rows"] for chunk in _finished(output))


@contextmanager
def _paused(source: Path, target: Path, bundle: Path) -> Iterator[Program]:
    """A run that writes nothing more after its first parts, until it is sent SIGCONT."""
    with _started(*_files(source, target, bundle)) as process:
        eventually(lambda: _chunks(target) > 1)
        process.send_signal(signal.SIGSTOP)
        eventually(lambda: state_of(process.pid) == "T")
        yield process


def test_a_csv_file_to_a_csv_file(bundle: Path, tmp_path: Path) -> None:
    """The output has all rows in order with their results; standard error has only a summary."""
    source, target = _csv(tmp_path / "in.csv", 5_000), tmp_path / "out.csv"
    done = _classify(*_files(source, target, bundle))
    assert (done.returncode, done.stdout) == (0, "")
    rows = _read(target)
    assert _read_inputs(target) == _rows(5_000)
    labels = ["positive", "negative", "neutral", "", "neutral"]
    assert [row["label"] for row in rows] == labels * 1_000
    assert float(rows[0]["score"]) == float(rows[0]["score_positive"]) > 0.9
    scores = [float(rows[1][f"score_{label}"]) for label in ("positive", "negative")]
    assert float(rows[1]["polarity"]) == pytest.approx(scores[0] - scores[1])
    assert {row["error"].partition(":")[0] for row in rows} == {"", "empty_text"}
    first, *lines = done.stderr.splitlines()
    assert first.startswith("5,000 rows in ")
    assert [line.split() for line in lines] == [
        ["negative", "1,000", "25.0%"],
        ["neutral", "2,000", "50.0%"],
        ["positive", "1,000", "25.0%"],
        ["errors", "1,000,", "truncated", "0"],
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", "out.csv"]


def test_a_file_to_standard_output(
    bundle: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A file gives the same lines as texts given as arguments; --json prints the results."""
    (tmp_path / "in.jsonl").write_text('{"tweet": "love"}\nnothing\n')
    options = ["--model", str(bundle), "--input", str(tmp_path / "in.jsonl"), "--column", "tweet"]
    assert main(["classify", *options]) == 0
    assert capfd.readouterr().out == "positive\t0.9756\tlove\nerror\tinvalid_request\t\n"
    assert main(["classify", *options, "--json"]) == 0
    first, second = map(json.loads, capfd.readouterr().out.splitlines())
    members = {"label", "score", "scores", "logits", "tokens", "truncated", "polarity"}
    assert set(first) == members
    assert second["error"]["message"] == "line 2 is not a JSON object: 'nothing'"


def test_standard_input_to_a_file(bundle: Path, tmp_path: Path) -> None:
    """Each line of standard input is a row with the column `text`."""
    (tmp_path / "lines").write_text("love\nworst\n")
    target = tmp_path / "out.jsonl"
    with (tmp_path / "lines").open() as lines:
        done = _classify("--model", bundle, "--output", target, stdin=lines)
    assert (done.returncode, done.stdout) == (0, "")
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert [(row["text"], row["label"]) for row in rows] == [
        ("love", "positive"),
        ("worst", "negative"),
    ]
    assert not list(tmp_path.glob(f"{target.name}.*"))


def _unusable_token(path: Path) -> Path:
    """A bundle whose tokenizer gives the word "beyond" an id that the model does not have."""
    make_bundle(path)
    tokenizer = json.loads((path / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["beyond"] = 3_000
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    write_manifest(path)
    return path


def test_a_text_whose_inference_fails(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Only its row has an error; the other texts of its batch are classified."""
    source, target = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("text\n" + "love\n" * 20 + "beyond\n" + "worst\n" * 20)
    bundle = _unusable_token(tmp_path / "bundle")
    assert main(["classify", *_files(source, target, bundle)]) == 0
    rows = _read(target)
    assert [row["label"] for row in rows] == ["positive"] * 20 + [""] + ["negative"] * 20
    assert rows[20]["error"] == "inference_failed: inference failed on this text"
    out, err = capfd.readouterr()
    assert (out, caplog.messages) == ("", [])
    assert err.splitlines()[-1] == "errors 1, truncated 0"


def test_a_model_that_fails_on_every_text(
    bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 1 and one line: the rows are not written as errors."""

    def fail(*_: object) -> None:
        raise RuntimeError("the device is gone\nand more")

    monkeypatch.setattr(Model, "infer", fail)
    source, target = _csv(tmp_path / "in.csv", 10), tmp_path / "out.csv"
    assert main(["classify", *_files(source, target, bundle)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("sentiment: the model fails on every text: the device is gone; ")
    assert not target.exists()


def test_memory_that_runs_out_costs_no_row(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A batch that does not fit is computed in parts, and later ones are smaller; one line says so.

    The rows are those of a run with enough memory.
    """
    source, target = _csv(tmp_path / "in.csv", 300), tmp_path / "out.csv"
    options = _files(source, target, bundle)
    assert main(["classify", *options]) == 0
    expected = target.read_text()
    target.unlink()
    infer = Model.infer

    def limited(model: Model, encodings: Sequence[Encoding]) -> Any:
        if len(encodings) * len(encodings[0]) > 256:
            raise RuntimeError("Failed to allocate memory for requested buffer of size 256")
        return infer(model, encodings)

    monkeypatch.setattr(Model, "infer", limited)
    assert main(["classify", *options]) == 0
    assert target.read_text() == expected
    [line] = [line for line in caplog.messages if "memory ran out" in line]
    assert "batches have at most 256 tokens, not 512" in line


def test_a_text_that_is_not_utf8(bundle: Path, tmp_path: Path) -> None:
    """Only its row has an error, which says so; the text is written as it was."""
    source, target = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_bytes("text\nlove é\nworst ".encode() + b"\xe9\n")
    assert main(["classify", *_files(source, target, bundle)]) == 0
    _, first, second = target.read_bytes().splitlines()
    assert first.startswith("love é,positive,".encode())
    assert second.startswith(b"worst \xe9,,")
    assert second.endswith(
        b'"invalid_request: the text is not UTF-8, or not of the encoding that was given"'
    )


def test_an_encoding_and_a_sheet_are_part_of_a_run(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output is UTF-8; a complete file of another encoding or sheet is not taken for this."""
    source, target = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("text\nlove é\n", "windows-1252")
    words = ["classify", *_files(source, target, bundle)]
    assert main([*words, "--encoding", "windows-1252"]) == 0
    assert target.read_text("utf-8").splitlines()[1].startswith("love é,positive,")
    capsys.readouterr()
    assert main([*words, "--encoding", "latin-1", "--resume"]) == 1
    assert "encoding was 'windows-1252' and is 'latin-1' now" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*words, "--encoding", "rot13"])
    assert "'rot13' is not an encoding of text; accepted are" in capsys.readouterr().err


WRONG_USAGE = [
    (["text", "--input", "in.csv"], "not both"),
    (["love", "in.csv"], "in.csv is a file: its texts are classified with --input in.csv"),
    (["--input", ""], "must end in one of"),
    (["--input", "-"], "each line of standard input is a text: cat FILE | sentiment classify"),
    (["--input", "in.xls"], ".txt .csv .tsv .jsonl .ndjson .json .parquet .xlsx .zip, all but"),
    (["--input", "in.csv", "--sheet", "A"], "--sheet is for an .xlsx workbook"),
    (["--input", "in.xlsx", "--encoding", "utf-16"], "--encoding is for text; .xlsx has one"),
    (["--input", "in.txt.zst", "--column", "a"], "--column needs an --input with columns"),
    (["--input", "in.csv", "--output", "out.csv.gz"], "out.csv.gz must end in one of"),
    (["--input", "in.csv", "--output", "out.json"], ".txt .csv .tsv .jsonl .ndjson .parquet"),
    (["--input", "in.txt", "--column", "tweet"], "--column"),
    (["love", "--column", "tweet"], "--column"),
    (["--input", "in.csv", "--resume"], "--resume"),
    (["--input", "in.csv", "--output", "out.csv", "--json"], "--json"),
    (["--input", "in.csv", "--output", "in.csv"], "must not be the --input"),
    (["--input", "in.csv", "--output", "link.csv"], "must not be the --input"),
    (["--input", "in.csv", "--output", "none/out.csv"], "does not exist"),
    (["--input", "in.csv", "--output", "directory.csv"], "is a directory"),
    (["--input", "in.csv", "--output", "device.csv", "--overwrite"], "or a device; --output must"),
    (["--overwrite", "love"], "--overwrite needs an --output"),
    (["--input", "s3://a/b.csv"], "is not a file of this machine"),
    (["--url", "http://x", "--model", "m", "love"], "--url"),
    (["--url", "localhost:8000", "love"], "http://"),
    (["--model", "a", "--model", "b", "love"], "give --model once"),
]
UNREADABLE = [
    (["--input", "missing.csv"], "there is no file"),
    (["--input", "directory.csv", "--output", "out.csv"], "is not a file"),
    (["--input", "in.csv", "--output", "loop.csv"], "loop.csv: Too many levels of symbolic links"),
    (["--input", "zip.csv", "--output", "out.csv"], "zip.csv is not text, but a ZIP archive"),
]


@pytest.mark.parametrize(
    ("code", "arguments", "words"),
    [*((2, *case) for case in WRONG_USAGE), *((1, *case) for case in UNREADABLE)],
)
def test_what_cannot_be_done(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    code: int,
    arguments: list[str],
    words: str,
) -> None:
    """Exit code 2 for wrong usage, one line that says what is accepted, and no file is written."""
    monkeypatch.chdir(tmp_path)
    _csv(tmp_path / "in.csv", 1)
    (tmp_path / "link.csv").symlink_to("in.csv")
    (tmp_path / "device.csv").symlink_to("/dev/null")
    (tmp_path / "loop.csv").symlink_to("loop.csv")
    (tmp_path / "directory.csv").mkdir()
    (tmp_path / "zip.csv").write_bytes(b"PK\x03\x04" + bytes(99))
    assert main(["classify", *arguments]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert len(list(tmp_path.iterdir())) == 6


@pytest.mark.parametrize("kind", ["file", "texts"])
def test_an_output_that_exists_is_kept(
    bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: str,
) -> None:
    """Only --overwrite replaces it. With --resume, one of this run is said to be complete.

    Where a file can have no mark of its run, each is, unless the input is newer.
    """
    monkeypatch.setenv("HOME", str(tmp_path))
    _csv(tmp_path / "in.csv", 10)
    target = tmp_path / "out.csv"
    target.write_text("precious\n")
    source = ["--input=~/in.csv"] if kind == "file" else ["love"]
    options = ["classify", "--model", str(bundle), *source, "--output=~/out.csv"]
    assert main(options) == 1
    assert capsys.readouterr().err == (
        f"sentiment: {target} exists; add --overwrite to replace it, or give another --output\n"
    )
    if kind == "file":
        for fault, code, says in (
            (errno.EOPNOTSUPP, 0, "is complete; nothing is left to do"),
            (errno.ENODATA, 1, "is not known to be an output of this run; --overwrite classifies"),
        ):
            read = Mock(side_effect=OSError(fault, "made up"))
            monkeypatch.setattr(os, "getxattr", read, raising=False)
            assert main([*options, "--resume"]) == code
            (line,) = capsys.readouterr().err.splitlines()
            assert line.startswith(f"sentiment: {target} {says}")
        later = target.stat().st_mtime + 10
        os.utime(tmp_path / "in.csv", (later, later))
        assert main([*options, "--resume"]) == 1
        assert f"in.csv is newer than the complete {target}" in capsys.readouterr().err
    assert target.read_text() == "precious\n"
    assert main([*options, "--overwrite"]) == 0
    assert "precious" not in target.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", "out.csv"]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("mode", [0o600, 0o440])
def test_a_file_that_is_replaced_keeps_its_place_and_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, mode: int
) -> None:
    """A private file stays private, also while it is written, and a link to it stays a link."""
    source, link, target = tmp_path / "in.csv", tmp_path / f"link{suffix}", tmp_path / "other/real"
    target.parent.mkdir()
    target.touch(mode)
    link.symlink_to(target)
    seen: list[int] = []

    def seeing(path: Path, of: Path) -> Path:
        seen.extend(stat.S_IMODE(one.stat().st_mode) for one in target.parent.glob("*.partial*"))
        return replace(path, of)

    replace = Path.replace
    monkeypatch.setattr(Path, "replace", seeing)
    assert _classify_rest(_csv(source, 10), link, "--overwrite") == 10
    assert (link.is_symlink(), stat.S_IMODE(target.stat().st_mode)) == (True, mode)
    assert target.read_bytes().startswith(b"PAR1" if suffix == ".parquet" else b"id,text,")
    assert {one & 0o177 for one in seen} <= {0, mode & 0o177}
    assert {path.name for path in target.parent.iterdir()} == {"real"}


@pytest.mark.usefixtures("slow_commands_chunks")
def test_ctrl_c_and_resume(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C exits with 130 and one line. Only --resume continues, and only the same run."""
    source, target = _csv(tmp_path / "in.csv", 3_000), tmp_path / "out.csv"
    options = _files(source, target, bundle)
    assert main(["classify", *options]) == 0
    whole = target.read_bytes()
    target.unlink()
    with _started(*options) as process:
        eventually(lambda: _chunks(target) > 3)
        process.send_signal(signal.SIGINT)
        (line,) = _said(process, 130).splitlines()
    assert line.startswith("sentiment: interrupted; ")
    assert line.endswith(" rows are saved; add --resume to continue")
    saved = int(line.split()[2])
    assert 0 < saved < 3_000
    assert not target.exists()

    capsys.readouterr()
    assert main(["classify", *options]) == 1
    assert "add --resume to continue it, or delete the file" in capsys.readouterr().err
    assert main(["classify", *options, "--column", "id", "--resume"]) == 1
    assert "column was 'text' and is 'id' now" in capsys.readouterr().err

    assert main(["classify", *options, "--resume"]) == 0
    said = capsys.readouterr().err
    assert f"{saved:,} of them in earlier runs" in said
    assert "errors 600, truncated 0" in said
    assert target.read_bytes() == whole
    assert not list(tmp_path.glob(f"{target.name}.*"))


@pytest.mark.parametrize("finished", [1, 3])
def test_ctrl_c_just_after_a_chunk_is_saved(
    bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    finished: int,
) -> None:
    """That chunk is counted, and kept even if it is the first."""
    source, target = _csv(tmp_path / "in.csv", 100), tmp_path / "out.csv"
    monkeypatch.setattr(tables, "CHUNK_CHARS", 300)
    add = OutputFile.add

    def interrupted(self: OutputFile, *chunk: Any) -> None:
        with (
            _interrupted_after_its_write(self) if _chunks(target) == finished - 1 else nullcontext()
        ):
            add(self, *chunk)

    monkeypatch.setattr(OutputFile, "add", interrupted)
    assert main(["classify", *map(str, _files(source, target, bundle))]) == 130
    rows = _saved_rows(target)
    assert _chunks(target) == finished
    assert capsys.readouterr().err == (
        f"sentiment: interrupted; {rows} rows are saved; add --resume to continue\n"
    )


@contextmanager
def _interrupted_after_its_write(output: OutputFile) -> Iterator[None]:
    log = output._log

    class Log:
        def write(self, line: bytes) -> None:
            log.write(line)
            raise KeyboardInterrupt

    output._log = Log()  # type: ignore[assignment]
    try:
        yield
    finally:
        output._log = log


def test_ctrl_c_before_the_first_row(
    bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also while a slow disk writes the begin of the file, it is said that nothing is saved."""
    monkeypatch.setattr(OutputFile, "begin", Mock(side_effect=KeyboardInterrupt))
    source = _csv(tmp_path / "in.csv", 10)
    assert main(["classify", *map(str, _files(source, tmp_path / "out.csv", bundle))]) == 130
    assert capsys.readouterr().err == "sentiment: interrupted; no row is saved yet\n"
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


def test_ctrl_c_does_not_wait_for_a_slow_model(bundle: Path, tmp_path: Path) -> None:
    """Chunks that were read ahead, here minutes of work, are not computed after Ctrl-C."""
    source, target = _csv(tmp_path / "in.csv", 10_000), tmp_path / "out.csv"
    options = _files(source, target, bundle)
    env = environment(SENTIMENT_MAX_BATCH_TOKENS="8")
    with _started(*options, command=serving.SLOW_COMMAND, env=env) as process:
        eventually(Path(f"{target}.progress").exists)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        line = _said(process, 130)
    assert line == "sentiment: interrupted; no row is saved yet\n"
    assert not target.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


def test_ctrl_c_while_reading_standard_input(bundle: Path, tmp_path: Path) -> None:
    """No file is left, because standard input cannot be read again to continue."""
    target = tmp_path / "out.csv"
    options = ("--model", bundle, "--output", target)
    with _started(*options, command=COMMAND, stdin=subprocess.PIPE) as process:
        assert process.stdin
        process.stdin.write("love\n" * 1_000)
        process.stdin.flush()
        eventually(Path(f"{target}.progress").exists)
        process.send_signal(signal.SIGINT)
        assert _said(process, 130) == ""
    assert not list(tmp_path.iterdir())


class _RecordingClassifier:
    """A classifier that answers at once and records the texts."""

    def __init__(self) -> None:
        self.columns = ResultColumns(["good"], multi_label=False)
        self.identity = {"model": "recording"}
        self.texts: list[str] = []

    def classify(
        self, chunks: Iterable[Chunk], **_: object
    ) -> Generator[ClassifiedChunk, None, None]:
        good: ResultItem = {
            "label": "good",
            "score": 1.0,
            "scores": {"good": 1.0},
            "truncated": False,
        }
        for chunk in chunks:
            self.texts += [text for text in chunk.texts if isinstance(text, str)]
            yield chunk, [good] * len(chunk.texts)


def _classify_rest(source: Path, target: Path, *more: str) -> int:
    """Start or continue the run, and finish it. Returns the number of texts classified now."""
    classifier = _RecordingClassifier()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "_classifier", lambda *_: classifier)
        options = ["--input", str(source), "--output", str(target), "--resume", *more]
        assert main(["classify", *options]) == 0
    return len(classifier.texts)


def _shorten(partial: Path, progress: Path) -> None:
    end = json.loads(progress.read_bytes().splitlines()[-1])["end"]
    partial.write_bytes(partial.read_bytes()[: end - 1])


def _change(partial: Path, progress: Path) -> None:
    content, end = partial.read_bytes(), json.loads(progress.read_bytes().splitlines()[-1])["end"]
    at = content.rindex(b"love", 0, end)
    partial.write_bytes(content[:at] + b"hate" + content[at + 4 :])


def _cut_progress(partial: Path, progress: Path) -> None:
    progress.write_bytes(progress.read_bytes()[:-10])


def _name_otherwise(partial: Path, progress: Path) -> None:
    """What another version may write."""
    *lines, last = progress.read_bytes().splitlines(keepends=True)
    progress.write_bytes(b"".join(lines) + last.replace(b'"sha256"', b'"digest"'))


def _add_rest(partial: Path, progress: Path) -> None:
    """What a run leaves that is killed while it writes."""
    partial.write_bytes(partial.read_bytes() + b"half a row")
    progress.write_bytes(progress.read_bytes() + b'{"end": 12')


@pytest.mark.parametrize(
    ("damage", "again"),
    [
        (_shorten, 1),
        (_change, 1),
        (_cut_progress, 1),
        (_name_otherwise, 1),
        (_add_rest, 0),
    ],
)
def test_damaged_chunks_are_written_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Path, Path], None],
    again: int,
) -> None:
    """A continued run classifies the rows from the first damaged chunk on again."""
    monkeypatch.setattr(tables, "CHUNK_CHARS", 60)
    source, target = _csv(tmp_path / "in.csv", 60), tmp_path / "out.csv"
    assert _classify_rest(source, target) == 60
    whole = target.read_bytes()
    target.unlink()
    assert _killed_at(17, source, target)
    rows = [chunk["tally"]["rows"] for chunk in _finished(target)]
    assert len(rows) > 2
    damage(Path(f"{target}.partial"), Path(f"{target}.progress"))
    left = 60 - sum(rows[: len(rows) - again])
    assert _classify_rest(source, target) == left
    assert target.read_bytes() == whole
    said = [
        f"{target}.partial is damaged; its rows after the first {60 - left} are classified again"
    ]
    assert caplog.messages == (said if damage is _change else [])


@pytest.mark.parametrize(
    ("make", "suffix"),
    [
        *((_csv, ".csv"), (_csv, ".parquet"), (_jsonl, ".parquet")),
        *((_parquet, ".parquet"), (_jsonl, ".jsonl")),
    ],
)
def test_killed_at_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any, suffix: str
) -> None:
    """A run killed before or after any file operation continues after its last finished chunk.

    It writes the same file, byte for byte.
    """
    monkeypatch.setattr(tables, "CHUNK_CHARS", 60)
    monkeypatch.setattr(parquet, "CHUNK_ROWS", 10)
    source, target = _made(make, tmp_path, 30), tmp_path / f"out{suffix}"
    assert _classify_rest(source, target) == 30
    whole = target.read_bytes()
    target.unlink()
    steps = 0
    while _killed_at(steps, source, target):
        steps += 1
        assert not target.exists() or target.read_bytes() == whole
        partial = Path(f"{target}.partial")
        unfinished = partial.exists() and partial.stat().st_size > 0
        done = _saved_rows(target) if unfinished else 30 * target.exists()
        assert _classify_rest(source, target) == 30 - done
        assert target.read_bytes() == whole
        assert {path.name for path in tmp_path.iterdir()} == {source.name, target.name}
        target.unlink()
    assert steps > 20


def _killed_at(step: int, source: Path, target: Path, *more: str) -> bool:
    """Run in a process that is killed at this step: before or after a file operation.

    Returns False if the run was complete before it got to the step.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if not child:
        # It has none of the threads of this process; what waits for one of them would never end.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        left = step

        def counted(function: Any) -> Any:
            def call(*arguments: Any, **options: Any) -> Any:
                nonlocal left
                for after in (False, True):
                    if left == 0:
                        os._exit(9)
                    left -= 1
                    result = None if after else function(*arguments, **options)
                return result

            return call

        for name in ("replace", "unlink"):
            setattr(Path, name, counted(getattr(Path, name)))
        os.fsync = counted(os.fsync)
        try:
            _classify_rest(source, target, *more)
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9)
    return code == 9


def test_resume_of_a_run_that_overwrites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command with --resume continues it; without an unfinished run, it overwrites."""
    monkeypatch.setattr(tables, "CHUNK_CHARS", 60)
    source, target = _csv(tmp_path / "in.csv", 30), tmp_path / "out.csv"
    target.write_text("precious\n")
    assert _killed_at(12, source, target, "--overwrite")
    assert target.read_text() == "precious\n"
    done = _saved_rows(target)
    assert 0 < done < 30
    assert _classify_rest(source, target, "--overwrite") == 30 - done
    whole = target.read_bytes()
    target.write_text("precious\n")
    assert _classify_rest(source, target, "--overwrite") == 30
    assert target.read_bytes() == whole


@pytest.mark.parametrize("name", ["out.csv.partial", "out.csv.progress"])
def test_files_of_someone_else_are_kept(
    tmp_path: Path, bundle: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """A file that no run has written is refused by name, and so is a directory of old versions."""
    source, target = _csv(tmp_path / "in.csv", 10), tmp_path / "out.csv"
    (tmp_path / name).write_text("precious\n")
    for more in ([], ["--resume"], ["--overwrite"]):
        assert main(["classify", *_files(source, target, bundle), *more]) == 1
        assert f"{name} is not of a run that can be continued; delete it" in capsys.readouterr().err
    assert (tmp_path / name).read_text() == "precious\n"
    (tmp_path / name).unlink()
    Path(f"{target}.partial").mkdir()
    assert main(["classify", *_files(source, target, bundle)]) == 1
    assert "out.csv.partial is a directory, as older versions wrote it" in capsys.readouterr().err


class _DamagedTable(CsvTable):
    """A file that cannot be read behind its first ``left`` chunks."""

    left = 0

    def chunks(self) -> Iterator[Chunk]:
        yield from islice(super().chunks(), self.left)
        raise CannotContinue("in.csv cannot be read")


@pytest.mark.parametrize("left", [0, 5])
def test_resume_is_promised_only_where_it_works(
    tmp_path: Path,
    bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    left: int,
) -> None:
    """A run whose input cannot be read to its end is not told to add --resume.

    If no row was saved, the corrected input can be classified without it.
    """
    monkeypatch.setattr(tables, "CHUNK_CHARS", 100)
    source, target = _csv(tmp_path / "in.csv", 100), tmp_path / "out.csv"
    options = ["classify", *_files(source, target, bundle)]
    with monkeypatch.context() as patch:
        patch.setattr(_DamagedTable, "left", left)
        patch.setattr(formats, "CsvTable", _DamagedTable)
        assert main(options) == 1
    rows = _saved_rows(target)
    where = f"; {rows} rows are in {target}.partial" if left else ""
    assert capsys.readouterr().err == f"sentiment: in.csv cannot be read{where}\n"
    assert main(options) == (1 if left else 0)


def test_an_input_that_changes_during_the_run(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run stops, because its rows would be of two files."""
    source, target = _csv(tmp_path / "in.csv", 3_000), tmp_path / "out.csv"
    with _paused(source, target, bundle) as process:
        os.utime(source, ns=(1, 1))
        process.send_signal(signal.SIGCONT)
        (line,) = _said(process, 1).splitlines()
    assert "in.csv has changed since the start, so this run cannot be continued; " in line
    assert not target.exists()
    assert main(["classify", *_files(source, target, bundle), "--resume"]) == 1
    assert "cannot be continued: input was [" in capsys.readouterr().err


def test_two_runs_into_one_output(
    bundle: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The second run is refused while the first is alive, with any input and with --resume."""
    first, other = _csv(tmp_path / "a.csv", 3_000), _csv(tmp_path / "b.csv", 2_000)
    target = tmp_path / "out.csv"
    with _paused(first, target, bundle) as process:
        for source, more in ((other, []), (first, []), (first, ["--resume"])):
            assert main(["classify", *_files(source, target, bundle), *more]) == 1
            assert capsys.readouterr().err == (
                f"sentiment: another run is writing to {target}; wait for its end, or choose "
                "another --output\n"
            )
        assert not caplog.records
        process.send_signal(signal.SIGCONT)
        assert process.wait(60) == 0
    assert _read_inputs(target) == _rows(3_000)


def test_a_run_whose_chunks_were_removed(bundle: Path, tmp_path: Path) -> None:
    """It ends with one line, and the next run into the same file works."""
    first, other = _csv(tmp_path / "a.csv", 3_000), _csv(tmp_path / "b.csv", 2_000)
    target = tmp_path / "out.csv"
    with _paused(first, target, bundle) as process:
        Path(f"{target}.partial").unlink()
        Path(f"{target}.progress").unlink()
        process.send_signal(signal.SIGCONT)
        (line,) = _said(process, 1).splitlines()
    assert line == f"sentiment: {target}.partial was removed during the run"
    assert main(["classify", *_files(other, target, bundle)]) == 0
    assert _read_inputs(target) == _rows(2_000)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "b.csv", "out.csv"]


@pytest.mark.usefixtures("slow_commands_chunks")
def test_a_full_disk_keeps_the_complete_chunks(bundle: Path, tmp_path: Path) -> None:
    """Exit code 1 and one line; once there is space again, --resume continues."""
    source, target = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("text\n" + "love\n" * 100 + f'"{"x" * 20_000}"\n' + "worst\n" * 100)
    options = _files(source, target, bundle)
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))"
    done = _classify(*options, command=[*SLOW_COMMAND[:2], f"{limit}\n{SLOW_COMMAND[2]}"])
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "File too large; 75 rows are saved; add --resume to continue" in line
    assert not target.exists()
    assert Path(f"{target}.partial").stat().st_size == _finished(target)[-1]["end"]
    assert main(["classify", *options, "--resume"]) == 0
    assert len(target.read_text().splitlines()) == 202


def test_a_service_gives_the_same_file(bundle: Path, url: str, tmp_path: Path) -> None:
    """With --url, the file is the same as from a local model, and no local model is loaded."""
    source = _csv(tmp_path / "in.csv", 5_000)
    local, remote = tmp_path / "local.csv", tmp_path / "remote.csv"
    assert main(["classify", *_files(source, local, bundle)]) == 0
    code = (
        "import sys; from sentiment_service.cli.command import main; code = main(); "
        "print(*{'onnxruntime', 'tokenizers', 'numpy'} & sys.modules.keys()); sys.exit(code)"
    )
    options = ("--url", url, "--input", source, "--output", remote)
    done = _classify(*options, command=[sys.executable, "-c", code])
    assert (done.returncode, done.stdout) == (0, "\n")
    assert remote.read_bytes() == local.read_bytes()
    line = _classify("--url", url, "love", "").stdout
    assert line == "positive\t0.9756\tlove\nerror\tempty_text\t\n"


def test_a_service_that_requires_a_key(listen: Listen) -> None:
    """SENTIMENT_API_KEY is the key. A missing or bad key is a one-line error without the key."""
    url = f"http://127.0.0.1:{listen(api_keys='k3y-of-test')}"
    assert _classify("--url", url, "love", SENTIMENT_API_KEY="k3y-of-test").returncode == 0
    for key in ("", "another", "no\nkey"):
        done = _classify("--url", url, "love", SENTIMENT_API_KEY=key)
        assert (done.returncode, done.stdout) == (1, "")
        (line,) = done.stderr.splitlines()
        assert ("api_key" if "\n" in key else "401 unauthorized") in line
        assert not key or key not in line


def test_a_service_that_dies(bundle: Path, tmp_path: Path) -> None:
    """Exit code 1 and a one-line error; when the service is back, --resume continues."""
    source, target = _csv(tmp_path / "in.csv", 4_000), tmp_path / "out.csv"
    patience = "from sentiment_service.files import remote; remote.PATIENCE_S = 0.5\n"
    command = [*SLOW_COMMAND[:-1], patience + SLOW_COMMAND[-1]]
    with Process("--model", str(bundle), *FLAGS) as service:
        url, port = service.url, service.port
        options = ("--url", url, "--input", source, "--output", target)
        with _started(*options, command=command) as process:
            eventually(lambda: _chunks(target) > 5)
            service.signal(signal.SIGKILL)
            (line,) = _said(process, 1).splitlines()
    assert f"cannot reach {url}" in line
    assert "rows are saved; add --resume to continue" in line
    with Process("--model", str(bundle), *FLAGS, "--port", str(port)):
        done = _classify(*options, "--resume", command=SLOW_COMMAND)
    assert done.returncode == 0
    assert "of them in earlier runs" in done.stderr
    assert _read_inputs(target) == _rows(4_000)


def test_a_progress_bar_on_a_terminal(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bar shows the speed and the estimated total; it is shown only on a terminal."""
    source, target = _csv(tmp_path / "in.csv", 3_000), tmp_path / "out.csv"
    options = _files(source, target, bundle)
    outside, inside = terminal()
    termios.tcsetwinsize(inside, (24, 80))
    with _started(*options, stderr=inside) as process:
        os.close(inside)
        shown = b""
        try:
            while part := os.read(outside, 10_000):
                shown += part
        except OSError:  # the other end is closed
            pass
        assert process.wait(30) == 0
    os.close(outside)
    assert b" texts/s" in shown
    assert b"%|" in shown
    assert b"3,000 rows in " in shown
    assert main(["classify", *options, "--overwrite"]) == 0
    assert "texts/s" not in capsys.readouterr().err


@pytest.mark.parametrize("bar", [True, False])
def test_a_warning_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bar: bool
) -> None:
    """It is written to standard error without a traceback, with or without the package tqdm."""
    if not bar:
        monkeypatch.setitem(sys.modules, "tqdm", None)
    warning = logging.makeLogRecord({"msg": "row %d is damaged", "args": (3,)})
    try:
        raise RuntimeError("secret")
    except RuntimeError:
        warning.exc_info = sys.exc_info()
    Warnings().handle(warning)
    assert capsys.readouterr() == ("", "sentiment: row 3 is damaged\n")


def test_memory_does_not_grow_with_the_file(bundle: Path, tmp_path: Path) -> None:
    """Ten times the rows take the same memory, apart from small variations."""
    peaks = []
    for count in (4_000, 40_000):
        source = tmp_path / f"{count}.csv"
        with source.open("w") as file:
            file.write("text,other\n")
            file.writelines(f"love it {n},{'x' * 1_000}\n" for n in range(count))
        target = source.with_suffix(".jsonl")
        # Measured whenever a chunk is saved. The peak from getrusage may be that of this process.
        code = (
            "import sys; from pathlib import Path; from sentiment_service.cli.command import main; "
            "from sentiment_service.files.output_file import OutputFile as O; add = O.add; "
            "O.add = lambda *a: (print(Path('/proc/self/statm').read_text()), add(*a))[1]; "
            "sys.exit(main())"
        )
        done = _classify(*_files(source, target, bundle), command=[sys.executable, "-c", code])
        assert done.returncode == 0, done.stderr
        pages = max(int(line.split()[1]) for line in done.stdout.splitlines() if line)
        peaks.append(pages * resource.getpagesize() / 2**20)
    assert peaks[1] - peaks[0] < 20
