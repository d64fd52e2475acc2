"""The models of the check on a device, and batches for them."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sentiment_service.cli.load_generator import tweet_lengths
from sentiment_service.engine.loading import load_model
from sentiment_service.engine.model.bundle import Bundle, Precision
from sentiment_service.engine.model.model import Model
from sentiment_service.engine.text.text_tokenizer import Encoding

from benchmarks.texts import texts_of
from checks.gpu.setup import Device

# Those that are compared on a GPU; int8 is for CPUs.
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16")


def precisions(path: Path) -> list[Precision]:
    """Those of the bundle at ``path`` that a GPU computes."""
    variants = Bundle.open(path).manifest.variants
    return [precision for precision in PRECISIONS if precision in variants]


def load(path: Path, precision: Precision, device: Device) -> Model:
    """Open the variant of the bundle at ``path``; on a CPU, with one thread per core."""
    return load_model(Bundle.open(path), device=device, precision=precision, threads=0)


def of_tokens(model: Model, tokens: int, texts: int) -> list[Encoding]:
    """Different texts of equal length: random token ids between the special tokens."""
    first, *_, last = model.tokenizer.encode("some words").ids
    generator = random.Random(tokens)
    highest = model.tokenizer.library.get_vocab_size() - 1
    return [
        Encoding.of([first, *(generator.randint(5, highest) for _ in range(tokens - 2)), last])
        for _ in range(texts)
    ]


def tweets(model: Model, texts: int, *, seed: int = 0) -> list[str]:
    """Texts of common words, as long as tweets are."""
    lengths = [min(length, model.max_tokens) for length in tweet_lengths(texts, seed=seed)]
    return texts_of(model.tokenizer.library, lengths, seed=seed)


def like_tweets(model: Model, texts: int, *, seed: int = 0) -> list[Encoding]:
    """The same, encoded."""
    return [model.tokenizer.encode(text) for text in tweets(model, texts, seed=seed)]


def logits(model: Model, batch: Sequence[Encoding]) -> NDArray[np.float32]:
    """Logits [texts, labels] of a batch, computed as the service does."""
    return np.stack([np.asarray(row, dtype=np.float32) for row in model.infer(batch)])


def random_batches(count: int, largest: int, *, seed: int = 0) -> Iterator[list[int]]:
    """All numbers below ``count`` in random order, in batches of 1 to ``largest``."""
    generator = random.Random(seed)
    order = list(range(count))
    generator.shuffle(order)
    while order:
        size = generator.randint(1, largest)
        yield order[:size]
        order = order[size:]
