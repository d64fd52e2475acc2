"""Graphs of BERT's family: what is left out, and that nothing of it changes an answer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from safetensors.numpy import load_file, save_file
from sentiment_export.checkpoint.checkpoint import Checkpoint, load_checkpoint
from sentiment_export.checkpoint.family import Encoder
from sentiment_export.graph.builder import ACTIVATIONS, LARGEST_HALF
from sentiment_export.graph.classifier import Classifier, Int8Classifier
from sentiment_export.graph.flat import FlatClassifier
from sentiment_export.graph.variants import graphs_of
from sentiment_export.output import ONNX_FILES
from sentiment_service.engine.model.device import CPU
from sentiment_service.engine.model.model import tolerance
from sentiment_service.engine.model.sessions import ATTENTION, open_session
from sentiment_service.engine.text.text_tokenizer import Encoding
from transformers import PreTrainedModel

from benchmarks.random_checkpoint import random_checkpoint
from tests.support.checkpoints import HIDDEN_SIZE, LAYERS, Exported, random_model
from tests.support.model_export.graphs import (
    ExactFlatClassifier,
    random_encodings,
    run,
    run_for,
    session,
)

KINDS = (Classifier, Int8Classifier, FlatClassifier)
ENCODINGS = [*random_encodings(0), *random_encodings(1)]


def _written(model: PreTrainedModel, kind: type[Classifier], path: Path) -> Path:
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    config = model.config.to_dict()
    encoder = Encoder.of(config, len(config["id2label"]))
    kind(encoder, weights).write(path)
    return path


@torch.inference_mode()
def _logits(model: PreTrainedModel) -> np.ndarray:
    rows = [model(input_ids=torch.tensor([encoding.ids])).logits[0] for encoding in ENCODINGS]
    return np.stack([row.numpy() for row in rows])


def test_the_last_feed_forward_sees_one_row_a_text(made: Exported) -> None:
    """Layers before the last keep every real token, and no padding."""
    model = ir.load(made.bundle / ONNX_FILES["fp32"])
    wide = [
        node.outputs[0]
        for node in model.graph
        if node.op_type == "MatMul"
        and node.inputs[1] is not None
        and (weight := node.inputs[1].const_value) is not None
        and weight.shape[1] == 2 * HIDDEN_SIZE
    ]
    assert len(wide) == LAYERS
    model.graph.outputs.extend(wide)
    encodings = [Encoding.of(range(5, 5 + length)) for length in (4, 9, 7)]
    opened = session(model)
    shapes = [run(opened, encodings, str(value.name)).shape for value in wide]
    assert shapes == [(20, 2 * HIDDEN_SIZE), (3, 2 * HIDDEN_SIZE)]


@pytest.mark.parametrize(
    "mask", [[[1, 1, 0, 1, 0, 1], [1, 1, 1, 1, 1, 1]], [[1, 1, 1, 0, 0, 0], [1, 0, 1, 1, 1, 0]]]
)
def test_padding_may_stand_anywhere_behind_the_first_token(
    made: Exported, mask: list[list[int]]
) -> None:
    """Not only at the end: whatever the mask hides is left out, as in PyTorch."""
    feeds: Mapping[str, Any] = {
        "input_ids": np.array([[5, 17, 9, 30, 22, 6], [5, 41, 8, 19, 33, 6]]),
        "attention_mask": np.array(mask),
        "token_type_ids": np.zeros((2, 6), np.int64),
    }
    opened = made.model("fp32").session
    found = opened.run(None, {node.name: feeds[node.name] for node in opened.get_inputs()})[0]
    from transformers import AutoModelForSequenceClassification

    reference = AutoModelForSequenceClassification.from_pretrained(made.source).eval()
    with torch.inference_mode():
        expected = reference(
            input_ids=torch.tensor(feeds["input_ids"]), attention_mask=torch.tensor(mask)
        ).logits
    np.testing.assert_allclose(np.asarray(found), expected.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_is_that_of_transformers(activation: str, tmp_path: Path) -> None:
    """In fp32 to the last bits, on GPUs in fp16."""
    model = random_model("bert", 200, hidden_act=activation)
    expected = _logits(model)
    for kind, allowed in ((Classifier, 2e-5), (FlatClassifier, 0.05)):
        path = _written(model, kind, tmp_path / f"{kind.__name__}.onnx")
        found = run(open_session(path, CPU, threads=1), ENCODINGS)
        np.testing.assert_allclose(found, expected, rtol=0, atol=allowed)


@pytest.mark.parametrize(
    ("architecture", "config"),
    [
        ("albert", {"num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2}),
        ("electra", {"embedding_size": 32, "hidden_act": "relu"}),
        ("bert", {"type_vocab_size": 1}),
        ("bert", {"type_vocab_size": 5, "num_hidden_layers": 1}),
        ("roberta", {"type_vocab_size": 2, "pad_token_id": 0, "num_attention_heads": 1}),
        ("distilbert", {"n_layers": 1, "activation": "gelu_new"}),
        ("big_bird", {"attention_type": "original_full", "layer_norm_eps": 1e-5}),
    ],
)
def test_other_shapes_than_the_usual(
    architecture: str, config: dict[str, Any], tmp_path: Path
) -> None:
    """Shared groups, embeddings of their own width, one token type or five, a single layer."""
    model = random_model(architecture, 200, **config)
    expected = _logits(model)
    for kind, allowed in ((Classifier, 2e-5), (Int8Classifier, 0.8), (FlatClassifier, 0.05)):
        path = _written(model, kind, tmp_path / f"{kind.__name__}.onnx")
        found = run(open_session(path, CPU, threads=1), ENCODINGS)
        np.testing.assert_allclose(found, expected, rtol=0, atol=allowed)


@pytest.mark.parametrize("kind", KINDS)
def test_equal_weights_give_equal_files(kind: type[Classifier], tmp_path: Path) -> None:
    """A bundle's digest says what is in it."""
    files = [_written(random_model("bert", 200), kind, tmp_path / f"{n}.onnx") for n in range(2)]
    assert files[0].read_bytes() == files[1].read_bytes()


class _Read(dict[str, np.ndarray]):
    """Weights that are read from a file each time."""

    def __getitem__(self, name: str) -> np.ndarray:
        return super().__getitem__(name).copy()


def test_memory_holds_no_second_copy_of_the_weights(tmp_path: Path) -> None:
    """Writing fp32 needs the largest matrix twice, and not all weights."""
    import tracemalloc

    encoder = Encoder.of({"model_type": "bert", "num_hidden_layers": 4, "vocab_size": 999}, 3)
    weights = _Read({n: np.zeros(shape, np.float32) for n, shape in encoder.weights.items()})
    sizes = [array.nbytes for array in weights.values()]
    tracemalloc.start()
    try:
        Classifier(encoder, weights).write(tmp_path / "model.onnx")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert max(sizes) < peak < 2.2 * max(sizes) < sum(sizes) / 4


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


def _largest_value(checkpoint: Checkpoint, path: Path) -> float:
    """The largest value between two operators, where all are computed in fp32."""
    assert checkpoint.encoder is not None
    ExactFlatClassifier(checkpoint.encoder, checkpoint.weights).write(path)
    exact = ir.load(path)
    # What attention computes are means of its input.
    nodes = [node for node in exact.graph if node.op_type != ATTENTION.decode()]
    values = [value for node in nodes for value in node.outputs if value.name]
    exact.graph.outputs[:] = values
    opened = session(exact, optimised=False)
    found = run_for(opened, ENCODINGS, [str(value.name) for value in values])
    return max(float(np.abs(array).max()) for array in found if array.dtype == np.float32)


def test_large_activations_do_not_overflow(tmp_path: Path) -> None:
    """With values 30 times as large, all fit into fp16, and the logits are PyTorch's."""
    checkpoint = _magnified(tmp_path / "large", 30)
    expected = np.stack([checkpoint.logits(encoding.ids).numpy() for encoding in ENCODINGS])
    largest = _largest_value(checkpoint, tmp_path / "exact.onnx")
    assert 30**2 < largest < LARGEST_HALF / 2
    graphs_of(checkpoint, tmp_path)("fp16", tmp_path / "fp16.onnx")
    found = run(open_session(tmp_path / "fp16.onnx", CPU, threads=1), ENCODINGS)
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance("fp16", expected))
