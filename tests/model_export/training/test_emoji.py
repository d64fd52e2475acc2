"""Emoji get tokens of their own, and composed texts teach what they say."""

import csv
from collections import Counter
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from app.errors import UserError
from model_export.checkpoint.labels import SENTIMENTS
from model_export.cli import main
from model_export.quality.labelled import Example, read_examples
from model_export.training.emoji_texts import PLAIN, compose
from model_export.training.emoji_tokens import read_counts
from tests.support.checkpoints import make_checkpoint

RANKING = {"😂": (10, 20, 30), "😡": (9, 1, 1), "❤": (1, 1, 9), "🎉": (0, 1, 9), "—": (5, 5, 5)}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ranking, labelled texts, and what ``add-emoji`` made of a tiny BERT."""
    directory = tmp_path_factory.mktemp("emoji")
    make_checkpoint(directory / "base", "bert")
    with (directory / "ranking.csv").open("w", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["Emoji", "Occurrences", "Negative", "Neutral", "Positive"])
        rows.writerows([emoji, sum(counts), *counts] for emoji, counts in RANKING.items())
    texts = [f"en\t{SENTIMENTS[n % 3]}\tthe bus number {n} is here\n" for n in range(300)]
    (directory / "train.tsv").write_text("".join(texts), encoding="utf-8")
    assert main(_command(directory, "with", "composed.tsv")) == 0
    return directory


def _command(directory: Path, output: str, composed: str, base: str = "base") -> list[str]:
    return [
        *("add-emoji", str(directory / base), "--ranking", str(directory / "ranking.csv")),
        *("--train", str(directory / "train.tsv"), "--texts", "200"),
        *("--output", str(directory / output), "--composed", str(directory / composed)),
    ]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("love😍🎉love", ["love", "😍", "🎉", "love"]),
        ("❤️👍🏽", ["❤", "👍"]),
        ("👨‍👩‍👧", ["👨", "👩", "👧"]),
        ("🇩🇪🫶", ["🇩", "🇪", "🫶"]),
    ],
)
def test_each_emoji_is_a_token(directory: Path, text: str, tokens: list[str]) -> None:
    """Glued to words and to each other, too; selectors, joiners and skin tones go."""
    tokenizer = AutoTokenizer.from_pretrained(directory / "with")
    assert tokenizer.tokenize(text) == tokens


def test_texts_without_emoji_have_the_same_ids(directory: Path) -> None:
    """The former tokens and their ids stay."""
    former, now = (AutoTokenizer.from_pretrained(directory / name) for name in ("base", "with"))
    text = "I love this, don't you? Ünïcode — 東京 …"
    assert now(text)["input_ids"] == former(text)["input_ids"]


def test_an_embedding_is_the_mean_of_its_names_tokens(directory: Path) -> None:
    """The former embeddings stay; every new token has one."""
    former, now = (
        AutoModelForSequenceClassification.from_pretrained(directory / name)
        for name in ("base", "with")
    )
    tokenizer = AutoTokenizer.from_pretrained(directory / "with")
    before, after = (model.get_input_embeddings().weight for model in (former, now))
    assert torch.equal(after[: len(before)], before)
    assert len(after) == len(tokenizer)
    name = tokenizer("broken heart", add_special_tokens=False)["input_ids"]
    assert torch.allclose(after[tokenizer.convert_tokens_to_ids("💔")], before[name].mean(0))


def test_the_composed_texts_are_drawn_as_asked(directory: Path) -> None:
    """So many texts, some with emoji that suit the label, and emoji alone; the same each time."""
    composed = read_examples(directory / "composed.tsv", SENTIMENTS)
    assert main(_command(directory, "again", "again.tsv")) == 0
    assert (directory / "again.tsv").read_bytes() == (directory / "composed.tsv").read_bytes()
    alone = [example for example in composed if example.group == "emoji"]
    assert len(alone) == 20
    assert len({example.text.split(" is here")[0] for example in composed}) > 200


def test_emoji_occur_as_often_with_a_label_as_in_the_ranking() -> None:
    """An angry face stands more often in negative texts than in positive ones, a heart less."""
    counts = {emoji: list(row) for emoji, row in RANKING.items()}
    examples = [Example("en", (SENTIMENTS[n % 3],), f"number {n}") for n in range(3000)]
    composed = compose(examples, counts, texts=3000, turned=0.1, seed=1)
    labels = {emoji: Counter[str]() for emoji in "😡❤"}
    for example in composed:
        for emoji in labels:
            labels[emoji][example.label] += emoji in example.text and example.group == "en"
    assert labels["😡"]["negative"] > 2 * labels["😡"]["positive"]
    assert labels["❤"]["positive"] > 2 * labels["❤"]["negative"]


def test_no_emoji_is_plainly_both() -> None:
    """The lists of plain emoji share none."""
    assert not set(PLAIN["negative"]) & set(PLAIN["positive"])


def test_another_tokenizer_is_refused(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only tokenizers of BERT's kind get emoji; nothing is written."""
    make_checkpoint(directory / "roberta", "roberta")
    assert main(_command(directory, "not", "not.tsv", base="roberta")) == 1
    assert "BERT's kind" in capsys.readouterr().err
    assert not (directory / "not").exists()
    assert not (directory / "not.tsv").exists()


def test_a_table_that_is_no_ranking_is_an_error(directory: Path) -> None:
    """It is named, with the reason."""
    with pytest.raises(UserError, match=r"train\.tsv as an Emoji Sentiment Ranking"):
        read_counts(directory / "train.tsv")
