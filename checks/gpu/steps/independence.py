"""Whether a text's logits depend on its batch: alone, alone again, and in random batches."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from sentiment_service.engine.model.model import Model
from sentiment_service.engine.text.text_tokenizer import Encoding

from benchmarks.tables import Row
from checks.gpu.models import like_tweets, load, logits, precisions, random_batches
from checks.gpu.setup import Setup

LARGEST = 64  # texts in a random batch


def run(setup: Setup) -> Iterator[Row]:
    """Compare the ways for each precision."""
    for precision in precisions(setup.bundle):
        model = load(setup.bundle, precision, setup.device)
        texts = like_tweets(model, setup.size.independence_texts)
        what = {"precision": precision, "texts": len(texts)}
        every = [[number] for number in range(len(texts))]
        alone = _computed(model, texts, every)
        ways = {
            "alone, and alone again": every,
            f"alone, and in random batches of up to {LARGEST}": random_batches(len(texts), LARGEST),
        }
        for name, batches in ways.items():
            found = _computed(model, texts, batches)
            yield {**what, "compared": name, **_differences(alone, found)}


def _computed(
    model: Model, texts: Sequence[Encoding], batches: Iterable[Sequence[int]]
) -> NDArray[np.float32]:
    """Logits of all texts in their order."""
    found: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(texts)
    for numbers in batches:
        rows = logits(model, [texts[number] for number in numbers])
        for number, row in zip(numbers, rows, strict=True):
            found[number] = row
    return np.stack(found)


def _differences(a: NDArray[np.float32], b: NDArray[np.float32]) -> Row:
    return {
        "identical to the bit": int((a.view(np.uint32) == b.view(np.uint32)).all(axis=1).sum()),
        "largest difference": float(np.abs(a - b).max()),
        "labels changed": int((a.argmax(1) != b.argmax(1)).sum()),
    }
