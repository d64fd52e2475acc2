"""Graphs under test, run as they are: in a session of their own, without a bundle."""

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from sentiment_export.graph.classifier import Classifier
from sentiment_export.graph.flat import FlatClassifier
from sentiment_service.engine.model.device import CPU
from sentiment_service.engine.model.sessions import flat_feeds, for_cpu
from sentiment_service.engine.text.text_tokenizer import Encoding

from tests.support.checkpoints import MAX_TOKENS

# Every tokenizer of checkpoints.py has at least as many ids.
VOCABULARY = 120


class ExactFlatClassifier(FlatClassifier):
    """The graph for GPUs, computed in fp32."""

    made = Classifier.made


def session(model: ir.Model, *, optimised: bool = True) -> ort.InferenceSession:
    """Open a graph; not ``optimised``, ONNX Runtime computes node by node."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    if not optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.onnx"
        ir.save(model, path)
        return ort.InferenceSession(for_cpu(path), options, providers=[CPU])


def run(
    opened: ort.InferenceSession, encodings: Sequence[Encoding], output: str = "logits"
) -> np.ndarray:
    """One output for a batch, padded to its longest text, or flat."""
    return run_for(opened, encodings, [output])[0]


def run_for(
    opened: ort.InferenceSession, encodings: Sequence[Encoding], outputs: Sequence[str]
) -> list[np.ndarray]:
    """These outputs."""
    names = [node.name for node in opened.get_inputs()]
    if "token_offset" in names:
        metadata = opened.get_modelmeta().custom_metadata_map
        ids = np.concatenate([np.array(encoding.ids, np.int32) for encoding in encodings])
        lengths = np.array([*map(len, encodings)], np.int32)
        feeds = flat_feeds(ids, lengths, 0 * lengths, metadata)
        return [np.asarray(one) for one in opened.run(outputs, {n: feeds[n] for n in names})]
    pad = 0 if "token_type_ids" in names else 1
    shape = (len(encodings), max(map(len, encodings)))
    feeds = {name: np.zeros(shape, np.int64) for name in ("attention_mask", "token_type_ids")}
    feeds["input_ids"] = np.full(shape, pad, np.int64)
    for row, encoding in enumerate(encodings):
        feeds["input_ids"][row, : len(encoding)] = encoding.ids
        feeds["attention_mask"][row, : len(encoding)] = 1
    return [np.asarray(one) for one in opened.run(outputs, {n: feeds[n] for n in names})]


def random_encodings(seed: int, texts: int = 5) -> list[Encoding]:
    """Texts of random tokens and lengths; the first is as long as can be."""
    order = random.Random(seed)
    lengths = [MAX_TOKENS, *(order.randint(3, MAX_TOKENS) for _ in range(texts - 1))]
    return [Encoding.of([order.randrange(5, VOCABULARY) for _ in range(n)]) for n in lengths]


def source_of(node: ir.Node) -> ir.Value:
    """What a node computes on."""
    value = node.inputs[0]
    assert value is not None
    return value


def name_of(value: ir.Value) -> str:
    """The name of a value that has one."""
    assert value.name is not None
    return value.name
