"""Compares the logits of the device with those of fp32 on the CPU, alone and in batches."""

from collections.abc import Iterator

import numpy as np

from app.engine.bundle import Precision
from app.engine.encoding import Encoding
from app.engine.model import Model
from benchmarks.gpu_check.models import like_tweets, load, logits, precisions
from benchmarks.gpu_check.setup import Setup
from benchmarks.tables import Row

# As model_export/quality/verification.py, which compares with PyTorch: for logits of up to
# USUAL_LOGIT, and in proportion for larger ones. Labels count where fp32 is decided.
TOLERANCE: dict[Precision, float] = {"fp32": 1e-3, "fp16": 0.1}
USUAL_LOGIT = 3.0
DECIDED_BY = 0.1


def run(setup: Setup) -> Iterator[Row]:
    """Compare all shapes and precisions.

    Raises:
        AssertionError: a difference is above its tolerance, or a label changed.
    """
    faults = []
    for shape in setup.size.shapes:
        bundle = setup.bundle(shape)
        reference = load(bundle, "fp32", "cpu")
        texts = _texts(reference, setup.size.parity_texts)
        expected = np.concatenate([logits(reference, [text]) for text in texts])
        largest = float(np.abs(expected).max())
        best = np.sort(expected, axis=1)
        decided = best[:, -1] - best[:, -2] > DECIDED_BY
        for precision in precisions(bundle):
            model = load(bundle, precision, setup.device)
            alone = np.concatenate([logits(model, [text]) for text in texts])
            batched = np.concatenate([logits(model, texts[i : i + 8]) for i in _starts(texts)])
            difference = max(float(np.abs(found - expected).max()) for found in (alone, batched))
            changed = sum(
                int((found.argmax(1) != expected.argmax(1))[decided].sum())
                for found in (alone, batched)
            )
            allowed = TOLERANCE[precision] * max(1.0, largest / USUAL_LOGIT)
            good = bool(difference <= allowed and not changed)
            yield {
                "shape": shape,
                "precision": precision,
                "texts": len(texts),
                "largest logit": largest,
                "largest difference": difference,
                "allowed": allowed,
                "labels changed": changed,
                "within": "yes" if good else "NO",
            }
            if not good:
                faults.append(f"{shape} {precision}")
    assert not faults, f"too far from fp32 on the CPU: {', '.join(faults)}"


def _texts(model: Model, count: int) -> list[Encoding]:
    """Tweets, and one long text cut to powers of two and to the longest length."""
    ids = model.encode("so many words " * model.max_tokens).ids
    sizes = [2**power for power in range(2, 10) if 2**power < len(ids)] + [len(ids)]
    return like_tweets(model, count) + [
        Encoding([*ids[: size - 1], ids[-1]], size) for size in sizes
    ]


def _starts(texts: list[Encoding]) -> range:
    return range(0, len(texts), 8)
