"""Pairs of texts, which some models judge together: a review and one aspect of it, for example."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

import tokenizers
from tokenizers import Tokenizer

from sentiment_service.engine.text.text_tokenizer import Encoding, packed

T = TypeVar("T")
Offset = tuple[int, int]  # the first character of a token, and the character after the last


@dataclass(frozen=True, slots=True)
class TextPair:
    """Two texts that the model reads as one, such as ``[CLS] text [SEP] text_pair [SEP]``."""

    text: str
    text_pair: str

    def __len__(self) -> int:
        """The number of characters of both texts."""
        return len(self.text) + len(self.text_pair)

    def map(self, change: Callable[[str], str]) -> "TextPair":
        """The pair with both texts changed."""
        return TextPair(change(self.text), change(self.text_pair))


# What one prediction is made for.
Text = str | TextPair


class PairTokenizer:
    """Tokenises pairs, and cuts off what is longer than ``max_tokens``, on the tokenizer's side.

    The tokenizer must cut texts into windows of ``max_tokens`` tokens, of which ``stride`` are also
    in the window before. It is not asked for whole pairs, because it would combine each window of
    the one text with each of the other. For two texts of 9,000 exclamation marks, that took 1.6 GB.
    ``has_types`` says whether the model reads token types.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, max_tokens: int, stride: int, has_types: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._stride = stride
        self._sample: tokenizers.Encoding = tokenizer.encode("a", "a")
        origin: list[int | None] = self._sample.sequence_ids  # None for special tokens
        last_of_first = len(origin) - origin[::-1].index(0)
        last_of_second = len(origin) - origin[::-1].index(1)
        self._before = slice(origin.index(0))
        self._between = slice(last_of_first, origin.index(1))
        self._after = slice(last_of_second, None)
        self._special = origin.count(None)
        self._room = max_tokens - self._special
        self._from_left = tokenizer.truncation["direction"] == "left"
        self._has_types = has_types and self._sample.type_ids[origin.index(1)] == 1

    def encode(self, pair: TextPair) -> Encoding:
        """The encoding of the pair, with special tokens."""
        texts = [pair.text, pair.text_pair]
        parts = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        first, second = map(self._length, parts)
        kept = longest_first(first, second, self._room)
        ids = self._joined(self._sample.ids, [part.ids for part in parts], kept)
        typed = kept[1] + len(self._sample.ids[self._after]) if self._has_types else 0
        tokens = first + second + self._special
        return Encoding(packed(ids), tokens, typed=typed, truncated=tokens > len(ids))

    def offsets(self, pair: TextPair) -> tuple[list[Offset], list[int | None]]:
        """For each id of ``encode``: its characters, and in which text they are.

        The second list has 0 for ``text``, 1 for ``text_pair``, and None for special tokens, whose
        offset is (0, 0).
        """
        texts = [pair.text, pair.text_pair]
        parts = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        first, second = map(self._length, parts)
        kept = longest_first(first, second, self._room)
        offsets = self._joined(self._sample.offsets, [part.offsets for part in parts], kept)
        origins = [[0] * first, [1] * second]
        return offsets, self._joined(self._sample.sequence_ids, origins, kept)

    def _length(self, part: tokenizers.Encoding) -> int:
        return len(part.ids) + sum(len(more.ids) - self._stride for more in part.overflowing)

    def _joined(
        self, sample: Sequence[T], parts: Sequence[Sequence[T]], kept: tuple[int, int]
    ) -> list[T]:
        """The kept values of both parts, with the sample's values of the special tokens."""
        first, second = (
            part[len(part) - count :] if self._from_left else part[:count]
            for part, count in zip(parts, kept, strict=True)
        )
        before, between, after = (sample[n] for n in (self._before, self._between, self._after))
        return [*chain(before, first, between, second, after)]


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens to keep of two texts, so that ``room`` is enough for both.

    The rule is transformers' ``longest_first``, as its fast tokenizers apply it: tokens are taken
    from the longer text until both are equally long, then from both.
    """
    if first + second <= room:
        return first, second
    shorter = min(first, second, room // 2)
    return (room - shorter, shorter) if first > second else (shorter, room - shorter)
