"""Composes labelled texts with emoji.

Labelled tweets with emoji are few. These are made of labelled texts without emoji and of the Emoji
Sentiment Ranking (Kralj Novak et al. 2015), which counts how often an emoji occurred in tweets of
each label.
"""

import random
from collections.abc import Iterator, Sequence

from model_export.checkpoint.labels import SENTIMENTS
from model_export.quality.labelled import Example
from model_export.training.emoji_tokens import FIRST_SYMBOL, Counts

# Emoji whose sentiment is plain, chosen by hand. Many of them are newer than the ranking.
PLAIN = {
    "negative": "😠😡🤬👎💔😢😭😞😔😟😕🙁☹😣😖😫😩😤😦😧😨😰😥😓🤢🤮🤕🤒😷👿💩🖕😒🙄😑😿😾🥀🤦",
    "positive": "😀😃😄😁😆😊😇🙂😉😍🥰😘😗😚😙😋😎🤩🥳🤗☺❤🧡💛💚💙💜💖💗💓💕💞💘💝😻😸👍👏🙌💪👌🎉"
    "🎊🥂✨🌟🌹🌞🏆💯🫶🤍🤝",
}

_SHARE_ALONE = 0.1  # as many texts of emoji alone, in relation to all texts


def compose(
    examples: Sequence[Example], counts: Counts, *, texts: int, turned: float, seed: int
) -> list[Example]:
    """Labelled texts with emoji, from ``texts`` of the examples, drawn by the seed.

    - Each text gets emoji, drawn by how often each occurs in tweets of the text's label.
    - A share ``turned`` of the neutral texts is repeated with an emoji of plain
      sentiment, whose label it takes.
    - Some texts are emoji alone: plain ones, or one with a label drawn from its counts.
    """
    order = random.Random(seed)
    drawn = order.sample(examples, min(texts, len(examples)))
    return list(_Draw(counts, order).texts(drawn, turned))


class _Draw:
    def __init__(self, counts: Counts, order: random.Random) -> None:
        self._order = order
        self._counts = {
            symbol: [count + 1 for count in occurred]
            for symbol, occurred in counts.items()
            if ord(symbol) >= FIRST_SYMBOL
        }
        for symbols in PLAIN.values():
            # Plain emoji that are newer than the ranking get the counts of the others together.
            ranked = [self._counts[symbol] for symbol in symbols if symbol in self._counts]
            typical = [sum(column) / len(ranked) for column in zip(*ranked, strict=True)]
            for symbol in symbols:
                self._counts.setdefault(symbol, typical)
        self._symbols = list(self._counts)
        # The square root, so that rare emoji are seen, too.
        self._frequency = [sum(row) ** 0.5 for row in self._counts.values()]
        self._weights = {
            label: [
                frequency * row[index] / sum(row)
                for frequency, row in zip(self._frequency, self._counts.values(), strict=True)
            ]
            for index, label in enumerate(SENTIMENTS)
        }

    def texts(self, examples: Sequence[Example], turned: float) -> Iterator[Example]:
        for example in examples:
            emoji = self._run(self._suiting(example.label))
            yield Example(example.group, example.labels, self._placed(example.text, emoji))
            if example.label == "neutral" and self._order.random() < turned:
                label = self._order.choice(list(PLAIN))
                emoji = self._run(self._order.choice(PLAIN[label]))
                yield Example(example.group, (label,), self._placed(example.text, emoji))
        for _ in range(round(len(examples) * _SHARE_ALONE)):
            yield self._alone()

    def _suiting(self, label: str) -> str:
        return self._order.choices(self._symbols, self._weights[label])[0]

    def _alone(self) -> Example:
        if self._order.random() < 0.6:
            label = self._order.choice(list(PLAIN))
            symbols = self._order.choices(PLAIN[label], k=self._order.choice((1, 1, 2, 3)))
            return Example("emoji", (label,), "".join(symbols))
        symbol = self._order.choices(self._symbols, self._frequency)[0]
        plain = (label for label, symbols in PLAIN.items() if symbol in symbols)
        drawn = self._order.choices(SENTIMENTS, self._counts[symbol])[0]
        return Example("emoji", (next(plain, drawn),), symbol)

    def _run(self, symbol: str) -> str:
        """The emoji once, or two or three times, as in tweets."""
        return symbol * self._order.choice((1, 1, 1, 1, 2, 3))

    def _placed(self, text: str, emoji: str) -> str:
        """The emoji mostly after the text, else between two words or before it."""
        if self._order.random() < 0.75:
            return f"{text}{self._order.choice((' ', ' ', ''))}{emoji}"
        words = text.split(" ")
        words.insert(self._order.randrange(len(words)), emoji)
        return " ".join(words)
