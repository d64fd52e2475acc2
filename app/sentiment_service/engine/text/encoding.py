"""Tokenised texts: their token ids, windows and sentences, as the options of a request ask."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sentiment_service.errors import ServiceError
from sentiment_service.results import TextWarning

# Of a token id. Ids are kept as the bytes of int32: they are small, they are quickly put together,
# and the garbage collector does not visit them.
ID_BYTES = 4


def packed(ids: Sequence[int]) -> bytes:
    """The token ids as the bytes of int32."""
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
        """The token ids."""
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


# What a bundle does to its texts before it tokenises them. Here, because reading a manifest needs
# no tokenizer.
Preprocessing = Literal["tweet", "bertweet", "tweet_topic", "robertuito", "none"]
Overflow = Literal["truncate", "error", "window"]
Split = Literal["sentences"]


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How to process a text.

    ``language`` is a BCP 47 tag. It decides which abbreviations end no sentence. ``threshold``, for
    multi-label models, is the score from which on a text has a label; None: that of the bundle.
    """

    overflow: Overflow = "truncate"
    split: Split | None = None
    language: str = "en"
    threshold: float | None = None


DEFAULTS = TextOptions()


@dataclass(frozen=True, slots=True)
class EncodedSentence:
    """A sentence of a text, from character ``start`` up to, but not including, ``end``."""

    start: int
    end: int
    text: "EncodedText | ServiceError"


@dataclass(slots=True)
class EncodedText:
    """A tokenised text: the whole text in ``windows``, and each of its sentences separately.

    ``windows`` are the encodings that are classified: the text's own, or those of its parts.
    ``warnings`` say why the model may be wrong about it.
    """

    encoding: Encoding
    options: TextOptions
    windows: Sequence[Encoding]
    sentences: Sequence[EncodedSentence] = ()
    warnings: Sequence[TextWarning] = ()


def encodings(texts: Sequence[EncodedText | ServiceError]) -> list[Encoding]:
    """All encodings to infer, in the order in which ``outcomes_of`` expects their results."""
    to_infer: list[Encoding] = []
    for text in texts:
        if isinstance(text, EncodedText):
            to_infer += text.windows
            to_infer += encodings([sentence.text for sentence in text.sentences])
    return to_infer
