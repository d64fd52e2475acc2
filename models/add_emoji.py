"""Gives an encoder of BERT's kind tokens for emoji, and writes texts that teach what they say.

The embedded model was made with this; its README.md has the command. It needs the extra `export`.
The Emoji Sentiment Ranking (Kralj Novak et al. 2015) counts how often an emoji occurred in tweets
of each label. Labelled tweets with emoji are few, so texts are composed with it.
"""

import csv
import json
import random
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from sentiment_export.checkpoint.config import SENTIMENTS
from sentiment_export.quality.labelled import Example, read_examples
from sentiment_service.engine.text.tweets import EMOJI_NAMES
from tokenizers import Tokenizer
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

# How often an emoji occurred in tweets of each of SENTIMENTS.
Counts = Mapping[str, Sequence[float]]
# The plane of the emoji since 2019, and the parts of flags and of a key such as 1️⃣.
UNNAMED = (*range(0x1FA70, 0x1FB00), *range(0x1F1E6, 0x1F200), 0x20E3)
SKIN_TONES = "[\U0001f3fb-\U0001f3ff]"
# Emoji whose sentiment is plain, chosen by hand. Many of them are newer than the ranking.
PLAIN = {
    "negative": "😠😡🤬👎💔😢😭😞😔😟😕🙁☹😣😖😫😩😤😦😧😨😰😥😓🤢🤮🤕🤒😷👿💩🖕😒🙄😑😿😾🥀🤦",
    "positive": "😀😃😄😁😆😊😇🙂😉😍🥰😘😗😚😙😋😎🤩🥳🤗☺❤🧡💛💚💙💜💖💗💓💕💞💘💝😻😸👍👏🙌💪👌🎉"
    "🎊🥂✨🌟🌹🌞🏆💯🫶🤍🤝",
}


def read_counts(path: Path) -> Counts:
    """The emoji of the ranking's table. It has dashes and letters, too; these are left out."""
    with path.open(encoding="utf-8", newline="") as file:
        return {
            row["Emoji"]: [float(row[label.capitalize()]) for label in SENTIMENTS]
            for row in csv.DictReader(file)
            if len(row["Emoji"]) == 1 and ord(row["Emoji"]) >= 0x2600
        }


def add_emoji(model: Any, tokenizer: PreTrainedTokenizerFast, counts: Counts) -> Tokenizer:
    """Give each emoji a token, and the model the mean embedding of its name's tokens for it.

    Words are cut before and after an emoji. A skin tone is left out; the tokenizer's own
    normalisation leaves out variation selectors and joiners.
    """
    symbols = {symbol: unicodedata.name(symbol, "") for symbol in (*map(chr, UNNAMED), *counts)}
    names = {symbol: name for symbol, name in (symbols | EMOJI_NAMES).items() if name}
    form = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary: dict[str, int] = form["model"]["vocab"]
    added = [symbol for symbol in names if symbol not in vocabulary]
    embeddings: torch.Tensor = model.get_input_embeddings().weight.detach()
    means = []
    for symbol in added:
        name = names[symbol].lower().replace("_", " ")
        means.append(embeddings[tokenizer(name, add_special_tokens=False)["input_ids"]].mean(0))
    model.resize_token_embeddings(len(embeddings) + len(added), mean_resizing=False)
    with torch.no_grad():
        model.get_input_embeddings().weight[len(embeddings) :] = torch.stack(means)
    vocabulary.update((symbol, len(embeddings) + row) for row, symbol in enumerate(added))
    cuts = [(SKIN_TONES, "Removed"), (f"[{''.join(sorted(names))}]", "Isolated")]
    splits = [
        {"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": False}
        for regex, behavior in cuts
    ]
    words = form["pre_tokenizer"]
    form["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [words, *splits]}
    return Tokenizer.from_str(json.dumps(form))


class Composer:
    """Draws emoji for texts, by the counts of the ranking."""

    def __init__(self, counts: Counts, order: random.Random) -> None:
        self._order = order
        self._counts = {symbol: [count + 1 for count in row] for symbol, row in counts.items()}
        for symbols in PLAIN.values():
            # Plain emoji that are newer than the ranking get the counts of the others together.
            ranked = [self._counts[symbol] for symbol in symbols if symbol in self._counts]
            typical = [sum(column) / len(ranked) for column in zip(*ranked, strict=True)]
            for symbol in symbols:
                self._counts.setdefault(symbol, typical)
        # The square root, so that rare emoji are seen, too.
        self._frequency = [sum(row) ** 0.5 for row in self._counts.values()]

    def composed(self, examples: Sequence[Example], turned: float) -> Iterator[Example]:
        """The examples with emoji that suit their labels, and a tenth as many of emoji alone.

        A share ``turned`` of the neutral texts is repeated with an emoji of plain sentiment, whose
        label it takes.
        """
        for example in examples:
            column = SENTIMENTS.index(example.label)
            shares = [row[column] / sum(row) for row in self._counts.values()]
            weights = [f * share for f, share in zip(self._frequency, shares, strict=True)]
            yield self._with(example, example.label, self._drawn(weights))
            if example.label == "neutral" and self._order.random() < turned:
                label = self._order.choice(list(PLAIN))
                yield self._with(example, label, self._order.choice(PLAIN[label]))
        for _ in range(round(len(examples) / 10)):
            yield self._alone()

    def _drawn(self, weights: Sequence[float]) -> str:
        return self._order.choices(list(self._counts), weights)[0]

    def _with(self, example: Example, label: str, emoji: str) -> Example:
        """The text with one to three of the emoji: mostly after it, else between two words."""
        emoji *= self._order.choice((1, 1, 1, 1, 2, 3))
        words = example.text.split(" ")
        if self._order.random() < 0.75:
            words[-1] += self._order.choice((" ", " ", "")) + emoji
        else:
            words.insert(self._order.randrange(len(words)), emoji)
        return Example(example.group, (label,), " ".join(words))

    def _alone(self) -> Example:
        if self._order.random() < 0.6:
            label = self._order.choice(list(PLAIN))
            symbols = self._order.choices(PLAIN[label], k=self._order.choice((1, 1, 2, 3)))
            return Example("emoji", (label,), "".join(symbols))
        symbol = self._drawn(self._frequency)
        plain = (label for label, symbols in PLAIN.items() if symbol in symbols)
        drawn = self._order.choices(SENTIMENTS, self._counts[symbol])[0]
        return Example("emoji", (next(plain, drawn),), symbol)


def main(arguments: Sequence[str]) -> None:
    """Write a checkpoint with emoji, and a labelled file for the training of their embeddings."""
    base, ranking, train, texts, turned, output, composed = arguments
    counts, order = read_counts(Path(ranking)), random.Random(0)
    examples = order.sample(read_examples(Path(train), SENTIMENTS), int(texts))
    model = AutoModelForSequenceClassification.from_pretrained(base)
    former: Any = AutoTokenizer.from_pretrained(base)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=add_emoji(model, former, counts),
        model_max_length=former.model_max_length,
        **former.special_tokens_map,
    )
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    made = Composer(counts, order).composed(examples, float(turned))
    rows = [f"{example.group}\t{example.label}\t{example.text}\n" for example in made]
    Path(composed).write_text("".join(rows), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
