"""Flat graphs in fp16 where values are far larger than usual: nothing overflows."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from safetensors.numpy import load_file, save_file
from sentiment_export.checkpoint.checkpoint import Checkpoint, load_checkpoint
from sentiment_export.graph.arithmetic import LARGEST_HALF
from sentiment_export.graph.flat import FlatClassifier
from sentiment_export.graph.variants import WeightGraphs, graphs_of
from sentiment_service.engine.model.device import CPU
from sentiment_service.engine.model.model import tolerance
from sentiment_service.engine.model.sessions import ATTENTION, open_session

from benchmarks.random_checkpoint import random_checkpoint
from tests.support.model_export.graphs import random_encodings, run, session

# XLM-RoBERTa-large, with few of its layers and words.
LARGE = {
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "num_hidden_layers": 2,
    "vocab_size": 400,
}
# Features of the hidden state that are far larger than the others, as in trained models.
OUTLIERS = {5: 20.0, 700: -30.0}
ENCODINGS = random_encodings(0)


def _magnified(path: Path, times: int) -> Checkpoint:
    """A checkpoint whose values between layer norms are ``times`` as large, before products."""
    random_checkpoint(path, "xlm-roberta", **LARGE)
    weights = load_file(path / "model.safetensors")
    for name, values in weights.items():
        if name.endswith("LayerNorm.weight"):
            for feature, size in OUTLIERS.items():
                values[feature] = size
        elif ".layer." in name and not name.endswith(("query.weight", "key.weight")):
            values *= times
    save_file(weights, path / "model.safetensors")
    return load_checkpoint(path)


def _largest_value(graphs: WeightGraphs, path: Path) -> float:
    """The largest value between two operators, where all are computed in fp32."""
    FlatClassifier(graphs.encoder, graphs.weights, half=False).write(path)
    exact = ir.load(path)
    # What attention computes are means of its input.
    nodes = [node for node in exact.graph if node.op_type != ATTENTION.decode()]
    values = [value for node in nodes for value in node.outputs if value.name]
    exact.graph.outputs[:] = values
    opened = session(exact, optimised=False)
    found = [run(opened, ENCODINGS, str(value.name)) for value in values]
    return max(float(np.abs(array).max()) for array in found if array.dtype == np.float32)


@pytest.mark.parametrize("times", [10, 30])
def test_large_activations_do_not_overflow(tmp_path: Path, times: int) -> None:
    """With values 10 and 30 times as large, all fit into fp16, and the logits are PyTorch's."""
    checkpoint = _magnified(tmp_path / "large", times)
    graphs = graphs_of(checkpoint, tmp_path)
    assert isinstance(graphs, WeightGraphs)
    expected = np.stack([checkpoint.logits(encoding.ids).numpy() for encoding in ENCODINGS])
    largest = _largest_value(graphs, tmp_path / "exact.onnx")
    assert times**2 < largest < LARGEST_HALF / 2
    graphs.write("fp16", tmp_path / "fp16.onnx")
    found = run(open_session(tmp_path / "fp16.onnx", CPU, threads=1), ENCODINGS)
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance("fp16", expected))
