"""Run by itself, perhaps on an emulated CPU: int8 products, and the embedded model's logits.

It writes JSON: ``wrong`` counts the sums that are not those of integers, for weights of up to 64
and of up to 127; ``logits`` has those of each text alone.
"""

import json
import sys
from itertools import product

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper
from sentiment_service.engine.loading import load_model
from sentiment_service.engine.model.bundle import EMBEDDED_BUNDLE, Bundle
from sentiment_service.engine.model.device import CPU

TEXTS = (
    "I love this!",
    "worst service ever",
    "The meeting is at 3pm.",
    "@anna congratulations, best news ever 🎉 http://t.co/x",
    "not bad at all, but I would not buy it again: it broke after two days",
)
# Rows, depth and columns. One row has a kernel of its own; the others do not fill whole blocks.
SHAPES = ((1, 64, 16), (2, 384, 384), (7, 63, 17), (33, 1536, 384))


def wrong_sums(largest: int) -> int:
    """How many sums of MatMulInteger are wrong, with weights of up to this size."""
    random = np.random.default_rng(0)
    wrong = 0
    for rows, depth, columns in SHAPES:
        highest, lowest = (np.full((depth, columns), sign * largest, np.int8) for sign in (1, -1))
        mixed = random.integers(-largest, largest + 1, (depth, columns)).astype(np.int8)
        for weights, zero_point in product((highest, lowest, mixed), (16, 128)):
            session = _product(weights, zero_point)
            for smallest in (0, 255):
                activations = random.integers(smallest, 256, (rows, depth)).astype(np.uint8)
                (sums,) = session.run(None, {"a": activations})
                exact = (activations.astype(int) - zero_point) @ weights.astype(int)
                wrong += int((sums != exact).sum())
    return wrong


def _product(weights: np.ndarray, zero_point: int) -> ort.InferenceSession:
    """Of activations [rows, depth], with constant weights, packed as those of a bundle are."""
    values = [("a", TensorProto.UINT8), ("y", TensorProto.INT32)]
    a, y = (helper.make_tensor_value_info(name, kind, [None, None]) for name, kind in values)
    constants = [
        helper.make_tensor("b", TensorProto.INT8, weights.shape, weights.tobytes(), raw=True),
        helper.make_tensor("zero_point", TensorProto.UINT8, [], [zero_point]),
    ]
    node = helper.make_node("MatMulInteger", ["a", "b", "zero_point"], ["y"])
    graph = helper.make_graph([node], "product", [a], [y], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options, providers=[CPU])


def logits() -> list[list[float]]:
    """Of each text, as the service computes them."""
    model = load_model(Bundle.open(EMBEDDED_BUNDLE), device="cpu", precision="int8", threads=1)
    found = [model.infer([model.tokenizer.encode(text)])[0] for text in TEXTS]
    return [[float(value) for value in row] for row in found]  # type: ignore[union-attr]


if __name__ == "__main__":
    wrong = {largest: wrong_sums(largest) for largest in (64, 127)}
    json.dump({"wrong": wrong, "logits": logits()}, sys.stdout)
