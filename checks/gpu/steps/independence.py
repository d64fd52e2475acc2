"""Whether a text's logits depend on its batch, and what it costs that they do not.

Each text is computed alone, alone again, and in random batches. Then it is computed in batches of
one fixed shape: as many rows as ``ROWS``, padded to the next length of ``LENGTHS``. A fixed shape
always runs the same kernels, so it may give identical bits; the padding costs time.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from app.engine.model.model import Model
from app.engine.text.encoding import Encoding
from benchmarks.tables import Row
from checks.gpu.models import like_tweets, load, logits, precisions, random_batches
from checks.gpu.setup import Setup
from checks.gpu.steps.speed import timed

LARGEST = 64  # texts in a random batch
ROWS = 32
LENGTHS = (16, 32, 64, 128, 256, 512)


def run(setup: Setup) -> Iterator[Row]:
    """Compare all ways for each shape and precision."""
    for shape in setup.shapes:
        for precision in precisions(setup.bundle(shape)):
            model = load(setup.bundle(shape), precision, setup.device)
            texts = like_tweets(model, setup.size.independence_texts)
            what = {"shape": shape, "precision": precision, "texts": len(texts)}
            for row in _compared(model, texts, setup.size.cell_seconds):
                yield what | row


def _compared(model: Model, texts: Sequence[Encoding], seconds: float) -> Iterator[Row]:
    every = [[number] for number in range(len(texts))]
    alone, _ = _computed(model, texts, every)
    again, _ = _computed(model, texts, every)
    yield {"compared": "alone, and alone again", **_differences(alone, again)}
    mixed = list(random_batches(len(texts), LARGEST))
    batched, _ = _computed(model, texts, mixed)
    yield {
        "compared": f"alone, and in random batches of up to {LARGEST}",
        **_differences(alone, batched),
    }

    # What fixed shapes cost: the same texts, in batches that have similar lengths in both ways.
    grouped = list(_of_one_length(texts, range(len(texts))))
    other = list(_of_one_length(texts, [number for batch in mixed for number in batch]))
    _computed(model, texts, grouped)  # the first batch of a shape is slow
    _, free_seconds = _computed(model, texts, grouped)
    fixed, _ = _computed(model, texts, grouped, fixed=True)
    fixed_again, fixed_seconds = _computed(model, texts, other, fixed=True)
    lone = texts[0]
    lone_seconds = [timed(partial(model.infer, one), seconds) for one in ([lone], _padded([lone]))]
    yield {
        "compared": f"{ROWS} texts padded to fixed lengths, and so with other texts",
        **_differences(fixed, fixed_again),
        "full batches, times the seconds": fixed_seconds / free_seconds,
        "a lone text, times the seconds": lone_seconds[1] / lone_seconds[0],
    }


def _computed(
    model: Model,
    texts: Sequence[Encoding],
    batches: Sequence[Sequence[int]],
    *,
    fixed: bool = False,
) -> tuple[NDArray[np.float32], float]:
    """Logits of all texts in their order, and the seconds that the batches took."""
    found: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(texts)
    started = time.perf_counter()
    for numbers in batches:
        batch = [texts[number] for number in numbers]
        rows = logits(model, _padded(batch) if fixed else batch)
        for number, row in zip(numbers, rows, strict=False):  # the rows that fill up come last
            found[number] = row
    return np.stack(found), time.perf_counter() - started


def _padded(batch: Sequence[Encoding]) -> list[Encoding]:
    """The batch with ROWS texts, of which the last one has exactly the fixed length."""
    length = _fixed_length(max(map(len, batch)))
    ids = batch[0].ids
    longest = Encoding.of([*ids[:-1], *[ids[1]] * (length - len(ids)), ids[-1]])
    return [*batch, *[batch[0]] * (ROWS - 1 - len(batch)), longest]


def _of_one_length(texts: Sequence[Encoding], order: Sequence[int]) -> Iterator[list[int]]:
    """Batches of ROWS - 1 texts whose fixed length is the same; the last row is left free."""
    waiting: dict[int, list[int]] = defaultdict(list)
    for number in order:
        batch = waiting[_fixed_length(len(texts[number]))]
        batch.append(number)
        if len(batch) == ROWS - 1:
            yield batch.copy()
            batch.clear()
    yield from filter(None, waiting.values())


def _fixed_length(tokens: int) -> int:
    return next((length for length in LENGTHS if length >= tokens), tokens)


def _differences(a: NDArray[np.float32], b: NDArray[np.float32]) -> Row:
    return {
        "identical to the bit": int((a.view(np.uint32) == b.view(np.uint32)).all(axis=1).sum()),
        "largest difference": float(np.abs(a - b).max()),
        "labels changed": int((a.argmax(1) != b.argmax(1)).sum()),
    }
