"""Distilling: the student learns, its card says how well, and a killed run goes on."""

import json
import random
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from openpyxl import Workbook
from sentiment_export import training
from sentiment_export.checkpoint.checkpoint import load_checkpoint
from sentiment_export.cli import main
from sentiment_export.distil import Distillation, Teacher, chosen_layers, distil
from sentiment_export.export import export
from sentiment_export.quality.labelled import Columns
from sentiment_service.engine.model.bundle import Bundle
from sentiment_service.errors import UserError
from sentiment_service.files.text_files import FileOptions

from tests.support.checkpoints import CORPUS, make_checkpoint
from tests.support.machines.small_disk import run_on_small_disk
from tests.support.model_export.interrupts import interrupted_in_step
from tests.support.serving import run_program

WORDS = sorted({word for text in CORPUS[:8] for word in text.split() if word.isalpha()})
LABELS = ["negative", "neutral", "positive"]
# Narrower random weights may be too coarse in int8, which an export leaves out.
WIDE: dict[str, Any] = {"hidden_size": 96, "intermediate_size": 192}


def _texts(count: int, seed: int = 0) -> list[str]:
    order = random.Random(seed)
    return [f"{' '.join(order.choices(WORDS, k=6))} {seed} {row}" for row in range(count)]


def _labelled(path: Path, texts: list[str], teacher: Path) -> Path:
    """The texts with the labels that the teacher gives them, as TSV without a header."""
    checkpoint = load_checkpoint(teacher)
    encode = checkpoint.tokenizer.tokenizer.encode
    best = [int(checkpoint.logits(encode(text).ids).argmax()) for text in texts]
    rows = [f"en\t{LABELS[label]}\t{text}\n" for label, text in zip(best, texts, strict=True)]
    path.write_text("".join(rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Distillation:
    """A teacher of four layers, 600 texts in two files, and an epoch of 17 steps."""
    directory = tmp_path_factory.mktemp("distil")
    teacher = make_checkpoint(
        directory / "teacher", "bert", num_hidden_layers=4, language="en", **WIDE
    )
    (directory / "texts.txt").write_text("\n".join(_texts(300)) + "\n")
    more = [*_texts(300, 1), *_texts(1)]
    labelled = _labelled(directory / "labelled.tsv", more[:30], teacher)
    texts = (directory / "texts.txt", _labelled(directory / "more.tsv", more, teacher))
    return Distillation(
        str(teacher), texts, labelled=labelled, epochs=1, learning_rate=1e-3, most_loss=1.0
    )


@pytest.fixture(scope="module")
def made(recipe: Distillation, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """What an uninterrupted run writes, and what it says."""
    output = tmp_path_factory.mktemp("made") / "student"
    with redirect_stdout(StringIO()) as said:
        distil(recipe, output)
    return output, said.getvalue().splitlines()


def _files(bundle: Path) -> dict[str, bytes]:
    """The files of a bundle; of its card, what was not measured with a clock."""
    found = {
        str(path.relative_to(bundle)): path.read_bytes()
        for path in bundle.rglob("*")
        if path.is_file()
    }
    return found | {"README.md": found["README.md"].partition(b"## Speed")[0]}


def test_the_student_has_the_teachers_ways_and_a_record(
    recipe: Distillation, made: tuple[Path, list[str]]
) -> None:
    """Labels, limit, normalisation and language are the teacher's; the manifest has a record.

    What is not used is said: labels, texts that occur twice, and texts of the labelled file.
    """
    output, said = made
    manifest, teacher = Bundle.open(output).manifest, load_checkpoint(Path(recipe.source))
    assert manifest.labels == teacher.labels
    assert manifest.max_tokens == teacher.max_tokens
    assert (manifest.preprocessing, manifest.language) == ("none", "en")
    assert json.loads((output / "config.json").read_text())["num_hidden_layers"] == 2
    record = manifest.distilled
    assert record is not None
    assert record["teacher"] == {"name": "teacher", "layers": 4}
    assert (record["layers"], record["texts"], record["held_out"]) == ([1, 3], 513, 57)
    assert record["agreement_by_label"].keys() <= {*LABELS}
    assert record["labelled"]["student"]["samples"] == 30
    assert manifest.variants["int8"].calibration or any("is not calibrated" in one for one in said)
    card = (output / "README.md").read_text()
    assert "The layers 1, 3 of the 4 layers of `teacher`" in card
    assert f"gives the teacher's label to {record['agreement']:.1%}" in card
    assert "times as many. The training took" in card
    assert f"{recipe.texts[1]}: its labels are not used" in said
    assert "31 of 601 texts occur twice or in --labelled; they are left out" in said
    assert not output.with_name("student.training").exists()


def test_it_learns(recipe: Distillation, made: tuple[Path, list[str]], tmp_path: Path) -> None:
    """After more epochs, more labels are the teacher's than after one, and scores are nearer."""
    longer = distil(replace(recipe, epochs=8), tmp_path / "longer").distilled
    shorter = Bundle.open(made[0]).manifest.distilled
    assert longer is not None
    assert shorter is not None
    assert longer["agreement"] > shorter["agreement"]
    assert longer["score_difference"] < 0.7 * shorter["score_difference"]


def test_a_bundle_teaches_what_its_checkpoint_does(
    recipe: Distillation, made: tuple[Path, list[str]], tmp_path: Path
) -> None:
    """Its weights are read back from fp32, so the student's graphs have the same bytes.

    Here it lies in a hub cache, and is named by its model's directory.
    """
    model = tmp_path / "models--acme--teacher"
    export(load_checkpoint(Path(recipe.source)), model / "snapshots" / ("a1" * 20))
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("a1" * 20)
    words = ["distil", str(model), "--output", str(tmp_path / "student")]
    words += ["--texts", *map(str, recipe.texts), "--labelled", str(recipe.labelled)]
    assert main([*words, "--epochs", "1", "--learning-rate", "1e-3"]) == 0
    found, expected = _files(tmp_path / "student"), _files(made[0])
    for name in ("onnx/model.onnx", "onnx/model_int8.onnx", "tokenizer.json"):
        assert found[name] == expected[name]


def test_the_teacher_is_not_replaced(
    recipe: Distillation, made: tuple[Path, list[str]], tmp_path: Path
) -> None:
    """Not even if it is a bundle, and called by another name: its weights would be lost."""
    (tmp_path / "link").symlink_to(made[0])
    before = _files(made[0])
    with pytest.raises(UserError, match=r"student is the teacher, .*; choose another --output"):
        distil(replace(recipe, source=str(tmp_path / "link")), made[0])
    assert _files(made[0]) == before
    assert not made[0].with_name("student.training").exists()


# A process for each kill, which forks after PyTorch is loaded and is killed at the nth call of a
# function: a step of the training, a chunk of logits, or a write.
KILLED = """
import os, sys, torch
from pathlib import Path
from sentiment_export import distil as module, training
from sentiment_service import atomic_files
directory, output = map(Path, sys.argv[1:3])
def killed(where, last):
    place, name = {"step": (torch.nn.utils, "clip_grad_norm_"), "write": (atomic_files, "sync"),
        "logits": (module, "logits_of_examples")}[where]
    whole, calls = getattr(place, name), iter(range(1, 10**6))
    def call(*arguments, **keywords):
        if next(calls) == int(last):
            os.kill(os.getpid(), 9)
        return whole(*arguments, **keywords)
    setattr(place, name, call)
    texts = directory / "texts.txt", directory / "more.tsv"
    module.distil(module.Distillation(str(directory / "teacher"), texts, epochs=1,
        labelled=directory / "labelled.tsv", learning_rate=1e-3, most_loss=1.0), output)
torch.set_num_threads(1)
training.SAVE_EVERY_S = 0
for kill in sys.argv[3:]:
    if not (child := os.fork()):
        killed(*kill.split())
        sys.exit(f"not killed: {kill}")
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert (ended, output.exists()) == (-9, False), kill
"""


def test_killed_and_continued_gives_the_same_bytes(
    recipe: Distillation,
    made: tuple[Path, list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By SIGKILL while the teacher computes, in the midst of the epoch, or while files are written.

    Only the speed in the card differs, which a clock has measured.
    """
    output, directory = tmp_path / "student", Path(recipe.source).parent
    kills = ("logits 1", "step 1", "step 9", "write 12", "write 10")
    done = run_program(sys.executable, "-c", KILLED, directory, output, *kills, timeout_s=300)
    assert done.returncode == 0, done.stderr
    distil(recipe, output)
    assert "resuming after step" in capsys.readouterr().out
    assert _files(output) == _files(made[0])
    assert not output.with_name("student.training").exists()


def test_some_minutes_are_as_many_steps_after_an_interruption(
    recipe: Distillation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The first steps say how many fit; a continued run keeps that number.

    What a run leaves that is killed in these steps goes when they are taken again.
    """
    monkeypatch.setattr(training, "SAVE_EVERY_S", 0)
    short = replace(recipe, minutes=0.02)
    with interrupted_in_step(1):
        distil(short, tmp_path / "out")
    left = tmp_path / "out.training/trial-killed"
    left.mkdir()
    (left / "seed-0.pt").touch()
    with interrupted_in_step(1 + 12 + 2):
        distil(short, tmp_path / "out")
    assert not left.exists()
    steps = int((tmp_path / "out.training/steps").read_text())
    with interrupted_in_step(1):
        distil(short, tmp_path / "out")
    assert f"seed 0: resuming after step 1 of {steps}\n" in capsys.readouterr().out


@pytest.mark.parametrize("minutes", [None, 0.02])
def test_a_diverged_training_is_refused(
    recipe: Distillation, tmp_path: Path, minutes: float | None
) -> None:
    """Also in the first steps, which are timed. Nothing is left, and no checkpoint blamed."""
    fast = replace(recipe, learning_rate=1e30, minutes=minutes)
    with pytest.raises(UserError, match=r"diverged in step 3 of \d+: .*-rate below 1e\+30"):
        distil(fast, tmp_path / "out")
    assert [*tmp_path.iterdir()] == []


def test_a_student_that_is_too_bad_is_not_written(
    recipe: Distillation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The figures are said, and what would help; lower limits need no second training."""
    output = tmp_path / "out"
    agreement, loss = (
        r"the student gives \d\d\.\d\d% of the held-out texts the teach",
        r"the student's (accuracy|macro recall) is .* below the teacher's",
    )
    for wanted, says in (
        (replace(recipe, least_agreement=1.0), agreement),
        (replace(recipe, most_loss=0.0), loss),
    ):
        with pytest.raises(UserError, match=says) as caught:
            distil(wanted, output)
        assert "More texts, more epochs or more layers would help" in str(caught.value)
        assert not output.exists()
    distil(recipe, output)
    assert "seed 0: resuming after step 17 of 17" in capsys.readouterr().out


def test_a_training_on_other_texts_is_not_continued(recipe: Distillation, tmp_path: Path) -> None:
    """Those of another sheet are others, although the file is the same."""
    workbook = Workbook()
    for sheet, seed in (("A", 0), ("B", 1)):
        page = workbook.create_sheet(sheet)
        for text in ("text", *_texts(600, seed)):
            page.append([text])
    workbook.save(tmp_path / "texts.xlsx")
    first = replace(recipe, texts=[tmp_path / "texts.xlsx"], labelled=None, most_loss=None)
    first = replace(first, columns=Columns(file=FileOptions(sheet="A")))
    with pytest.raises(UserError, match="keeps this student"):
        distil(replace(first, least_agreement=1.0), tmp_path / "out")
    with pytest.raises(UserError, match="sheet was A then and is B now"):
        distil(replace(first, columns=Columns(file=FileOptions(sheet="B"))), tmp_path / "out")


def test_a_labelled_tsv_with_names_of_its_own(recipe: Distillation, tmp_path: Path) -> None:
    """--label-column is for TSV, too; --column alone may be that of the texts."""
    labelled = tmp_path / "labelled.tsv"
    labelled.write_text("tweet\tmood\nlove it\tpositive\n")
    columns = Columns("tweet", "mood")
    with pytest.raises(UserError, match="few"):
        distil(
            replace(recipe, texts=[labelled], labelled=labelled, columns=columns),
            tmp_path / "out",
        )


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (
            {"layers": 4},
            "--layers 4 is not for .*: it has 4, numbered from 0 to 3, and a stud",
        ),
        ({"layers": 0}, "--layers 0 is not for"),
        ({"layers": (1, 4)}, "--layers 1,4 is not for"),
        ({"layers": (1, 1)}, "--layers 1,1 is not for .* each once"),
        ({"source": "shallow"}, "has 1 layer, so there is none to leave out"),
        ({"source": "none"}, "none"),
        ({"texts": ("few.txt",)}, r"40 different texts are too few .* least 500 .* 20,000 or more"),
        ({"texts": ("none.txt",)}, r"there is no file .*none\.txt"),
        ({"texts": ("texts.doc",)}, r"texts\.doc holds texts only if its name ends in \.txt"),
        ({"columns": Columns("tweet")}, "tweet"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(
    recipe: Distillation, tmp_path: Path, changed: dict[str, Any], says: str
) -> None:
    """One line says why, and what is accepted."""
    directory = tmp_path / "inputs"
    make_checkpoint(directory / "shallow", "bert", num_hidden_layers=1)
    (directory / "few.txt").write_text("\n".join(_texts(40)))
    (directory / "texts.doc").touch()
    if "source" in changed:
        changed = {"source": str(directory / changed["source"])}
    if "texts" in changed:
        changed = {"texts": [directory / name for name in changed["texts"]]}
    output = tmp_path / "new" / "out"
    with pytest.raises(UserError, match=says):
        distil(replace(recipe, **changed), output)
    assert not output.parent.exists()


@pytest.mark.parametrize(("kind", "why"), [("albert", "share"), ("modernbert", "of two kinds")])
def test_layers_that_cannot_do_without_the_others_are_refused(
    recipe: Distillation, kind: str, why: str
) -> None:
    """One line says so, whatever is asked for."""
    checkpoint = load_checkpoint(Path(recipe.source))
    other = replace(checkpoint, config={**checkpoint.config, "model_type": kind})
    teacher = Teacher(other, None, "", {"name": "other", "layers": 4})
    with pytest.raises(UserError, match=f"the layers of other .*{why}.*, so none can be left out"):
        chosen_layers(2, teacher)


@pytest.mark.parametrize(
    ("depth", "wanted", "chosen"),
    [
        (6, None, [1, 3, 5]),
        (12, 4, [2, 5, 8, 11]),
        (12, 5, [1, 3, 6, 8, 11]),
        (7, None, [1, 3, 6]),
        (6, 1, [5]),
        (6, (4, 0), [0, 4]),
    ],
)
def test_layers_are_chosen_evenly_and_end_with_the_last(
    recipe: Distillation, depth: int, wanted: int | tuple[int, ...] | None, chosen: list[int]
) -> None:
    """Unless they are named; half of them where nothing is said."""
    checkpoint = load_checkpoint(Path(recipe.source))
    teacher = Teacher(checkpoint, None, "", {"name": "other", "layers": depth})
    assert chosen_layers(wanted, teacher) == chosen


def test_a_full_disk_is_named_and_the_run_can_be_continued(
    recipe: Distillation, tmp_path: Path
) -> None:
    """One line that names the disk; the bundle is not there, what was computed is."""
    teacher = make_checkpoint(tmp_path / "base", "bert", num_hidden_layers=4, vocab_size=30_000)
    code = "import sys; from sentiment_export.cli import main; sys.exit(main())"
    command: list[str | Path] = [sys.executable, "-c", code, "distil", teacher, "--texts"]
    command += [*recipe.texts, "--epochs", "1", "--output", "out"]
    run = run_on_small_disk(tmp_path / "disk", 20_000, *command)
    assert run.returncode == 1, run.stdout
    line = run.stderr.splitlines()[-1]
    assert "there is too little room on the disk of" in line
    assert run.stdout.splitlines()[-1] == "left behind: out.training"


def test_a_teacher_of_several_languages_forgets_some(
    recipe: Distillation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A warning says which stay; a teacher of one language has none."""
    for languages in (("en",), ("en", "de")):
        options = recipe.options.model_copy(update={"languages": languages})
        with interrupted_in_step(1):
            distil(replace(recipe, options=options), tmp_path / "-".join(languages))
        warned = "\nwarning: the teacher is for several" in capsys.readouterr().out
        assert warned == (len(languages) > 1)
