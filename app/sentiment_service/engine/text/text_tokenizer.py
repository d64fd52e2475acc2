"""Tokenises texts and pairs; the ids of words that came before are remembered.

The tokenizers of BERT, RoBERTa, XLM-RoBERTa and BERTweet cut a text into words first, so the ids of
a text are those of its words. To look them up is much faster than to tokenise the text.
"""

import json
import os
import re
import unicodedata
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

import tokenizers
from tokenizers import Tokenizer

from sentiment_service.errors import EmptyText

# Of a token id. Ids are kept as the bytes of int32: they are small, they are quickly put together,
# and the garbage collector does not visit them.
ID_BYTES = 4


def packed(ids: Sequence[int]) -> bytes:
    return array("i", ids).tobytes()


# What is made for each text is not frozen: that takes several times as long.
@dataclass(slots=True)
class Encoding:
    """The token ids of a text, as the model gets them. Do not change it.

    ``packed_ids`` has them as the bytes of int32. ``tokens`` is the number of tokens before
    truncation, and ``truncated`` says whether there were more than ids: the text's end was cut off,
    or its start if tokenizer.json says so. ``overflow`` has the ids of the following windows,
    packed as well. Each window overlaps the one before. The last ``typed`` ids have the token type
    1, the others 0. A pair of texts has no ``overflow``, and a single text has no ``typed`` ids.
    """

    packed_ids: bytes
    tokens: int
    overflow: tuple[bytes, ...] = ()
    typed: int = 0
    truncated: bool = False

    @classmethod
    def of(cls, ids: Sequence[int]) -> "Encoding":
        """The encoding of a text that has these ids, and none that was cut off."""
        return cls(packed(ids), len(ids))

    def __len__(self) -> int:
        return len(self.packed_ids) // ID_BYTES

    @property
    def ids(self) -> list[int]:
        return memoryview(self.packed_ids).cast("i").tolist()

    @property
    def key(self) -> bytes:
        """The ids and their types as bytes. Encodings with equal keys have equal logits."""
        if self.typed:  # negative, so that it differs from every id
            return self.packed_ids + packed([-self.typed])
        return self.packed_ids

    @property
    def windows(self) -> list["Encoding"]:
        """The whole text, cut into overlapping parts that are short enough for the model."""
        if not self.overflow:
            return [self]
        return [Encoding(ids, len(ids) // ID_BYTES) for ids in (self.packed_ids, *self.overflow)]


# When so many words are known, all are forgotten. That is simpler than to find out which ones are
# still in use, and those are soon known again. A word takes about 200 bytes.
MAX_WORDS = 65_536
# Longer words are mostly links, or sentences in a script without spaces. They seldom come again.
MAX_WORD_CHARS = 24

# One thread that looks words up (``WordCache``) takes 17 to 28 µs for a tweet. Threads without that
# take 7 µs, and 51 µs ÷ threads. So fewer than four are hardly faster, and take twice the CPU time.
# Sixteen threads would save only 3 µs more than eight.
MIN_THREADS, MAX_THREADS = 4, 8
MIN_TEXTS = 32  # a shorter list is not worth handing over

# Else the library would start as many threads as the host has cores, but the runners need the CPUs.
# What a program has said is kept, because its own tokenizers obey it, too; a service decides.
PARALLELISM = "TOKENIZERS_PARALLELISM"
os.environ.setdefault(PARALLELISM, "false")

# Words as BERT cuts them: white space ends a word, and each ASCII punctuation mark is a word.
_BERT = re.compile(r"[^ \t\n\r!-/:-@\[-`{-~]+|[!-/:-@\[-`{-~]")
# A word of BERTweet: a line break after it is its last character. Its tokenizer keeps only words.
BERTWEET_WORD = r"[^\s\x1c-\x1f]+\n?"
# In the other tokenizers, a space belongs to the word after it.
_SPACED = re.compile(" ?[^ ]+")
_NEIGHBOUR = "a"


def use_idle_cpus(idle: int) -> bool:
    """Let up to ``idle`` threads tokenise a list together. Returns whether they do.

    The threads start when they are first needed. Their number does not change after that.
    """
    if idle < MIN_THREADS:
        return False
    os.environ["RAYON_NUM_THREADS"] = str(min(idle, MAX_THREADS))
    os.environ[PARALLELISM] = "true"
    return True


class TextTokenizer:
    """Tokenises texts, from the ids of known words where that gives the same ids.

    The tokenizer must cut texts into windows of ``max_tokens`` tokens, of which ``stride`` are also
    in the window before.
    """

    def __init__(self, tokenizer: Tokenizer, *, max_tokens: int, stride: int) -> None:
        self.divides_lists = False  # whether several threads tokenise a list together
        self._tokenizer = tokenizer
        self._special: int = tokenizer.num_special_tokens_to_add(is_pair=False)
        self._repeated = self._special + stride  # tokens of a window that are not new
        known = map(tokenizer.token_to_id, ("[UNK]", "<unk>"))
        self._unknown_id: int | None = next((token for token in known if token is not None), None)
        self.unknown = b"" if self._unknown_id is None else packed([self._unknown_id])
        self._words = WordCache(tokenizer, max_tokens=max_tokens)

    def encode(self, texts: Sequence[str]) -> list[Encoding | EmptyText]:
        """The encoding of each text after preprocessing, with special tokens.

        ``EmptyText`` takes the place of a text of which the model knows no character.
        """
        known: Sequence[bytes | None]
        if self.divides_lists and len(texts) >= MIN_TEXTS:
            known = [None] * len(texts)
        else:
            known = self._words.encode(texts)
        others = [text for text, ids in zip(texts, known, strict=True) if ids is None]
        tokenised = iter(self._tokenizer.encode_batch_fast(others) if others else ())
        return [
            self._encoding(next(tokenised)) if ids is None else Encoding(ids, len(ids) // ID_BYTES)
            for ids in known
        ]

    def unknown_tokens(self, windows: Sequence[Encoding], tokens: int) -> int:
        """How many tokens stand for what the model does not know. Byte-level BPE has none.

        ``windows`` are what it reads of a text of so many ``tokens``. What is cut off counts as if
        it were like that.
        """
        if self._unknown_id is None:
            return 0
        unknown = sum(window.ids.count(self._unknown_id) for window in windows)
        return round(unknown * tokens / sum(map(len, windows)))

    def _encoding(self, encoding: tokenizers.Encoding) -> Encoding | EmptyText:
        ids: list[int] = encoding.ids
        if len(ids) <= self._special:
            # The tokenizer drops unknown characters, and it knew none of this text's characters.
            if self._unknown_id is None:
                return EmptyText("the model knows none of the text's characters")
            ids = [*ids[:1], self._unknown_id, *ids[1:]]
        overflow = [part.ids for part in encoding.overflowing]
        tokens = len(ids) + sum(len(part) - self._repeated for part in overflow)
        return Encoding(
            packed(ids), tokens, tuple(map(packed, overflow)), truncated=tokens > len(ids)
        )


class WordCache:
    """The token ids of words, for one tokenizer and texts of up to ``max_tokens`` tokens.

    May be used from several threads.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, max_tokens: int, max_words: int = MAX_WORDS
    ) -> None:
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._max_words = max_words
        self._cut = _pattern(tokenizer, max_tokens)
        self._ids: dict[str, bytes] = {}  # packed
        self._dependent: set[str] = set()  # words whose ids depend on the words beside them
        added = tokenizer.get_added_tokens_decoder().values()
        # A text with one of these characters may hold a special token, such as "<mask>".
        self._special_starts = {token.content[:1] for token in added}
        self._first, self._second = self._tokenised([_NEIGHBOUR, f" {_NEIGHBOUR}"])
        whole: list[int] = tokenizer.encode(_NEIGHBOUR).ids
        start = whole.index(self._first[0]) if self._first else 0
        self._before = packed(whole[:start])
        self._after = packed(whole[start + len(self._first) :])

    def encode(self, texts: Sequence[str]) -> list[bytes | None]:
        """The packed ids of each text, as the tokenizer would give them, with its special tokens.

        None stands for a text that the tokenizer must have as a whole: it is too long, for
        example, or holds a word that depends on its neighbours.
        """
        cut = [self._words(text) for text in texts]
        joined = [self._joined(words) for words in cut]
        unfinished = [words for words, ids in zip(cut, joined, strict=True) if ids is None]
        if unknown := {word for words in unfinished for word in words if word not in self._ids}:
            self._learn([w for w in unknown - self._dependent if len(w) <= MAX_WORD_CHARS])
            joined = [ids or self._joined(words) for words, ids in zip(cut, joined, strict=True)]
        return joined

    def _words(self, text: str) -> list[str]:
        """The words of the text. There are none if it cannot be cut into words."""
        if self._cut is None:
            return []
        for start in self._special_starts:
            if start in text:
                return []
        if self._cut is _SPACED and "  " in f" {text} ":  # some of the spaces are words
            return []
        return self._cut.findall(text)

    def _joined(self, words: Sequence[str]) -> bytes | None:
        try:
            ids = b"".join([self._before, *map(self._ids.__getitem__, words), self._after])
        except KeyError:
            return None
        special = len(self._before) + len(self._after)
        return ids if special < len(ids) <= self._max_tokens * ID_BYTES else None

    def _learn(self, words: Sequence[str]) -> None:
        if len(self._ids) + len(self._dependent) + len(words) > self._max_words:
            self._ids.clear()
            self._dependent.clear()
        learnt = dict(zip(words, self._tokenised(words), strict=True))
        # Only printable ASCII never affects its neighbours. A combining mark at the start of a
        # word, for example, changes the space before it.
        others = [word for word in words if not (word.isascii() and word.isprintable())]
        dependent = self._dependent_among(others, learnt) if others else ()
        for word in dependent:
            del learnt[word]
        self._dependent.update(dependent)
        self._ids.update((word, packed(ids)) for word, ids in learnt.items())

    def _dependent_among(self, words: Sequence[str], ids: Mapping[str, list[int]]) -> list[str]:
        """Those of the words that change behind or between other words, or change these."""
        ends = [f"{self._left(word)}{word}" for word in words]
        between = self._tokenised([f"{text} {_NEIGHBOUR}" for text in ends])
        dependent = []
        for word, *seen in zip(words, self._tokenised(ends), between, strict=True):
            expected = [*(self._first if self._left(word) else ()), *ids[word]]
            is_mark = unicodedata.category(word[0]).startswith("M")
            if is_mark or seen != [expected, [*expected, *self._second]]:
                dependent.append(word)
        return dependent

    def _left(self, word: str) -> str:
        """What stands before the word in the test of ``_dependent_among``."""
        if self._cut is _BERT:
            return f"{_NEIGHBOUR} "
        return _NEIGHBOUR if word.startswith(" ") else ""

    def _tokenised(self, texts: Sequence[str]) -> list[list[int]]:
        # One at a time: to hand a few words over to the tokenizer's threads, if it has any, would
        # take as long as all the rest for a tweet.
        encode = self._tokenizer.encode
        return [encode(text, add_special_tokens=False).ids for text in texts]


def _pattern(tokenizer: Tokenizer, max_tokens: int) -> re.Pattern[str] | None:
    """How the tokenizer cuts a text into words; None if it does not, or in an unknown way."""
    added = tokenizer.get_added_tokens_decoder().values()
    normalised = tokenizer.normalizer is not None and any(token.normalized for token in added)
    # A word has at most one token for each byte. One that is truncated would be wrong.
    if (
        normalised
        or max_tokens < 4 * MAX_WORD_CHARS + 4
        or getattr(tokenizer.model, "dropout", None)
        or tokenizer.pre_tokenizer is None
    ):
        return None
    step = json.loads(tokenizer.pre_tokenizer.__getstate__())
    if step["type"] == "Sequence":
        step = step["pretokenizers"][0]
    match step:
        case {"type": "BertPreTokenizer"}:
            return _BERT
        case (
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
            | {"type": "WhitespaceSplit"}
            | {"type": "Metaspace", "prepend_scheme": "always", "split": True}
        ):
            return _SPACED
        case {"type": "Split", "pattern": {"Regex": pattern}} if pattern == BERTWEET_WORD:
            return _SPACED
    return None


T = TypeVar("T")
Offset = tuple[int, int]  # the first character of a token, and the character after the last


@dataclass(frozen=True, slots=True)
class TextPair:
    """Two texts that the model reads as one, such as ``[CLS] text [SEP] text_pair [SEP]``."""

    text: str
    text_pair: str

    def __len__(self) -> int:
        return len(self.text) + len(self.text_pair)

    def map(self, change: Callable[[str], str]) -> "TextPair":
        return TextPair(change(self.text), change(self.text_pair))


# What one prediction is made for. A client may send token ids in the place of a text.
Text = str | TextPair
Input = Text | Encoding


class PairTokenizer:
    """Tokenises pairs, and cuts off what is longer than ``max_tokens``, on the tokenizer's side.

    The tokenizer cuts texts into windows as for ``TextTokenizer``. It is not asked for whole pairs,
    because it would combine each window of the one text with each of the other: 1.6 GB for two
    texts of 9,000 exclamation marks. ``has_types`` says whether the model reads token types.
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
        self._from_left = (tokenizer.truncation or {}).get("direction") == "left"
        self._has_types = has_types and self._sample.type_ids[origin.index(1)] == 1

    def encode(self, pair: TextPair) -> Encoding:
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
