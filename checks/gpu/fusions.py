"""fp16 with each fusion against fp16 without, in paired rounds; says which ones pay."""

import statistics
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from app.engine.model.model import Model
from app.engine.model.parity import tolerance
from app.errors import first_line
from benchmarks.tables import Row
from checks.gpu.bundles import ALL, NONE
from checks.gpu.models import like_tweets, load, logits, of_tokens
from checks.gpu.setup import Setup
from checks.gpu.speed import bound, timed

# A fusion should be a default if it is faster by this share at the median of all sizes, and at no
# size slower by this share.
CLEARLY = 0.02
ABSENT = "has no operator for CPUs"


def run(setup: Setup) -> Iterator[Row]:
    """Measure each choice of fusions that the step ``bundles`` wrote, for the first shape.

    Raises:
        AssertionError: a choice could not be measured, or its logits are wrong.
    """
    directory = setup.fusions(setup.shapes[0])
    names = sorted(path.name for path in directory.iterdir() if path.name != NONE)
    without = load(directory / NONE, "fp16", setup.device)
    verdicts = {}
    for name in names:
        row = _compared(setup, without, directory / name)
        verdicts[name] = row["verdict"]
        yield {"fusions": name, **row}
    chosen = [name for name, verdict in verdicts.items() if verdict == "on" and name != ALL]
    yield {"fusions": "to choose as default", "verdict": ", ".join(chosen) or "none"}
    known = ("on", "off", ABSENT)
    faults = [f"{name}: {text}" for name, text in verdicts.items() if text not in known]
    assert not faults, "; ".join(faults)


def _compared(setup: Setup, without: Model, bundle: Path) -> Row:
    """The speed with these fusions as a multiple of that without, and their difference."""
    try:
        model = load(bundle, "fp16", setup.device)
        difference, allowed = _difference(without, model, setup.size.parity_texts)
    except Exception as error:  # onnxruntime's exceptions share no base class
        if setup.device == "cpu" and "Failed to find kernel" in str(error):
            return {"verdict": ABSENT}
        return {"verdict": f"does not run: {first_line(error)}"}
    ratios = {
        f"{texts} x {tokens}": _ratio(setup, without, model, tokens, texts)
        for tokens in setup.size.tokens
        for texts in setup.size.batches
    }
    median, least = statistics.median(ratios.values()), min(ratios.values())
    verdict = "on" if median > 1 + CLEARLY and least > 1 - CLEARLY else "off"
    if not difference <= allowed:
        verdict = f"logits differ by {difference:.2g}, allowed are {allowed:.2g}"
    row = {"speed, median": median, "least": least, "difference": difference, "verdict": verdict}
    return row | ratios


def _difference(without: Model, model: Model, count: int) -> tuple[float, float]:
    """The largest difference of logits, and the one that is allowed for logits of their size."""
    texts = like_tweets(without, count)
    expected = np.concatenate([logits(without, [text]) for text in texts])
    found = np.concatenate([logits(model, [text]) for text in texts])
    return float(np.abs(found - expected).max()), tolerance("fp16", expected)


def _ratio(setup: Setup, without: Model, model: Model, tokens: int, texts: int) -> float:
    """The median of the rounds' ratios; each round measures both, one after the other."""
    batch = of_tokens(without, tokens, texts)
    calls = [bound(one, batch, setup.device) for one in (without, model)]
    seconds = setup.size.cell_seconds / setup.size.rounds
    rounds = [[timed(call, seconds) for call in calls] for _ in range(setup.size.rounds)]
    return statistics.median(before / after for before, after in rounds)
