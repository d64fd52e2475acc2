"""Calibration: the temperature that is fitted, the figures, the record, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentiment_export.cli import main
from sentiment_export.export import calibrate_bundle
from sentiment_export.output import model_card
from sentiment_export.quality.evaluation import (
    FOLDS,
    LOSSES,
    Floats,
    best_temperature,
    brier_score,
    calibrate,
    expected_calibration_error,
    log_loss,
)
from sentiment_service.engine.model.bundle import MANIFEST, Bundle, CalibrationLoss, sha256
from sentiment_service.errors import UserError

from tests.support.tiny_bundle import LABELS, make_bundle, write_manifest

TINY_TEXTS = {"positive": "love", "negative": "worst", "neutral": "it it it it"}


def _calibrated_logits() -> tuple[Floats, Floats]:
    """Logits whose softmax is exactly how often each label is right."""
    shares = {(6, 3, 1): 1, (2, 2, 6): 1, (1, 8, 1): 2}
    rows = [
        (np.log(np.array(share) / 10), label)
        for share, times in shares.items()
        for label, count in enumerate(share)
        for _ in range(count * times)
    ]
    logits, gold = zip(*rows, strict=True)
    return np.array(logits), np.eye(3)[[*gold]]


@pytest.mark.parametrize("loss", list(LOSSES))
@pytest.mark.parametrize("temperature", [0.02, 0.7, 1.0, 2.5, 60.0])
def test_the_temperature_that_spoilt_scores_is_found(loss: str, temperature: float) -> None:
    """Calibrated logits times T need the temperature T, whatever is minimised."""
    logits, gold = _calibrated_logits()
    found = best_temperature(logits * temperature, gold, loss)  # type: ignore[arg-type]
    assert found == pytest.approx(temperature, rel=1e-3)


def test_the_expected_calibration_error_is_that_computed_by_hand() -> None:
    """Texts are compared within 15 bins of equal width, whose upper edges belong to them."""
    scores = np.array([[0.9, 0.1], [0.1, 0.9], [0.6, 0.4], [0.62, 0.38], [0.7, 0.3]])
    gold = np.eye(2)[[0, 0, 0, 1, 0]]
    # Bins: (13/15, 14/15] has 0.9 right and 0.9 wrong: |1/2 - 0.9| = 0.4, for 2 of 5 texts.
    # (8/15, 9/15] has 0.6 right: 0.4. (9/15, 10/15] has 0.62 wrong: 0.62. (10/15, 11/15]: 0.3.
    expected = (2 * 0.4 + 0.4 + 0.62 + 0.3) / 5
    assert expected_calibration_error(np.log(scores), gold) == pytest.approx(expected)


def test_the_losses_are_those_computed_by_hand() -> None:
    """The log loss in nats, and the Brier score summed over the labels."""
    logits, gold = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]])), np.eye(3)[:2]
    assert log_loss(logits, gold) == pytest.approx((np.log(2) + np.log(5)) / 2)
    first, second = 0.5**2 + 2 * 0.25**2, 0.1**2 + 0.8**2 + 0.7**2
    assert brier_score(logits, gold) == pytest.approx((first + second) / 2)


def _noisy(texts: int) -> tuple[Floats, Floats]:
    random = np.random.default_rng(0)
    gold = np.eye(3)[random.integers(0, 3, texts)]
    return random.normal(0, 2, (texts, 3)) + 2 * gold, gold


def _decided(texts: int) -> tuple[Floats, Floats]:
    """Three decisions a text, as of a multi-label model."""
    random = np.random.default_rng(0)
    yes = random.integers(0, 2, texts * 3)
    logits = random.normal(0, 2, texts * 3) + 3 * yes - 1.5
    return np.stack([np.zeros_like(logits), logits], axis=1), np.eye(2)[yes]


@pytest.mark.parametrize(("made", "decisions"), [(_noisy, 1), (_decided, 3)])
def test_figures_after_calibration_are_cross_validated(
    made: Callable[[int], tuple[Floats, Floats]], decisions: int
) -> None:
    """Each text is scored with a temperature that was fitted without its fold.

    A multi-label text's decisions are not used to judge each other.
    """
    logits, gold = made(60)
    record = calibrate(logits, gold, "log", "0123abc", decisions)
    held_out, of = logits.copy(), np.arange(len(gold)) // decisions
    for text in range(60):
        others = of % FOLDS != text % FOLDS
        held_out[of == text] /= best_temperature(logits[others], gold[others], "log")
    assert record.texts == 60
    assert record.log_loss.before == log_loss(logits, gold)
    assert record.log_loss.after == pytest.approx(log_loss(held_out, gold))
    assert record.ece.after == pytest.approx(expected_calibration_error(held_out, gold))
    assert record.temperature == pytest.approx(best_temperature(logits, gold, "log"))
    in_sample = log_loss(logits / record.temperature, gold)
    assert in_sample < record.log_loss.after < record.log_loss.before


@pytest.mark.parametrize("seed", [4, 10, 39, 40])
def test_a_temperature_at_the_edge_of_the_search_is_refused(seed: int) -> None:
    """Logits of mere noise fit best when all scores are alike, which is no calibration."""
    logits = np.random.default_rng(seed).normal(0, 0.01, (3, 3)).astype(np.float32)
    with pytest.raises(UserError, match="the scores say nothing"):
        calibrate(logits, np.eye(3), "log", "0123abc")


@pytest.mark.parametrize(
    ("scale", "says"),
    [(5, "all predicted labels are right"), (-5, "the scores say nothing"), (0, "say nothing")],
)
def test_logits_that_no_temperature_fits_are_refused(scale: int, says: str) -> None:
    """Labels that are all right, all wrong or all the same have no best temperature."""
    gold = np.eye(3)[np.arange(30) % 3]
    with pytest.raises(UserError, match=says):
        calibrate(scale * gold, gold, "log", "0123abc")


@pytest.mark.parametrize("loss", list(LOSSES))
def test_a_temperature_that_makes_scores_worse_is_refused(loss: str) -> None:
    """Scores that are right already are worse with a temperature fitted on other texts."""
    logits, gold = _calibrated_logits()
    with pytest.raises(
        UserError, match=r"no temperature makes the scores better .* ECE 0\.0000 → 0"
    ):
        calibrate(logits, gold, loss, "0123abc")  # type: ignore[arg-type]


def _labelled(path: Path, rows: int = 120, labels: tuple[str, ...] = tuple(LABELS)) -> Path:
    """Texts of the tiny model. Its label is right for three of four."""
    lines = []
    for row in range(rows):
        shown = row + 1 if row % 4 == 0 else row
        text = TINY_TEXTS[labels[shown % len(labels)]]
        lines.append(f"en\t{labels[row % len(labels)]}\t{text}\n")
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("edited", [False, True])
def test_a_bundle_is_calibrated_in_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], edited: bool
) -> None:
    """Only the record and the card's section are new; a card edited by hand stays as it is."""
    path, file = make_bundle(tmp_path / "tiny"), _labelled(tmp_path / "labelled.tsv")
    before = json.loads((path / MANIFEST).read_text()) | {"of a newer version": ["ü"]}
    (path / MANIFEST).write_text(json.dumps(before))
    card = "by hand" if edited else model_card(Bundle.open(path).manifest)
    (path / "README.md").write_text(card, encoding="utf-8")
    names = sorted(one.name for one in path.iterdir())
    assert main(["calibrate", str(path), str(file), "--loss", "brier"]) == 0
    after = json.loads((path / MANIFEST).read_text())
    record = after["variants"]["fp32"].pop("calibration")
    assert after == before
    assert (record["loss"], record["texts"], record["sha256"]) == ("brier", 120, sha256(file))
    bundle = Bundle.open(path)
    written = bundle.manifest.variants["fp32"].calibration
    assert written is not None
    assert written.model_dump() == record
    section = f"| fp32 | {written.temperature:.4f} | Brier score |"
    assert section in ((path / "README.md").read_text() if not edited else capsys.readouterr().out)
    assert (path / "README.md").read_text() == (card if edited else model_card(bundle.manifest))
    assert sorted(one.name for one in path.iterdir()) == names


def test_a_second_calibration_takes_the_place_of_the_first(tmp_path: Path) -> None:
    """It is fitted on the raw logits, so the same file gives the same record."""
    path, file = make_bundle(tmp_path / "tiny"), _labelled(tmp_path / "labelled.tsv")
    calibrate_bundle(path, file, "log")
    first = (path / MANIFEST).read_bytes(), (path / "README.md").read_bytes()
    calibrate_bundle(path, file, "log")
    assert ((path / MANIFEST).read_bytes(), (path / "README.md").read_bytes()) == first


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("", "holds no labelled texts"),
        ("en\tpositive\tlove\n" * 99, "holds 99 labelled texts; calibration needs at least 100"),
        ("en\tpositive\tlove\nen\thappy\tlove\n", ":2: label 'happy' is not one of"),
        ("en\tpositive\tlove\nen\tnegative\tnan\n" * 50, "gave no finite logits"),
        ("en\tpositive\tlove\nen\tnegative\tworst\n" * 50, "all predicted labels are right"),
    ],
)
def test_a_file_that_is_of_no_use_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, says: str
) -> None:
    """One line says why, and the bundle is as it was."""
    path = make_bundle(tmp_path / "tiny")
    (tmp_path / "labelled.tsv").write_text(file)
    before = {one: one.read_bytes() for one in path.iterdir() if one.is_file()}
    assert main(["calibrate", str(path), str(tmp_path / "labelled.tsv")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    with pytest.raises(UserError, match=says):
        raise UserError(line)
    assert {one: one.read_bytes() for one in path.iterdir() if one.is_file()} == before


@pytest.mark.parametrize("loss", list(LOSSES))
def test_a_multi_label_model_gets_one_temperature(tmp_path: Path, loss: CalibrationLoss) -> None:
    """The one that minimises the loss over every label of every text."""
    path = make_bundle(tmp_path / "tiny", problem_type="multi_label_classification")
    rows = ["love,positive", 'love,"neutral,positive"', "love,negative", "worst,negative"]
    file = tmp_path / "labelled.csv"
    file.write_text("\n".join(["text,label", *rows * 30, ""]), encoding="utf-8")
    calibrate_bundle(path, file, loss)
    record = Bundle.open(path).manifest.variants["fp32"].calibration
    assert record is not None
    assert record.texts == 120
    yes = np.array([[-1, 0, 4], [-1, 0, 4], [-1, 0, 4], [4, 0, -1]])
    gold = np.array([[0, 0, 1], [0, 1, 1], [1, 0, 0], [1, 0, 0]])

    def lost(temperature: float) -> float:
        chances = 1 / (1 + np.exp(-yes / temperature))
        right = np.where(gold, chances, 1 - chances)
        losses = -np.log(right) if loss == "log" else (1 - right) ** 2
        return float(losses.mean())

    found = record.temperature
    assert lost(found) < min(lost(found * 0.99), lost(found * 1.01), lost(1))


@pytest.mark.parametrize("thresholds", [{"threshold": 0.3}, {"thresholds": {"positive": 0.7}}])
def test_thresholds_of_other_scores_are_refused(
    tmp_path: Path, thresholds: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """A temperature moves all scores but 0.5, so texts would get other labels."""
    path = make_bundle(tmp_path / "tiny", problem_type="multi_label_classification")
    write_manifest(path, **thresholds)
    file = tmp_path / "labelled.csv"
    file.write_text("text,label\n" + "love,positive\nlove,negative\n" * 60, encoding="utf-8")
    assert main(["calibrate", str(path), str(file)]) == 1
    assert "remove them from manifest.json, calibrate, and" in capsys.readouterr().err
