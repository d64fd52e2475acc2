"""Emoji get tokens of their own, and composed texts teach what they say."""

import csv
from collections import Counter
from pathlib import Path

import pytest
import torch
from sentiment_export.checkpoint.config import SENTIMENTS
from sentiment_export.quality.labelled import read_examples
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from models.add_emoji import main
from tests.support.checkpoints import make_checkpoint

RANKING = {"😂": (10, 20, 30), "😡": (9, 1, 1), "❤": (1, 1, 9), "🎉": (0, 1, 9), "—": (5, 5, 5)}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ranking, labelled texts, and what was made of a tiny BERT."""
    directory = tmp_path_factory.mktemp("emoji")
    make_checkpoint(directory / "base", "bert")
    with (directory / "ranking.csv").open("w", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["Emoji", "Occurrences", "Negative", "Neutral", "Positive"])
        rows.writerows([emoji, sum(counts), *counts] for emoji, counts in RANKING.items())
    texts = [f"en\t{SENTIMENTS[n % 3]}\tthe bus number {n} is here\n" for n in range(3000)]
    (directory / "train.tsv").write_text("".join(texts), encoding="utf-8")
    read = [str(directory / name) for name in ("base", "ranking.csv", "train.tsv")]
    main([*read, "2000", "0.1", str(directory / "with"), str(directory / "composed.tsv")])
    return directory


def test_each_emoji_is_a_token_whose_embedding_is_that_of_its_name(directory: Path) -> None:
    """Glued to words, too; selectors, joiners and skin tones go. All other ids and rows stay."""
    former, now = (AutoTokenizer.from_pretrained(directory / name) for name in ("base", "with"))
    assert now.tokenize("love😍🎉love❤️👍🏽👨‍👩‍👧🇩🇪🫶") == [
        "love",
        *"😍🎉",
        "love",
        *"❤👍👨👩👧🇩🇪🫶",
    ]
    text = "I love this, don't you? Ünïcode — 東京 …"
    assert now(text)["input_ids"] == former(text)["input_ids"]
    before, after = (
        AutoModelForSequenceClassification.from_pretrained(directory / name)
        .get_input_embeddings()
        .weight
        for name in ("base", "with")
    )
    assert torch.equal(after[: len(before)], before)
    assert len(after) == len(now)
    name = now("broken heart", add_special_tokens=False)["input_ids"]
    assert torch.allclose(after[now.convert_tokens_to_ids("💔")], before[name].mean(0))


def test_composed_texts_have_emoji_as_often_as_the_ranking(directory: Path) -> None:
    """An angry face is in more negative texts than positive ones; some texts are emoji alone."""
    composed = read_examples(directory / "composed.tsv", SENTIMENTS)
    assert sum(example.group == "emoji" for example in composed) == 200
    labels = {emoji: Counter[str]() for emoji in "😡❤"}
    for example in composed:
        for emoji in labels:
            labels[emoji][example.label] += emoji in example.text and example.group == "en"
    assert labels["😡"]["negative"] > 2 * labels["😡"]["positive"]
    assert labels["❤"]["positive"] > 2 * labels["❤"]["negative"]
