"""The texts of a load: those of a file, or made-up ones that are as long as tweets."""

import random
from itertools import islice
from pathlib import Path

import numpy as np

from sentiment_service.errors import UserError
from sentiment_service.files.tables.formats import open_table
from sentiment_service.files.tables.table import check_is_file

# Token lengths of tweets (RoBERTa's tokenizer) by percentile; above them is a long tail.
PERCENTILES = (0, 1, 10, 50, 90, 99)
TOKENS = (5, 8, 14, 26, 36, 45)
MAX_TOKENS = 512
SPECIAL_TOKENS = 2
MOST_TEXTS = 20_000  # of a file; a load repeats them

# Each is one token of most tokenizers.
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


def tweets(count: int) -> list[str]:
    """Common words in random order, as many as tweets have tokens."""
    words, generator = WORDS.split(), random.Random(0)
    return [
        " ".join(generator.choices(words, k=length - SPECIAL_TOKENS))
        for length in tweet_lengths(count)
    ]


def texts_of_file(path: Path, column: str) -> list[str]:
    """The first texts of a file that are not empty.

    Raises:
        UserError: the file cannot be used, or has no such text.
        OSError: it cannot be read.
    """
    check_is_file(path)
    found = (text for chunk in open_table(path, column).chunks() for text in chunk.texts)
    given = (text for text in found if isinstance(text, str) and text.strip())
    if not (texts := list(islice(given, MOST_TEXTS))):
        raise UserError(f"{path} has no text to send")
    return texts
