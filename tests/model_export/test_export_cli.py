"""The ``sentiment-export`` command: exit codes and messages."""

import contextlib
import io
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from sentiment_export import export as export_module
from sentiment_export.checkpoint.checkpoint import Checkpoint
from sentiment_export.cli import main
from sentiment_export.quality.evaluation import evaluate
from sentiment_export.quality.labelled import Example
from sentiment_service.engine.model.bundle import Bundle
from sentiment_service.errors import UserError

from tests.support.checkpoints import CORPUS, Exported
from tests.support.serving import run_program

LABELS = ["negative", "neutral", "positive"]
DISTIL = ["distil", "base", "--texts", "t.txt", "--output", "out"]
EVALUATE = ["evaluate", "bundle", "file"]
FINETUNE = ["finetune", "base", "--train", "t.tsv", "--validation", "v.tsv", "--output", "out"]


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    """A labelled file with every label."""
    rows = [f"en\t{LABELS[index % 3]}\t{text}\n" for index, text in enumerate(CORPUS)]
    path = tmp_path / "labelled.tsv"
    path.write_text("".join(rows), encoding="utf-8")
    return path


@pytest.fixture
def mostly_right(bert: Exported, tmp_path: Path) -> Path:
    """A labelled file; its labels are those of the model for six texts of seven."""
    return _judged(bert, tmp_path / "mostly-right.tsv", wrong=7)


def _judged(bert: Exported, path: Path, wrong: int) -> Path:
    """A labelled file whose labels are those of the model, but for one text of ``wrong``."""
    examples = [
        Example("en", (LABELS[0],), f"{CORPUS[row % len(CORPUS)]} {row}") for row in range(100)
    ]
    rows = []
    for row, (label,) in enumerate(evaluate(bert.model("int8"), examples)[1]):
        other = LABELS[(LABELS.index(label) + 1) % 3]
        rows.append(f"en\t{label if row % wrong else other}\t{examples[row].text}\n")
    path.write_text("".join(rows), encoding="utf-8")
    return path


def test_an_export_says_what_it_wrote(
    bert: Exported,
    tmp_path: Path,
    labelled: Path,
    mostly_right: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 0, the bundle is there, and its options were heard."""
    output = tmp_path / "out"
    words = [str(bert.source), "--output", str(output), "--precision", "int8"]
    words += ["--evaluate", str(labelled), "--calibrate", str(mostly_right)]
    assert main([*words, "--preprocessing", "tweet"]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1] == f"wrote {output}"
    assert printed.err == ""
    manifest = Bundle.open(output).manifest
    assert list(manifest.variants) == ["int8"]
    assert manifest.preprocessing == "tweet"
    assert manifest.variants["int8"].accuracy is not None
    calibration = manifest.variants["int8"].calibration
    assert calibration is not None
    assert (calibration.loss, calibration.texts) == ("log", 100)
    assert f"int8: {calibration.line()}" in printed.out
    assert (
        f"| int8 | {calibration.temperature:.4f} | log loss |" in (output / "README.md").read_text()
    )
    for name in ("manifest.json", "README.md"):  # of an export without --calibrate
        assert "calibrat" not in (bert.bundle / name).read_text().lower()


def test_an_export_that_no_temperature_helps_is_written(
    bert: Exported, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is not calibrated, and says so and why."""
    texts, output = _judged(bert, tmp_path / "wrong.tsv", wrong=1), tmp_path / "out"
    words = [str(bert.source), "--output", str(output), "--precision", "int8"]
    assert main([*words, "--calibrate", str(texts)]) == 0
    assert "int8 is not calibrated: no temperature fits, because" in capsys.readouterr().out
    assert Bundle.open(output).manifest.variants["int8"].calibration is None


@pytest.mark.parametrize("value", ["fp32,int8", "int8, fp32", "int8,fp32,int8"])
def test_precisions_are_a_list(
    bert: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """In any order, with spaces or said twice, each is written once."""
    asked: list[object] = []
    monkeypatch.setattr(
        export_module, "export", lambda *a, precisions, **k: asked.append(precisions)
    )
    assert main([str(bert.source), "--output", str(tmp_path / "out"), "--precision", value]) == 0
    assert asked == [("fp32", "int8")]


def test_what_the_options_ask_for_arrives(
    bert: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels are named in order; the gate's limit and the two switches are handed on."""
    asked: dict[str, Any] = {}

    def export(checkpoint: Checkpoint, output: Path, **options: Any) -> None:
        asked.update(options, labels=checkpoint.labels, text_pairs=checkpoint.text_pairs)

    monkeypatch.setattr(export_module, "export", export)
    words = [str(bert.source), "--output", str(tmp_path / "out"), "--labels", "bad, so-so,good"]
    words += ["--max-accuracy-loss", "0.2", "--debug-parity", "--precision", "fp16", "--text-pairs"]
    assert main(words) == 0
    assert asked["labels"] == ["bad", "so-so", "good"]
    assert asked["precisions"] == ("fp16",)
    assert asked["max_accuracy_loss"] == 0.2
    assert asked["debug_parity"] is True
    assert asked["text_pairs"] is True


def test_layers_are_compared_on_request(
    bert: Exported, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every variant's layers, and that none departs."""
    words = [str(bert.source), "--output", str(tmp_path / "out"), "--debug-parity"]
    assert main([*words, "--precision", "fp32,int8,fp16"]) == 0
    printed = capsys.readouterr().out
    for precision in ("fp32", "int8", "fp16"):
        assert f"{precision}, layer by layer:" in printed
    assert printed.count("bert.encoder.layer.1.output.LayerNorm") == 3
    assert printed.count("first module beyond the tolerance: none") == 3


def test_describe_prints_text_or_json(bert: Exported, capsys: pytest.CaptureFixture[str]) -> None:
    """The same command for a reader and for a program."""
    assert main(["describe", str(bert.source)]) == 0
    assert "BertForSequenceClassification" in capsys.readouterr().out
    assert main(["describe", str(bert.source), "--json"]) == 0
    assert "BertForSequenceClassification" in json.dumps(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("words", ["--output {tmp}/out", "describe", "distil --texts t --output o"])
def test_a_revision_may_stand_behind_the_hub_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    """As in ``sentiment serve --model``; a second one is refused, and a path is no hub id."""
    asked: list[list[str]] = []

    def ask(*arguments: object, **_: object) -> None:
        asked.append([one for one in arguments if isinstance(one, str)][:2])
        raise UserError("asked")

    monkeypatch.chdir(tmp_path)
    for name in ("checkpoint.hub.fetch_bundle", "checkpoint.checkpoint.find_checkpoint"):
        monkeypatch.setattr(f"sentiment_export.{name}", ask)
    monkeypatch.setattr("sentiment_export.distil.find_checkpoint", ask)
    given = words.format(tmp=tmp_path).split()
    assert main([*given, "acme/tiny@dev"]) == 1
    assert asked == [["acme/tiny", "dev"]]
    with pytest.raises(SystemExit, match="2"):
        main([*given, "acme/tiny@dev", "--revision", "v1"])
    assert "--revision: acme/tiny@dev names one already" in capsys.readouterr().err
    (tmp_path / "acme/tiny@dev").mkdir(parents=True)
    assert main([*given, "acme/tiny@dev"]) == 1
    assert [one for one, *_ in asked] == ["acme/tiny", "acme/tiny@dev"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("{tmp}/none --output {tmp}/out", "neither"),
        ("{source} --output {tmp}", "is not a bundle"),
        ("{source} --output {tmp}/malformed/out", "malformed: File exists"),
        ("{source} --output {tmp}/out --evaluate {tmp}/malformed", "malformed:1"),
        ("{source} --output {tmp}/out --calibrate {tmp}/malformed", "malformed:1"),
        ("evaluate {tmp} {tmp}/labelled.tsv", "not a bundle"),
        ("calibrate {tmp} {tmp}/labelled.tsv", "not a bundle"),
        ("calibrate {tmp}/no labelled.tsv", "there is no directory"),
        (
            "calibrate {bundle} {tmp}/none",
            "there is no file {tmp}/none",
        ),
        ("evaluate org/name {tmp}/none", "none: No such file or directory"),
        ("evaluate {bundle} {tmp}/malformed", "malformed:1"),
        (
            "finetune {tmp}/none --train {tmp}/t --validation {tmp}/v --output {tmp}/out",
            "not a directory",
        ),
    ],
)
def test_a_failure_is_one_line(
    bert: Exported,
    tmp_path: Path,
    labelled: Path,
    capsys: pytest.CaptureFixture[str],
    words: str,
    says: str,
) -> None:
    """Exit code 1, one line on standard error, nothing written."""
    (tmp_path / "malformed").write_text("no columns\n")
    before = sorted(tmp_path.iterdir())
    paths = {"source": bert.source, "bundle": bert.bundle, "tmp": tmp_path}
    assert main([word.format(**paths) for word in words.split()]) == 1
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert line.startswith("sentiment-export: ")
    assert says.format(**paths) in line
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "required: source, --output"),
        (["describe"], "required: source"),
        (
            ["c", "--output", "out", "--max-accuracy-loss", "much"],
            "a number from 0 to 1, not 'much'",
        ),
        (
            ["c", "--output", "out", "--max-accuracy-loss", "nan"],
            "a number from 0 to 1, not 'nan'",
        ),
        (
            ["c", "--output", "out", "--max-accuracy-loss=-0.1"],
            "a number from 0 to 1, not '-0.1'",
        ),
        (["checkpoint"], "required: --output"),
        (["checkpoint", "--output", "out", "--precision", "int4"], "unknown precision int4"),
        (["checkpoint", "--output", "out", "--precision", "fp32,"], "unknown precision"),
        (["checkpoint", "--output", "out", "--preprocessing", "html"], "not 'html'"),
        (["checkpoint", "--output", "out", "--verbose"], "there is no option '--verbose'"),
        (["evalute", "bundle", "file"], "'evalute' (the nearest is evaluate)"),
        (["evaluate", "bundle"], "required: file"),
        ([*EVALUATE, "--picture", "matrix.png"], "--picture: matrix.png must end in .svg"),
        ([*EVALUATE, "--device", "cuda", "--precision", "int8"], "int8 is for CPUs"),
        ([*EVALUATE, "--columns", "x"], "no option '--columns' (the nearest is --column)"),
        (["calibrate", "bundle"], "required: file"),
        (["calibrate", "bundle", "file", "--loss", "hinge"], "there is no 'hinge'"),
        (["finetune", "base"], "required: --train, --validation, --output"),
        ([*FINETUNE, "--batch-size", "-1"], "must be a whole number of at least 1, not '-1'"),
        ([*FINETUNE, "--epochs", "0"], "--epochs: must be a whole number of at least 1, not '0'"),
        ([*FINETUNE, "--epochs", "1.5"], "must be a whole number of at least 1, not '1.5'"),
        ([*FINETUNE, "--learning-rate", "nan"], "must be a number above 0, not 'nan'"),
        ([*FINETUNE, "--learning-rate", "inf"], "must be a number above 0, not 'inf'"),
        ([*FINETUNE, "--learning-rate=-1e-4"], "must be a number above 0, not '-1e-4'"),
        ([*FINETUNE, "--learning-rate", "fast"], "must be a number above 0, not 'fast'"),
        (["distil", "base"], "required: --texts, --output"),
        ([*DISTIL, "--layers", "half"], "a number of layers, or which layers, such as 1,3,5, not"),
        ([*DISTIL, "--layers", "1,-2"], "a number of layers, or which layers, such as 1,3,5, not"),
        ([*DISTIL, "--epochs", "1", "--minutes", "5"], "--minutes: not allowed with"),
        ([*DISTIL, "--least-agreement", "95"], "must be a number from 0 to 1, not '95'"),
        ([*DISTIL, "--most-loss", "0.01"], "--most-loss: it needs --labelled FILE"),
        ([*FINETUNE, "--seeds", "1", "2", "1"], "--seeds: 1 is given 2 times; give each seed once"),
    ],
)
def test_wrong_usage(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, the usage and what is wrong with it."""
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    printed = capsys.readouterr().err
    assert printed.startswith("usage: sentiment-export")
    assert says in printed.splitlines()[-1]


UNEXPECTED = ZeroDivisionError("no such shape\nand ten lines more")
UNEXPECTED.__cause__ = OSError()  # a circle, as errors of the hub's client have
UNEXPECTED.__cause__.__context__ = UNEXPECTED
# What packages written in C make of Ctrl-C while they load.
LOADING = ImportError("initialization failed")
LOADING.__cause__ = KeyboardInterrupt()


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (
            UNEXPECTED,
            1,
            r"unexpected ZeroDivisionError in test_export_cli\.py, line \d+: no such shape",
        ),
        (KeyboardInterrupt(), 130, "interrupted"),
        (LOADING, 130, "interrupted"),
    ],
)
def test_an_error_that_nobody_expected_is_one_line(
    bert: Exported,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    says: str,
) -> None:
    """The line has its class, where it was raised and its first line; Ctrl-C is no traceback
    either, and has the exit code that shells know. Nothing is half written."""

    def fail(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(export_module, "verify", fail)
    assert main([str(bert.source), "--output", str(tmp_path / "out")]) == code
    assert re.fullmatch(f"sentiment-export: {says}\n", capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


def test_a_terminal_need_not_have_the_characters_of_a_label(bert: Exported, tmp_path: Path) -> None:
    """They are printed as escapes; the work is not lost for the sake of a line of text."""
    source = shutil.copytree(bert.source, tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    config["id2label"] = {"0": "悲しい", "1": "普通", "2": "嬉しい"}
    (source / "config.json").write_text(json.dumps(config))
    printed = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with contextlib.redirect_stdout(printed):
        assert main(["describe", str(source)]) == 0
    printed.seek(0)
    assert r"\u60b2\u3057\u3044" in printed.read()


def test_the_output_is_checked_before_the_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A refused output costs no download."""
    assert main([str(tmp_path / "no source"), "--output", "/"]) == 1
    assert "/ exists and is not a bundle; choose another --output" in capsys.readouterr().err


_LOADED = """
import json, sys
from sentiment_export.cli import main
for words in json.loads(sys.argv[1]):
    try:
        main(words)
    except SystemExit as exit:
        heavy = {"torch", "transformers", "optimum", "onnx", "sklearn", "scipy", "onnxruntime"}
        print("\\nended:", words[0], exit.code, *sorted(heavy & set(sys.modules)))
"""


def test_help_and_usage_wait_for_no_framework() -> None:
    """Neither torch nor anything of its weight is imported to say how the command is used."""
    commands = ["evaluate", "calibrate", "finetune", "distil", "describe"]
    words = [["--help"], *([command, "--help"] for command in commands)]
    words += [["checkpoint", "--output", "out", "--precision", "int4"]]
    run = run_program(sys.executable, "-c", _LOADED, json.dumps(words))
    ends = [line for line in run.stdout.splitlines() if line.startswith("ended:")]
    assert ends == [f"ended: {one[0]} {2 if one == words[-1] else 0}" for one in words]
    assert run.stdout.count("usage: sentiment-export") == len(words) - 1
