"""The accuracy gate: the scores recorded for every variant, and the variants left out."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sentiment_export.checkpoint.checkpoint import load_checkpoint
from sentiment_export.export import export
from sentiment_export.quality import evaluation
from sentiment_export.quality.evaluation import AccuracyGate, evaluate
from sentiment_export.quality.labelled import Example, Labels
from sentiment_export.quality.scores import marks
from sentiment_service.engine.model.bundle import Bundle
from sentiment_service.engine.model.model import Model
from sentiment_service.errors import UserError

from tests.support.checkpoints import CORPUS, Exported
from tests.support.tiny_bundle import load, make_bundle

LABELS = ["negative", "neutral", "positive"]
# All that fp32 says is right, in two languages.
ROWS = 200


def _examples(model: Model) -> list[Example]:
    texts = [f"{CORPUS[row % len(CORPUS)]} {row}" for row in range(ROWS)]
    _, right = evaluate(model, [Example("", (LABELS[0],), text) for text in texts])
    groups = ["en" if row % 2 else "es" for row in range(ROWS)]
    return [Example(*row) for row in zip(groups, right, texts, strict=True)]


def _predicted(
    monkeypatch: pytest.MonkeyPatch, predict: Callable[[Model, Sequence[Example]], list[Labels]]
) -> None:
    """Each model has logits that mean these labels."""

    def logits(model: Model, examples: Sequence[Example]) -> NDArray[np.float32]:
        return np.where(marks(predict(model, examples), model.labels), 9, -9).astype(np.float32)

    monkeypatch.setattr(evaluation, "logits_of_examples", logits)


def _mistaken(monkeypatch: pytest.MonkeyPatch, wrong: int) -> None:
    """int8 gives another label to this many texts."""

    def predicted(model: Model, examples: Sequence[Example]) -> list[Labels]:
        found = [example.labels for example in examples]
        if model.precision == "int8":
            for row in range(wrong):
                found[row] = next((label,) for label in LABELS if (label,) != found[row])
        return found

    _predicted(monkeypatch, predicted)


@pytest.mark.parametrize(
    ("wrong", "max_loss", "says"),
    [
        (0, 0.0, None),
        (2, 0.05, None),
        (3, 0.01, r"it loses 0\.\d+ of fp32's (accuracy|macro recall) \(--max-accuracy-loss 0.01"),
        (5, 1.0, r"it agrees with fp32 on 97\.50% of the labels \(at least 98% is required\)"),
    ],
)
def test_a_variant_may_lose_so_much(
    bert: Exported,
    monkeypatch: pytest.MonkeyPatch,
    wrong: int,
    max_loss: float,
    says: str | None,
) -> None:
    """Accuracy, macro recall and agreement each have a limit; fp32 itself always passes."""
    gate = AccuracyGate(_examples(bert.model("fp32")), max_loss)
    _mistaken(monkeypatch, wrong)
    for precision in ("fp32", "int8"):
        gate.scored(bert.model(precision))
    assert list(gate.refused) == (["int8"] if says else [])
    if says:
        with pytest.raises(UserError, match=says):
            raise UserError(gate.verdict())


def test_a_loss_of_exactly_the_limit_is_allowed(
    bert: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    """55 of 100 right, then 54: the difference of the shares is a little above 0.01."""
    gold = ["negative"] * 55 + ["neutral"] * 45
    by_precision = {"fp32": 55 * ["negative"], "int8": 54 * ["negative"] + ["positive"]}
    found: dict[str, list[Labels]] = {
        name: [(label,) for label in right + 45 * ["positive"]]
        for name, right in by_precision.items()
    }
    assert 0.55 - 0.54 > 0.01
    _predicted(monkeypatch, lambda model, _: found[str(model.precision)])
    refused = {}
    for limit in (0.01, 0.0099):
        gate = AccuracyGate([Example("en", (label,), "x") for label in gold], limit)
        for precision in ("fp32", "int8"):
            gate.scored(bert.model(precision))
        refused[limit] = list(gate.refused)
    assert refused == {0.01: [], 0.0099: ["int8"]}


@pytest.mark.parametrize(("wrong", "refused"), [(6, False), (7, True)])
def test_each_label_of_a_multi_label_text_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: int, refused: bool
) -> None:
    """Of 100 texts with three labels, 98 % are 294 labels: six texts may differ in one of them."""
    model = load(make_bundle(tmp_path / "tiny", problem_type="multi_label_classification"))
    gold: list[Labels] = [("negative", "neutral")] * 100
    found = iter([gold, [("negative",)] * wrong + gold[wrong:]])
    _predicted(monkeypatch, lambda *_: next(found))
    gate = AccuracyGate([Example("", labels, "x") for labels in gold], 0.05)
    first, second = (gate.scored(model) for _ in range(2))
    assert first is not None
    assert second is not None
    assert first["accuracy"] - second["accuracy"] > 0.05  # which is no reason
    assert bool(gate.refused) == refused


def test_a_variant_that_loses_is_not_written(
    bert: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest is, whole; the command fails all the same. With int8 alone there is no bundle, and
    the error names what does."""
    examples = _examples(bert.model("fp32"))
    _mistaken(monkeypatch, 20)
    checkpoint, output = load_checkpoint(bert.source), tmp_path / "out"
    says = "^no bundle was written: int8 was left out because .*; give --precision fp32$"
    with pytest.raises(UserError, match=says):
        export(checkpoint, output, precisions=["int8"], examples=examples)
    assert not list(tmp_path.iterdir())
    with pytest.raises(
        UserError, match=r"out was written with fp32: int8 was left out because it loses"
    ):
        export(checkpoint, output, examples=examples)
    assert list(Bundle.open(output).manifest.variants) == ["fp32"]
    assert [path.name for path in (output / "onnx").iterdir()] == ["model.onnx"]


def test_scores_are_recorded_by_group(
    bert: Exported,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Per language and their mean, and how often the labels are fp32's; also without fp32."""
    # Logits of a random model are often level, so that rounding picks another label.
    monkeypatch.setattr(evaluation, "LEAST_AGREEMENT", 0.8)
    examples = _examples(bert.model("fp32"))
    export(
        load_checkpoint(bert.source),
        tmp_path / "out",
        precisions=["int8"],
        examples=examples,
        max_accuracy_loss=0.5,
    )
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert list(manifest["variants"]) == ["int8"]
    assert [path.name for path in (tmp_path / "out/onnx").iterdir()] == ["model_int8.onnx"]
    accuracy = manifest["variants"]["int8"]["accuracy"]
    assert accuracy["agreement_with_fp32"] == accuracy["accuracy"] >= 0.8
    assert accuracy["groups"].keys() == {"en", "es"}
    groups = accuracy["groups"].values()
    assert sum(group["samples"] for group in groups) == ROWS
    mean = sum(group["macro_f1"] for group in groups) / 2
    assert accuracy["mean"]["macro_f1"] == pytest.approx(mean)
    *table, agreement, _ = capsys.readouterr().out.splitlines()
    assert "labels agree with fp32" in agreement
    assert {line.split()[0] for line in table[-3:]} == {"en", "es", "mean"}
