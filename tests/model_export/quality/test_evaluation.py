"""Evaluation: labelled texts are read, classified and scored."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sentiment_export.quality.evaluation import TEXTS_PER_BATCH, evaluate
from sentiment_export.quality.labelled import Example, Labels
from sentiment_export.quality.scores import score
from sentiment_service.engine.model.bundle import Evaluation
from sentiment_service.engine.model.model import Model
from sentiment_service.errors import UserError

from tests.support.tiny_bundle import LABELS, calibrate, load, make_bundle


def _each(labels: list[str]) -> list[Labels]:
    """One label for each text."""
    return [(label,) for label in labels]


def test_figures_are_those_computed_by_hand() -> None:
    """Precision 1, 1, 1/3, recall 2/3, 1/2, 1 and F1 4/5, 2/3, 1/2 for a small confusion matrix."""
    gold = _each(["negative"] * 3 + ["neutral"] * 2 + ["positive"])
    predicted = _each(["negative", "negative", "positive", "neutral", "positive", "positive"])
    # F1: 2·1·⅔/(1+⅔) = 4/5, 2·1·½/(1+½) = 2/3, 2·⅓·1/(⅓+1) = 1/2.
    scores = score(gold, predicted, LABELS)
    assert scores.samples == 6
    assert scores.accuracy == pytest.approx(4 / 6)
    assert scores.recall == pytest.approx({"negative": 2 / 3, "neutral": 1 / 2, "positive": 1})
    assert scores.precision == pytest.approx({"negative": 1, "neutral": 1, "positive": 1 / 3})
    assert scores.f1 == pytest.approx({"negative": 4 / 5, "neutral": 2 / 3, "positive": 1 / 2})
    assert scores.texts == {"negative": 3, "neutral": 2, "positive": 1}
    assert scores.macro_precision == pytest.approx((1 + 1 + 1 / 3) / 3)
    assert scores.macro_recall == pytest.approx((2 / 3 + 1 / 2 + 1) / 3)
    assert scores.macro_f1 == pytest.approx((4 / 5 + 2 / 3 + 1 / 2) / 3)
    assert scores.confusion == [[2, 0, 1], [0, 1, 1], [0, 0, 1]]


def test_several_labels_of_a_text_are_scored_one_by_one() -> None:
    """Micro figures count labels, macro ones average over them, and a match is all of a text's."""
    gold: list[Labels] = [("anger", "joy"), ("joy",), (), ("sadness",)]
    predicted: list[Labels] = [("joy",), ("joy",), ("anger",), ("joy", "sadness")]
    labels = ["anger", "fear", "joy", "sadness"]
    scores = score(gold, predicted, labels, ["en", "en", "es", "es"], multi_label=True)
    assert scores.accuracy == 1 / 4
    assert scores.precision == pytest.approx({"anger": 0, "joy": 2 / 3, "sadness": 1})
    assert scores.recall == pytest.approx({"anger": 0, "joy": 1, "sadness": 1})
    assert scores.f1 == pytest.approx({"anger": 0, "joy": 4 / 5, "sadness": 1})
    assert scores.macro_f1 == pytest.approx((0 + 4 / 5 + 1) / 3)
    assert scores.micro_f1 == pytest.approx(2 * 3 / (4 + 5))  # 3 right of 4 gold, 5 predicted
    assert scores.mean.micro_f1 == pytest.approx((2 * 2 / 5 + 2 * 1 / 4) / 2)
    assert scores.confusion is None
    assert "confusion" not in scores.as_dict()
    assert scores.table().startswith("macro recall 0.6667  macro F1 0.6000  micro F1 0.6667  exact")


def test_a_matrix_too_wide_for_a_terminal_is_left_out() -> None:
    """Of twenty long labels, for example; the JSON has it."""
    labels = [f"label of an emoji {number}" for number in range(20)]
    scores = score(_each(labels), _each(labels), labels)
    assert "rows: gold" not in scores.table()
    assert len(scores.as_dict()["confusion"]) == 20


def test_a_label_that_does_not_occur_counts_for_nothing() -> None:
    """Macro figures average over the labels of the data; mistakes still count."""
    scores = score(_each(["negative", "positive"]), _each(["negative", "neutral"]), LABELS)
    assert scores.recall == {"negative": 1.0, "positive": 0.0}
    assert scores.macro_recall == 0.5
    assert scores.macro_f1 == 0.5
    assert scores.confusion == [[1, 0, 0], [0, 0, 0], [0, 1, 0]]


def test_the_table_shows_figures_and_matrix() -> None:
    """A row for each gold label, a column for each prediction; figures of the scores if known.

    The record for JSON leaves out what is not known.
    """
    scores = score(_each(["negative", "positive"]), _each(["negative", "neutral"]), LABELS)
    lines = scores.table().splitlines()
    assert lines[0] == "macro recall 0.5000  macro F1 0.5000  accuracy 0.5000  (2 texts)"
    assert [line.split() for line in lines[2:]] == [
        ["precision", "recall", "F1", "texts"],
        ["negative", "1.0000", "1.0000", "1.0000", "1"],
        ["positive", "0.0000", "0.0000", "0.0000", "1"],
        ["macro", "0.5000", "0.5000", "0.5000"],
        ["rows:", "gold,", "columns:", "predicted"],
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
    table = score(_each([LABELS[0]] * texts), _each(predicted), LABELS).table()
    assert f"accuracy on all texts like these, with 95 % confidence: {between}\n" in table


@pytest.fixture(scope="module")
def tiny(bundle: Path) -> Model:
    """``love`` is positive, ``worst`` negative, all else neutral, ``nan`` no number."""
    return load(bundle)


def test_every_text_is_classified_in_its_place(tiny: Model) -> None:
    """Texts are batched by length, and each prediction still meets its own label."""
    kinds = [("love", "positive"), ("worst", "negative"), ("on monday", "neutral")]
    examples = [
        Example("en", (label,), " ".join([word] * (1 + index * 7 % 11)))
        for index in range(TEXTS_PER_BATCH + 5)
        for word, label in [kinds[index % 3]]
    ]
    scores, predicted = evaluate(tiny, examples)
    assert predicted == [example.labels for example in examples]
    assert scores.samples == len(examples)
    assert scores.accuracy == scores.macro_recall == scores.macro_f1 == 1.0
    wrong = [Example("en", ("positive",), "worst worst"), *examples[1:]]
    assert evaluate(tiny, wrong)[0].confusion == [[7, 0, 0], [0, 7, 0], [1, 0, 6]]


def test_the_record_says_how_long_the_texts_are(tmp_path: Path) -> None:
    """In tokens before truncation, by the service's buckets, and how many the model did not know.

    Of 30 words, it reads 14: that half of these are unknown holds for all tokens of the text.
    """
    texts = ["love", "love " * 6, "love " * 7, "zzz", "love zzz " * 15]
    scores, _ = evaluate(
        load(make_bundle(tmp_path / "tiny")), [Example("", ("neutral",), text) for text in texts]
    )
    record = Evaluation.of(scores.as_dict())
    found = {bucket: number for bucket, number in record.lengths.items() if number}
    assert found == {"8": 3, "16": 1, "32": 1}
    assert record.tokens == 3 + 8 + 9 + 3 + 32
    assert record.unknown_tokens == 1 + 7 * 32 // 16


def test_scores_are_judged_as_they_are_served(tmp_path: Path) -> None:
    """The log loss is that of the calibrated scores."""
    model = load(calibrate(make_bundle(tmp_path / "tiny"), temperature=2.0))
    scores = model.scores(np.array([-1, 0, 4], np.float32))  # of "love"
    found, _ = evaluate(model, [Example("en", ("positive",), "love")])
    assert found.log_loss == pytest.approx(-np.log(scores[2]), rel=1e-5)
    assert found.ece == pytest.approx(1 - scores[2], rel=1e-5)


def test_a_multi_label_model_gives_every_label_from_its_threshold_on(tmp_path: Path) -> None:
    """Each label is a decision of its own, and so are the log loss and the ECE."""
    model = load(make_bundle(tmp_path / "tiny", problem_type="multi_label_classification"))
    examples = [Example("", ("positive",), "love"), Example("", ("negative",), "worst love")]
    scores, predicted = evaluate(model, examples)
    # The logits are (-1, 0, 4) and (3, 0, 3). A score of 0.5 is enough.
    assert predicted == [("neutral", "positive"), ("negative", "neutral", "positive")]
    chances = 1 / (1 + np.exp(-np.array([[-1, 0, 4], [3, 0, 3]])))
    right = np.array(
        [[1 - chances[0, 0], 0.5, chances[0, 2]], [chances[1, 0], 0.5, 1 - chances[1, 2]]]
    )
    assert scores.log_loss == pytest.approx(-np.log(right).mean(), rel=1e-5)
    assert scores.groups == {}


@pytest.mark.parametrize(
    ("text", "says"), [(" ", "text 2: the text is empty"), ("nan", "text 2: the model gave no")]
)
def test_a_text_that_cannot_be_classified_is_named(tiny: Model, text: str, says: str) -> None:
    """By its place among the labelled texts."""
    examples = [Example("en", ("positive",), "love love"), Example("en", ("neutral",), text)]
    with pytest.raises(UserError, match=f"labelled {says}"):
        evaluate(tiny, examples)
