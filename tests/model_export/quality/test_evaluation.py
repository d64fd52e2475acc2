"""Evaluation: labelled texts are read, classified and scored."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.engine.model.model import Model
from app.errors import UserError
from model_export.quality.evaluation import TEXTS_PER_BATCH, evaluate
from model_export.quality.labelled import Example, read_examples
from model_export.quality.scores import score
from tests.support.tiny_bundle import LABELS, calibrate, load, make_bundle


def test_figures_are_those_computed_by_hand() -> None:
    """Recall 2/3, 1/2, 1/1 and F1 4/5, 1/2, 2/3 for a small confusion matrix."""
    gold = ["negative"] * 3 + ["neutral"] * 2 + ["positive"]
    predicted = ["negative", "negative", "positive", "neutral", "positive", "positive"]
    # Precision: 2/2, 1/1, 1/3. F1: 2·1·⅔/(1+⅔) = 4/5, 2·1·½/(1+½) = 2/3, 2·⅓·1/(⅓+1) = 1/2.
    scores = score(gold, predicted, LABELS)
    assert scores.samples == 6
    assert scores.accuracy == pytest.approx(4 / 6)
    assert scores.recall == pytest.approx({"negative": 2 / 3, "neutral": 1 / 2, "positive": 1})
    assert scores.macro_recall == pytest.approx((2 / 3 + 1 / 2 + 1) / 3)
    assert scores.macro_f1 == pytest.approx((4 / 5 + 2 / 3 + 1 / 2) / 3)
    assert scores.confusion == [[2, 0, 1], [0, 1, 1], [0, 0, 1]]


def test_a_label_that_does_not_occur_counts_for_nothing() -> None:
    """Macro figures average over the labels of the data; mistakes still count."""
    scores = score(["negative", "positive"], ["negative", "neutral"], LABELS)
    assert scores.recall == {"negative": 1.0, "positive": 0.0}
    assert scores.macro_recall == 0.5
    assert scores.macro_f1 == 0.5
    assert scores.confusion == [[1, 0, 0], [0, 0, 0], [0, 1, 0]]


def test_the_table_shows_figures_and_matrix() -> None:
    """A row for each gold label, a column for each prediction; figures of the scores if known.

    The record for JSON leaves out what is not known.
    """
    scores = score(["negative", "positive"], ["negative", "neutral"], LABELS)
    lines = scores.table().splitlines()
    assert lines[0] == "macro recall 0.5000  macro F1 0.5000  accuracy 0.5000  (2 texts)"
    assert [line.split() for line in lines[3:]] == [
        LABELS,
        ["negative", "1", "0", "0"],
        ["neutral", "0", "0", "0"],
        ["positive", "0", "1", "0"],
    ]
    known = replace(scores, ece=0.25, log_loss=0.5)
    assert known.table().splitlines() == [*lines, "scores: ECE 0.2500  log loss 0.5000"]
    assert "ece" not in json.loads(json.dumps(scores.as_dict()))


@pytest.mark.parametrize(
    ("right", "texts", "between"),
    [(1, 1, "0.207 to 1.000"), (0, 1, "0.000 to 0.793"), (7_200, 10_000, "0.711 to 0.729")],
)
def test_the_table_says_how_certain_the_accuracy_is(right: int, texts: int, between: str) -> None:
    """Of one text, nearly nothing follows; of ten thousand, two digits."""
    predicted = [LABELS[0]] * right + [LABELS[1]] * (texts - right)
    table = score([LABELS[0]] * texts, predicted, LABELS).table()
    assert f"accuracy on all texts like these, with 95 % confidence: {between}\n" in table


def _write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_rows_are_read_as_they_stand(tmp_path: Path) -> None:
    """Quotes, spaces and other line separators belong to the text; blank rows do not count.

    A byte order mark, with which Windows' editors begin files, is no part of the first group.
    """
    content = '\ufeffen\tpositive\t"quoted, as is" \r\n\nes\tneutral\tuno\u2028dos\x0btres\n'
    assert read_examples(_write(tmp_path / "x.tsv", content), LABELS) == [
        Example("en", "positive", '"quoted, as is" '),
        Example("es", "neutral", "uno\u2028dos\x0btres"),
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
        (["neg", "negative", "positive"], "neg", "neg"),
        (["LABEL_1", "LABEL_0"], "LABEL_1", "LABEL_1"),
        (["LABEL_1", "LABEL_0"], "label_1", None),
        (["neg", "negative", "positive"], "NEG", None),
    ],
)
def test_labels_may_be_spelled_as_in_the_checkpoint(
    tmp_path: Path, labels: list[str], written: str, meant: str | None
) -> None:
    """In other letter cases, by position, or in another spelling, if only one can be meant."""
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
        ("en\t2\tok\n", ":1: label '2' is not one of the model's: negative, neutral, positive"),
        ("", "holds no labelled texts"),
        ("\n \n", "holds no labelled texts"),
        (b"en\tpositive\t\xff\n", "cannot read .* as UTF-8"),
        (None, "cannot read .*: No such file"),
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


@pytest.fixture(scope="module")
def tiny(bundle: Path) -> Model:
    """``love`` is positive, ``worst`` negative, all else neutral, ``nan`` no number."""
    return load(bundle)


def test_every_text_is_classified_in_its_place(tiny: Model) -> None:
    """Texts are batched by length, and each prediction still meets its own label."""
    kinds = [("love", "positive"), ("worst", "negative"), ("on monday", "neutral")]
    examples = [
        Example("en", label, " ".join([word] * (1 + index * 7 % 11)))
        for index in range(TEXTS_PER_BATCH + 5)
        for word, label in [kinds[index % 3]]
    ]
    scores = evaluate(tiny, examples)
    assert scores.samples == len(examples)
    assert scores.accuracy == scores.macro_recall == scores.macro_f1 == 1.0
    wrong = [Example("en", "positive", "worst worst"), *examples[1:]]
    assert evaluate(tiny, wrong).confusion == [[7, 0, 0], [0, 7, 0], [1, 0, 6]]


def test_scores_are_judged_as_they_are_served(tmp_path: Path) -> None:
    """The log loss is that of the calibrated scores."""
    model = load(calibrate(make_bundle(tmp_path / "tiny"), temperature=2.0))
    scores = model.scores(np.array([-1, 0, 4], np.float32))  # of "love"
    found = evaluate(model, [Example("en", "positive", "love")])
    assert found.log_loss == pytest.approx(-np.log(scores[2]), rel=1e-5)
    assert found.ece == pytest.approx(1 - scores[2], rel=1e-5)


@pytest.mark.parametrize(
    ("text", "says"), [(" ", "text 2: the text is empty"), ("nan", "text 2: the model gave no")]
)
def test_a_text_that_cannot_be_classified_is_named(tiny: Model, text: str, says: str) -> None:
    """By its place among the labelled texts."""
    examples = [Example("en", "positive", "love love"), Example("en", "neutral", text)]
    with pytest.raises(UserError, match=f"labelled {says}"):
        evaluate(tiny, examples)
