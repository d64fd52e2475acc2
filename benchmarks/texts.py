"""Makes texts of given token lengths, and lengths like those of real tweets."""

import random
from collections.abc import Sequence

import numpy as np
from tokenizers import Tokenizer

# Token lengths of tweets (RoBERTa's tokenizer) by percentile; above them is a long tail.
PERCENTILES = (0, 1, 10, 50, 90, 99)
TOKENS = (5, 8, 14, 26, 36, 45)
MAX_TOKENS = 512

WORDS = (
    "the a to and I you it of in is for on my that this be with have just so me at not but are "
    "was all now what love like good day time today great people new can get out will more know "
    "going really think back see want one got how they don't worst happy tomorrow night morning "
    "game team coffee weather service waiting train phone battery beautiful terrible amazing"
)


def tweet_lengths(count: int, *, seed: int = 0) -> list[int]:
    """Token lengths, special tokens included; one in a hundred is log-uniform from 45 to 512."""
    generator = np.random.default_rng(seed)
    ranks = generator.uniform(0, 100, count)
    body = np.interp(ranks, PERCENTILES, TOKENS)
    tail = TOKENS[-1] * (MAX_TOKENS / TOKENS[-1]) ** (ranks - PERCENTILES[-1]).clip(0, 1)
    lengths = np.where(ranks < PERCENTILES[-1], body, tail)
    return [int(length) for length in lengths.round()]


def texts_of(tokenizer: Tokenizer, lengths: Sequence[int], *, seed: int = 0) -> list[str]:
    """A text of common words for each length in tokens, special tokens included."""
    generator = random.Random(seed)
    special = tokenizer.num_special_tokens_to_add(is_pair=False)
    return [_text(tokenizer, length, special, generator) for length in lengths]


def _text(tokenizer: Tokenizer, length: int, special: int, generator: random.Random) -> str:
    for _ in range(100):
        words = " ".join(generator.choices(WORDS.split(), k=length))
        encoding = tokenizer.encode(words, add_special_tokens=False)
        _, end = encoding.offsets[length - special - 1]
        text = words[:end].rstrip()
        if len(tokenizer.encode(text)) == length:
            return text
    raise ValueError(f"no text of {length} tokens was found in a hundred attempts")
