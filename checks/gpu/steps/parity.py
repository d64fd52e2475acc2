"""Compares the logits of the device with those of the same graph on the CPU."""

from collections.abc import Iterator

import numpy as np
from sentiment_service.engine.model.model import Model, decided, tolerance
from sentiment_service.engine.text.text_tokenizer import Encoding

from benchmarks.tables import Row
from checks.gpu.models import like_tweets, load, logits, precisions
from checks.gpu.setup import Setup


def run(setup: Setup) -> Iterator[Row]:
    """Compare all precisions, alone and in batches."""
    faults = []
    for bundle, precision in (
        (path, precision) for path in setup.bundles for precision in precisions(path)
    ):
        reference = load(bundle, precision, "cpu")
        texts = _texts(reference, setup.size.parity_texts)
        expected = np.concatenate([logits(reference, [text]) for text in texts])
        sure = decided(expected)
        model = load(bundle, precision, setup.device)
        alone = np.concatenate([logits(model, [text]) for text in texts])
        batched = np.concatenate([logits(model, texts[i : i + 8]) for i in _starts(texts)])
        difference = max(float(np.abs(found - expected).max()) for found in (alone, batched))
        changed = sum(
            int((found.argmax(1) != expected.argmax(1))[sure].sum()) for found in (alone, batched)
        )
        allowed = tolerance(precision, expected)
        good = bool(difference <= allowed and not changed)
        yield {
            "graph": bundle.name,
            "precision": precision,
            "texts": len(texts),
            "largest logit": float(np.abs(expected).max()),
            "largest difference": difference,
            "allowed": allowed,
            "labels changed": changed,
            "within": "yes" if good else "NO",
        }
        if not good:
            faults.append(f"{bundle.name} {precision}")
    assert not faults, f"too far from the CPU: {', '.join(faults)}"


def _texts(model: Model, count: int) -> list[Encoding]:
    """Tweets, and one long text cut to powers of two and to the longest length."""
    ids = model.tokenizer.encode("so many words " * model.max_tokens).ids
    sizes = [2**power for power in range(2, 10) if 2**power < len(ids)] + [len(ids)]
    return like_tweets(model, count) + [Encoding.of([*ids[: size - 1], ids[-1]]) for size in sizes]


def _starts(texts: list[Encoding]) -> range:
    return range(0, len(texts), 8)
