"""How texts are processed: what a bundle does to each, and what a request asks for.

Here, because reading a manifest needs no tokenizer.
"""

from dataclasses import dataclass
from typing import Literal

# What a bundle does to its texts before it tokenises them.
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
