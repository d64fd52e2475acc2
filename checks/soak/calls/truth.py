"""The texts of the soak and their expected answers, each computed alone in this process."""

import json
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from pydantic_core import to_json
from sentiment_service.adapters.explain import contributions, without, words_of
from sentiment_service.cli.load_generator import tweet_lengths
from sentiment_service.engine.loading import load_model
from sentiment_service.engine.model.bundle import Bundle
from sentiment_service.engine.model.model import outcomes_of
from sentiment_service.engine.options import DEFAULTS, TextOptions
from sentiment_service.engine.step_thread import finish
from sentiment_service.engine.text.input_tokenizer import encodings
from sentiment_service.engine.text.steps import encode_steps
from sentiment_service.results import Outcome, Prediction, item
from sentiment_service.settings.settings import Settings

from benchmarks.texts import texts_of

LONG_TOKENS = (200, 511, 512, 513, 900, 1_500)
SENTENCES = TextOptions(split="sentences")
WINDOWS = TextOptions(overflow="window")
# Texts that the tokenizer treats specially, or that are refused.
ODD = (
    "@someone said http://example.org/x is great",
    "今日はとても楽しかった。また行きたい。",
    "J'adore ça 😍😍 mais pas le reste…",
    "a" * 3_000,
    "\u0301\u200d\u202e odd marks",
    "",
    "   ",
    "NUL \0 inside",
)


class Truth:
    """The answers of a bundle's model, as a client reads them from JSON.

    They are those of one of two temperatures: ``served``, which is the bundle's at first.
    """

    def __init__(self, bundle: Path, texts: int, seed: int) -> None:
        opened = Bundle.open(bundle)
        self.model = load_model(opened, device="cpu", precision="int8", threads=1)
        self._max_chars = Settings().max_text_chars
        self.served, self._other = self.model.temperature, 2 * self.model.temperature
        self._switched = 0.0  # when the other one became impossible, on the clock time.monotonic
        self._known: dict[tuple[str, TextOptions, float], Any] = {}
        self._explained: dict[tuple[str, float], Any] = {}
        tokenizer = self.model.tokenizer.library
        tweets = texts_of(tokenizer, tweet_lengths(texts, seed=seed), seed=seed)
        self.tweets = list(dict.fromkeys(tweets))
        # Long texts are made of words, because the tokenizer cuts texts off at the model's limit.
        words = " ".join(self.tweets).split()
        self.long = [" ".join(words[start : start + n]) for start, n in enumerate(LONG_TOKENS)]
        sentences = (self._sentences(random.Random(seed + n)) for n in range(texts // 20))
        self.passages = list(sentences)
        self.short = [text for text in self.tweets if len(text.split()) <= 8][:40]

    def of(self, text: str, options: TextOptions = DEFAULTS) -> Any:
        """A text's item of ``results``: its prediction or its error."""
        key = text, options, self.model.temperature
        if key not in self._known:
            self._known[key] = _as_json(item(self._outcome(text, options)))
        return self._known[key]

    def explanation(self, text: str) -> Any:
        """The answer of /explain to a text, without the model."""
        key = text, self.model.temperature
        if key not in self._explained:
            words = words_of(text)
            others = [self._outcome(without(word)) for word in words]
            whole = cast(Prediction, self._outcome(text))
            explained = contributions(words, whole, others, multi_label=self.model.multi_label)
            kept = {name: self.of(text)[name] for name in ("label", "score", "tokens", "truncated")}
            self._explained[key] = {**kept, "words": _as_json(explained)}
        return self._explained[key]

    def recalibrate(self) -> float:
        """Begin to serve the other temperature, which is returned. Both are possible from now."""
        self.served, self._other, self._switched = self._other, self.served, math.inf
        return self.served

    def switched(self) -> None:
        """Requests from now on have the temperature that is served alone."""
        self._switched = time.monotonic()

    def views(self, since: float) -> Iterator[None]:
        """Have the other methods speak of each temperature that requests since then may have."""
        for temperature in (self.served, self._other)[: 1 + (since < self._switched)]:
            self.model.temperature = temperature
            yield

    def tokens(self, text: str) -> int:
        """The tokens that are computed for a text; 1 if it is refused."""
        return int(min(self.of(text).get("tokens", 1), self.model.max_tokens))

    def compute(self) -> Iterator[int]:
        """Compute all expected answers; yields the number of texts that are done."""
        plans = [(self.tweets + self.long + list(ODD), DEFAULTS)]
        plans += [(self.passages, SENTENCES), (self.long, WINDOWS)]
        done = 0
        for _ in self.views(-math.inf):
            for texts, options in plans:
                for text in texts:
                    self.of(text, options)
                    done += 1
                    yield done
            for text in self.short:
                self.explanation(text)

    def _outcome(self, text: str, options: TextOptions = DEFAULTS) -> Outcome:
        tokenizer = self.model.tokenizer
        encoded = finish(encode_steps(tokenizer, [text], options, max_chars=self._max_chars))
        results = [self.model.compute([one])[0] for one in encodings(encoded)]
        (outcome,) = outcomes_of(self.model, encoded, results)
        return outcome

    def _sentences(self, order: random.Random) -> str:
        chosen = order.choices(self.tweets, k=order.randint(2, 5))
        return " ".join(f"{text.capitalize()}{order.choice('.!?')}" for text in chosen)


def _as_json(value: Any) -> Any:
    """As a client reads it."""
    return json.loads(to_json(value))
