"""Labels and heads: what config.json may say of the outputs, and what becomes of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from sentiment_export.checkpoint.checkpoint import load_checkpoint
from sentiment_export.checkpoint.config import canonical_labels, read_labels
from sentiment_export.checkpoint.describe import describe
from sentiment_service.errors import UserError
from sentiment_service.settings.settings import CheckpointOptions

from tests.support.checkpoints import configure, make_checkpoint
from tests.support.model_export.published import make_published

MULTI_LABEL = "multi_label_classification"


@pytest.mark.parametrize(
    ("spelled", "labels"),
    [
        (["LABEL_0", "LABEL_1", "LABEL_2"], ["LABEL_0", "LABEL_1", "LABEL_2"]),
        (["Negative", "Neutral", "Positive"], ["negative", "neutral", "positive"]),
        (["negative", "neutral", "positive"], ["negative", "neutral", "positive"]),
        (["POS", "NEU", "NEG"], ["positive", "neutral", "negative"]),
        (["positive", "negative", "neutral"], ["positive", "negative", "neutral"]),
        (["NEGATIVE", "POSITIVE"], ["negative", "positive"]),
        (["positive", "neg"], ["positive", "negative"]),
        (["neutral", "positive"], ["neutral", "positive"]),
        (["LABEL_2", "LABEL_1", "LABEL_0"], ["LABEL_2", "LABEL_1", "LABEL_0"]),
        (["LABEL_0", "LABEL_1"], ["LABEL_0", "LABEL_1"]),
        (["1 star", "2 stars", "3 stars"], ["1 star", "2 stars", "3 stars"]),
        (["negative", "neg", "positive"], ["negative", "neg", "positive"]),
        (
            ["Negative", "Neutral", "Positive", "Mixed"],
            ["Negative", "Neutral", "Positive", "Mixed"],
        ),
    ],
)
def test_labels_are_canonical_in_the_checkpoints_order(
    spelled: list[str], labels: list[str]
) -> None:
    """The three sentiments by their names however spelled; any other set stays, also LABEL_n."""
    assert canonical_labels(spelled) == labels


@pytest.mark.parametrize(
    ("config", "labels"),
    [
        ({"id2label": {"1": "POS", "0": "NEG"}}, ["NEG", "POS"]),
        ({"id2label": {"0": "POSITIVE", "1": "NEGATIVE"}}, ["POSITIVE", "NEGATIVE"]),
        ({}, ["LABEL_0", "LABEL_1"]),
        ({"id2label": None, "num_labels": 3}, ["LABEL_0", "LABEL_1", "LABEL_2"]),
        ({"id2label": None, "num_labels": "2"}, ["LABEL_0", "LABEL_1"]),
        (
            {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "num_labels": 3},  # transformers 2.4
            ["LABEL_0", "LABEL_1", "LABEL_2"],
        ),
        ({"id2label": {"0": 1, "1": 2}}, ["1", "2"]),
        ({"id2label": {"0": "très bien", "1": "nul, nul"}}, ["très bien", "nul, nul"]),
        ({"id2label": {"0": "toxic"}, "problem_type": MULTI_LABEL}, ["toxic"]),
        (
            {"id2label": {"0": "a", "1": "b"}, "problem_type": "single_label_classification"},
            ["a", "b"],
        ),
    ],
)
def test_labels_are_read_in_the_order_of_their_ids(
    config: dict[str, Any], labels: list[str]
) -> None:
    """Defaults are those of transformers, and numbers become their digits."""
    assert read_labels(config, "made") == labels


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"id2label": {"1": "a", "2": "b"}}, "has the ids 1, 2; they must be 0, 1, 2"),
        ({"id2label": {"0": "a", "2": "b"}}, "has the ids 0, 2; they must be 0, 1, 2"),
        ({"id2label": {"0": None, "1": "b"}}, "the label of output 0 is None"),
        ({"id2label": {"0": "a", "1": " "}}, "the label of output 1 is ' '"),
        ({"id2label": {"0": "a\tb", "1": "c"}}, r"the label of output 0 is 'a\\tb'"),
        ({"id2label": {"0": "a", "1": "c\nd"}}, r"the label of output 1 is 'c\\nd'"),
        ({"id2label": {"0": ["a"], "1": "c"}}, "the label of output 0 is"),
        ({"id2label": {"0": True, "1": "c"}}, "the label of output 0 is True"),
        ({"id2label": {"0": "a", "1": "a"}}, "outputs 0 and 1 are both called 'a'"),
    ],
)
def test_labels_that_cannot_be_used_ask_for_other_names(config: dict[str, Any], says: str) -> None:
    """One line names the output and --labels, and --labels gets the same checkpoint through."""
    with pytest.raises(UserError, match=f"^made: .*{says}.*--labels") as caught:
        read_labels(config, "made")
    assert "\n" not in str(caught.value)
    assert read_labels(config, "made", ["bad", "good"]) == ["bad", "good"]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"id2label": ["a", "b"]}, "id2label in config.json must be an object"),
        ({"id2label": {"x": "a", "y": "b"}}, "id2label in config.json must be an object"),
        ({"id2label": {}}, "id2label in config.json must be an object"),
        ({"problem_type": "ranking"}, "problem_type in config.json is 'ranking'; .*one of single"),
        ({"problem_type": "regression"}, "is a regression .*give the checkpoint of a classifier"),
        ({"num_labels": 1, "problem_type": "regression"}, "is a regression"),
        ({"num_labels": 1}, "has one output, .*give --multi-label"),
        (
            {"id2label": {"0": "positive"}, "problem_type": "single_label_classification"},
            "has one output, .*probably a regression",
        ),
    ],
)
def test_what_is_no_classifier_is_refused_with_the_reason(
    config: dict[str, Any], says: str
) -> None:
    """Names given with --labels do not make a classifier of it."""
    for named in ([], ["bad", "good"]):
        with pytest.raises(UserError, match=f"^made.*{says}"):
            read_labels(config, "made", named)


@pytest.mark.parametrize(
    ("named", "says"),
    [
        (["a"], "has 2 outputs: give as many different labels"),
        (["a", "b", "c"], "has 2 outputs: give as many different labels"),
        (["a", "a"], "outputs 0 and 1 are both called 'a'"),
        (["a", ""], "label of output 1 is ''"),
    ],
)
def test_given_names_are_checked_too(named: list[str], says: str) -> None:
    """As many as there are outputs, all different, none empty."""
    with pytest.raises(UserError, match=f"made.*{says}.*--labels"):
        read_labels({"id2label": {"0": "x", "1": "y"}}, "made", named)


@pytest.mark.parametrize("entries", [{"id2label": []}, {"problem_type": 5}])
def test_what_transformers_cannot_read_is_said_in_our_words(
    tmp_path: Path, entries: dict[str, Any]
) -> None:
    """By the export and by describe, with the entry's name and what is accepted."""
    path = configure(make_checkpoint(tmp_path / "made", "bert"), **entries)
    (entry,) = entries
    for read in (load_checkpoint, describe):
        with pytest.raises(UserError, match=f"made: {entry} in config.json .*must be"):
            read(path)


@pytest.mark.parametrize(
    "published", ["nlptown/bert-base-multilingual-uncased-sentiment", "microsoft/deberta-base-mnli"]
)
def test_names_that_contradict_num_labels(tmp_path: Path, published: str) -> None:
    """The names say how many outputs there are, as in transformers 4; 5 refuses such a checkpoint.
    The bundle's config.json contradicts itself no more."""
    path = make_published(tmp_path / "made", published)
    names = json.loads((path / "config.json").read_text())["id2label"]
    configure(path, num_labels=len(names) - 1)
    assert describe(path).problems == []
    checkpoint = load_checkpoint(path)
    assert "num_labels" not in checkpoint.config
    assert len(checkpoint.logits([2, 5, 3])) == len(checkpoint.labels) == len(names)


def test_given_names_decide_where_the_ids_have_gaps(tmp_path: Path) -> None:
    """Three outputs of which config.json names two; describe says what to do."""
    path = make_checkpoint(tmp_path / "made", "bert")
    configure(path, id2label={"0": "bad", "2": "good"}, label2id=None)
    assert load_checkpoint(path, CheckpointOptions(labels=("a", "b", "c"))).labels == [
        "a",
        "b",
        "c",
    ]
    description = describe(path)
    assert description.labels == ["bad", "good"]
    assert "has the ids 0, 2" in description.problems[0]
    assert "why an export would fail\n  " in description.text()
