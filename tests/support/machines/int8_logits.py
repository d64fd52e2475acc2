"""Run by itself, perhaps on an emulated CPU: the embedded model's logits, as JSON.

``chosen`` is what the probe decides; ``logits`` has those of both choices, each text alone.
"""

import json
import sys
from typing import get_args

from app.engine.model import model as model_module
from app.engine.model.bundle import EMBEDDED_BUNDLE, Bundle
from app.engine.model.load import load_model
from app.engine.model.session import Int8Kernels, int8_kernels

TEXTS = (
    "I love this!",
    "worst service ever",
    "The meeting is at 3pm.",
    "@anna congratulations, best news ever 🎉 http://t.co/x",
    "not bad at all, but I would not buy it again: it broke after two days",
)


def logits(kernels: Int8Kernels) -> list[list[float]]:
    """Of each text, in a session with these kernels."""
    vars(model_module)["int8_kernels"] = lambda: kernels
    bundle = Bundle.open(EMBEDDED_BUNDLE)
    model = load_model(bundle, device="cpu", precision="int8", threads=1)
    found = [model.infer([model.tokenizer.encode(text)])[0] for text in TEXTS]
    return [[float(value) for value in row] for row in found]  # type: ignore[union-attr]


if __name__ == "__main__":
    chosen = int8_kernels()
    document = {"chosen": chosen, "logits": {one: logits(one) for one in get_args(Int8Kernels)}}
    json.dump(document, sys.stdout)
