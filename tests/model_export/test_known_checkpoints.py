"""Tiny checkpoints in the layout of published ones, in a renamed directory, exported and served."""

import os
from pathlib import Path
from typing import Any

import pytest
from sentiment_export.cli import main
from sentiment_service import Classifier
from sentiment_service.engine.options import Preprocessing

from tests.conftest import SET_BY_HAND
from tests.support.checkpoints import configure, make_checkpoint, make_twitter_roberta

TOPICS = ["arts_&_culture", "business_&_entrepreneurs", "celebrity_&_pop_culture"]
TOPICS += ["diaries_&_daily_life", "family", "fashion_&_style", "film_tv_&_video"]
TOPICS += ["fitness_&_health", "food_&_dining", "gaming", "learning_&_educational", "music"]
TOPICS += ["news_&_social_concern", "other_hobbies", "relationships", "science_&_technology"]
TOPICS += ["sports", "travel_&_adventure", "youth_&_student_life"]
TEXT = "love @anna, see http://t.co/x 😂"
# The text as the models' own code has it before the tokenizer.
NORMALISED: dict[Preprocessing, str] = {
    "tweet": "love @user see http 😂",
    "tweet_topic": "love {@anna@}, see {{URL}} 😂",
    "robertuito": "love @usuario, see url  emoji cara llorando de risa emoji",
}


@pytest.fixture(autouse=True)
def _nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SET_BY_HAND.items():
        monkeypatch.setenv(f"SENTIMENT_{name.upper()}", str(value))


@pytest.mark.parametrize(
    ("saved_from", "labels", "preprocessing"),
    [
        ("cardiffnlp/twitter-roberta-base-sentiment", ["negative", "neutral", "positive"], "tweet"),
        (
            "cardiffnlp/twitter-xlm-roberta-base-sentiment",
            ["negative", "neutral", "positive"],
            "tweet",
        ),
        ("cardiffnlp/tweet-topic-21-multi", TOPICS, "tweet_topic"),
        ("pysentimiento/robertuito-sentiment-analysis", ["NEG", "NEU", "POS"], "robertuito"),
    ],
    ids=lambda value: value.strip("/").rpartition("/")[2] if isinstance(value, str) else "",
)
def test_a_renamed_directory_answers_as_published(
    tmp_path: Path, saved_from: str, labels: list[str], preprocessing: Preprocessing
) -> None:
    """Its labels and its normalisation are those of the models' own code; card and manifest say so.

    A text that is normalised already gets the same answer.
    """
    unnamed = preprocessing != "robertuito"  # whose config.json has names
    names = {n: f"LABEL_{n}" for n in range(len(labels))}
    if not unnamed:
        names, labels = dict(enumerate(labels)), ["negative", "neutral", "positive"]
    numbers = {name: n for n, name in names.items()}
    config: dict[str, Any] = {"id2label": names, "label2id": numbers}
    source = tmp_path / "mine"
    if "xlm" in saved_from:
        make_checkpoint(source, "xlm-roberta", **config)
    else:
        make_twitter_roberta(source, **config)
    configure(source, _name_or_path=saved_from)
    output = tmp_path / "bundle"
    assert main([str(source), "--output", str(output), "--precision", "fp32"]) == 0

    card = (output / "README.md").read_text(encoding="utf-8")
    assert f"become {', '.join(labels)}" in card
    with Classifier(output) as classifier:
        raw = classifier.classify(TEXT)
        normalised = classifier.classify(NORMALISED[preprocessing])
    assert [*raw.scores] == labels
    assert raw.logits == normalised.logits
    several = labels == TOPICS
    assert (sum(raw.scores.values()) == pytest.approx(1)) != several


def test_a_stance_model_without_names_says_how_to_name_its_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its answers have LABEL_n, not sentiments, until they are named, also in Python."""
    names = {n: f"LABEL_{n}" for n in range(3)}
    source = make_checkpoint(tmp_path / "stance", id2label=names)
    words = [str(source), "--output", str(tmp_path / "bundle"), "--precision", "fp32"]
    assert main(words) == 0
    assert "warning: the outputs have no names but LABEL_0" in capsys.readouterr().out
    with Classifier(tmp_path / "bundle") as classifier:
        assert [*classifier.classify("meh").scores] == ["LABEL_0", "LABEL_1", "LABEL_2"]
    labels = ["none", "against", "favor"]
    # The process that exports needs no PyTorch, whose import takes four seconds.
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['torch'] = None")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with Classifier(source, labels=labels, precision="fp32", cache_dir=tmp_path) as classifier:
        assert [*classifier.classify("meh").scores] == labels
    assert "warning" not in capsys.readouterr().err
