"""Per-token int8: the arithmetic of one layer, the remaining graph, and the distance to fp32."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.numpy import load_file
from sentiment_export.checkpoint.checkpoint import Checkpoint, load_checkpoint
from sentiment_export.graph.builder import LARGEST_WEIGHT, quantize_matrix
from sentiment_export.graph.classifier import Classifier, Int8Classifier
from sentiment_export.graph.editor import array_of
from sentiment_export.graph.precisions import quantize_word_embedding
from sentiment_export.output import ONNX_FILES
from sentiment_service.engine.text.text_tokenizer import Encoding
from sentiment_service.errors import UserError
from transformers import PreTrainedModel

from tests.support.checkpoints import (
    HIDDEN_SIZE,
    LAYERS,
    Exported,
    make_checkpoint,
    random_model,
    save_model,
)
from tests.support.model_export.graphs import name_of, random_encodings, run, session, source_of

matrices = arrays(
    np.float32,
    st.tuples(st.integers(1, 8), st.integers(1, 8)),
    elements=st.floats(-100, 100, width=32, allow_subnormal=False),
)


QUERY = "layer.0.attention.self.query.weight_int8"
DISTILBERTS_QUERY = "layer.0.attention.q_lin.weight_int8"


def _written(
    kind: type[Classifier], checkpoint: Checkpoint, work: Path, **changed: np.ndarray
) -> ir.Model:
    """The graph of a checkpoint of which some weights are ``changed``."""
    assert checkpoint.encoder is not None
    path = work / f"{kind.__name__}.onnx"
    kind(checkpoint.encoder, {**checkpoint.weights, **changed}).write(path)
    return ir.load(path)


@pytest.fixture
def quantized(made: Exported, tmp_path: Path) -> ir.Model:
    """The int8 graph of each architecture."""
    return _written(Int8Classifier, load_checkpoint(made.source), tmp_path)


@given(matrices, st.sampled_from([0, 1]))
def test_a_weight_is_off_by_half_a_step_at_most(weight: np.ndarray, axis: int) -> None:
    """Each slice has a scale of its own, and its int8 values times that scale give it back."""
    values, scale = quantize_matrix(weight, axis)
    assert values.dtype == np.int8
    assert scale.dtype == np.float32
    assert scale.shape == (weight.shape[1 - axis],)
    step = np.expand_dims(scale, axis).astype(np.float64)
    assert (np.abs(values * step - weight) <= step * 0.5001).all()


def test_the_largest_weight_of_a_column_uses_the_whole_range() -> None:
    """The range is -127…127, never -128, for positive and negative extremes alike."""
    weight = np.array([[2.54, -5.0, 0.0], [-1.27, 5.0, 0.0]], np.float32)
    values, scale = quantize_matrix(weight, axis=0)
    # -1.27 is half a step from both -63 and -64.
    assert values[:, 1:].tolist() == [[-127, 0], [127, 0]]
    assert values[0, 0] == 127
    assert values[1, 0] in (-63, -64)
    np.testing.assert_allclose(scale, [0.02, 5 / 127, 1], rtol=1e-6)


@given(matrices)
def test_weights_of_a_product_cannot_saturate(weight: np.ndarray) -> None:
    """Two products of the largest activation, 255, and the largest weight fit into 16 bits."""
    values, _ = quantize_matrix(weight, 0, LARGEST_WEIGHT)
    assert np.abs(values.astype(int)).max() <= LARGEST_WEIGHT
    assert 2 * 255 * LARGEST_WEIGHT < 2**15


def test_a_layer_computes_the_written_formula(quantized: ir.Model) -> None:
    """scale = max|row|/127; round(x/scale) @ w_int8 · w_scale · scale + bias, by numpy."""
    model = quantized
    named = {value.name: value for value in model.graph.initializers.values()}
    first = next(name for name in named if name and name.endswith((QUERY, DISTILBERTS_QUERY)))
    weight, weight_scale = named[first], named[first.replace("weight_int8", "weight_scale")]
    ((product, _),) = weight.uses()
    scaled = _only_reader(product.outputs[0])
    biased = _only_reader(scaled.outputs[0])
    activations = source_of(_producer(source_of(product)))
    (bias,) = [value for value in biased.inputs if value is not None and value.const_value]
    model.graph.outputs.extend([activations, biased.outputs[0]])

    opened = session(model, optimised=False)
    encodings = random_encodings(1)
    x = run(opened, encodings, output=name_of(activations)).astype(np.float64)
    scale = np.abs(x).max(axis=1, keepdims=True) / 127
    integers = np.rint(x / scale) @ array_of(weight).astype(np.float64)
    expected = integers * array_of(weight_scale) * scale + array_of(bias)
    assert x.shape == (sum(map(len, encodings)), HIDDEN_SIZE)
    found = run(opened, encodings, output=name_of(biased.outputs[0]))
    # A value halfway between two steps may be rounded to the other one: rarely, and by one.
    close = np.isclose(found, expected, rtol=1e-4, atol=1e-4).all(axis=1)
    assert close.mean() > 0.97
    np.testing.assert_allclose(found, expected, atol=0.05)


def _producer(value: ir.Value) -> ir.Node:
    node = value.producer()
    assert node is not None
    return node


def _only_reader(value: ir.Value) -> ir.Node:
    ((node, _),) = value.uses()
    return node


def test_all_of_int8_stays_close_to_fp32(made: Exported, quantized: ir.Model) -> None:
    """Logits that vary by 1 from text to text move by less than 0.3, on average by 0.07."""
    fp32, int8 = made.model("fp32").session, session(quantized)
    encodings = [encoding for seed in range(8) for encoding in random_encodings(seed)]
    expected, found = run(fp32, encodings), run(int8, encodings)
    difference = np.abs(expected - found)
    assert expected.std() > 0.3
    assert 0 < difference.max() < 0.3
    assert difference.mean() < 0.07


def test_an_activation_is_quantized_once_for_query_key_and_value(quantized: ir.Model) -> None:
    """Four quantizations a layer; the last, whose queries are sliced, has a fifth."""
    graph = quantized.graph
    assert sum(node.op_type == "QuantizeLinear" for node in graph) == 4 * LAYERS + 1


def test_an_outlier_in_one_text_leaves_its_neighbours_alone(made: Exported, tmp_path: Path) -> None:
    """Rows share no scale: a huge activation next door does not move a single bit."""
    checkpoint = load_checkpoint(made.source)
    name = next(name for name in checkpoint.weights if "word_embeddings" in name)
    array = np.array(checkpoint.weights[name])
    array[100, :] = 0
    array[100, 7] = 1e4  # one large component outlives layer normalisation
    model = _written(Int8Classifier, checkpoint, tmp_path, **{name: array})
    opened = session(model)
    text, calm, outlier = [Encoding.of([5, 9, token, 60, 6]) for token in (40, 41, 100)]
    (alone,) = run(opened, [text])
    assert run(opened, [text, calm])[0].tobytes() == alone.tobytes()
    assert run(opened, [text, outlier])[0].tobytes() == alone.tobytes()
    assert run(opened, [outlier, text])[1].tobytes() == alone.tobytes()


def _int8_of(
    directory: Path, change: Callable[[PreTrainedModel], None], **config: Any
) -> tuple[Checkpoint, ir.Model]:
    """A BERT whose weights were changed, and its int8 graph."""
    source = make_checkpoint(directory / "source", "bert", **config)
    model = random_model("bert", load_checkpoint(source).model.config.vocab_size, **config)
    with torch.no_grad():
        change(model)
    save_model(source, model)
    checkpoint = load_checkpoint(source)
    return checkpoint, _written(Int8Classifier, checkpoint, directory)


def _changed(
    directory: Path, change: Callable[[PreTrainedModel], None], **config: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Logits of PyTorch and of the int8 graph for a BERT whose weights were changed."""
    checkpoint, graph = _int8_of(directory, change, **config)
    opened = session(graph)
    encodings = [encoding for seed in range(3) for encoding in random_encodings(seed)]
    expected = np.stack([checkpoint.logits(encoding.ids).numpy() for encoding in encodings])
    return expected, run(opened, encodings)


def test_biases_of_key_and_value_are_accounted_for(tmp_path: Path) -> None:
    """The key's bias is dropped, the value's folded: with large ones the answers still hold."""

    def enlarge(model: PreTrainedModel) -> None:
        for name, weights in model.named_parameters():
            if name.endswith(("key.bias", "value.bias")):
                weights.mul_(30)  # from 0.2 to 6, where activations are about 1

    expected, found = _changed(tmp_path, enlarge)
    np.testing.assert_allclose(found, expected, atol=0.3)


def test_a_row_of_zeros_is_no_division_by_zero(tmp_path: Path) -> None:
    """Where every activation of a token is 0, there still is a scale to divide by."""

    def silence(model: PreTrainedModel) -> None:
        for name, weights in model.named_parameters():
            if "embeddings.LayerNorm" in name:
                weights.zero_()

    checkpoint, model = _int8_of(tmp_path, silence)
    scales = [node.inputs[1] for node in model.graph if node.op_type == "QuantizeLinear"]
    model.graph.outputs.extend(scale for scale in scales if scale is not None)
    opened = session(model, optimised=False)
    encoding = Encoding.of([5, 17, 9, 30, 6])
    for scale in scales:
        assert scale is not None
        assert (run(opened, [encoding], str(scale.name)) > 0).all()
    expected = checkpoint.logits(encoding.ids).numpy()
    np.testing.assert_allclose(run(opened, [encoding])[0], expected, atol=0.2)


def test_a_row_that_gelu_makes_negative_throughout_stays_accurate(tmp_path: Path) -> None:
    """Its largest value says nothing of its magnitude, so the scale has a floor."""

    def lower(model: PreTrainedModel) -> None:
        for name, weights in model.named_parameters():
            if name.endswith("intermediate.dense.weight"):
                weights.mul_(0.05)
            elif name.endswith("intermediate.dense.bias"):
                weights.fill_(-0.75)  # where GELU is lowest
            elif name.endswith("layer.1.output.dense.weight"):
                weights.mul_(10)

    expected, found = _changed(tmp_path, lower)
    np.testing.assert_allclose(found, expected, atol=0.2)


@pytest.mark.parametrize("activation", ["relu", "gelu_new", "silu", "tanh"])
def test_other_activations_than_gelu(activation: str, tmp_path: Path) -> None:
    """Only the exact GELU has the known lowest value; for others the magnitude is measured."""

    def lower(model: PreTrainedModel) -> None:
        for name, weights in model.named_parameters():
            if name.endswith("intermediate.dense.bias"):
                weights.fill_(-2)  # tanh and SiLU are well below GELU's lowest value here

    expected, found = _changed(tmp_path, lower, hidden_act=activation)
    assert 0 < np.abs(found - expected).max() < 0.25


def _fp32(made: Exported) -> ir.Model:
    return ir.load(made.bundle / ONNX_FILES["fp32"])


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_word_table_it_is_and_rows_are_off_by_half_a_step(
    made: Exported, elsewhere: bool
) -> None:
    """Each row comes back within half its own step; from elsewhere, the words' table is found."""
    if elsewhere:
        model = _fp32(made)
        quantize_word_embedding(model)
    else:
        model = ir.load(made.bundle / ONNX_FILES["int8"])
    weights = load_file(made.source / "model.safetensors")
    words = next(array for name, array in weights.items() if "word_embeddings" in name)
    tensors = [v.const_value for v in model.graph.initializers.values() if v.const_value]
    (table,) = [t for t in tensors if t.dtype == ir.DataType.INT8 and t.shape == words.shape]
    (scale,) = [t for t in tensors if t.shape == (len(words), 1)]
    step = scale.numpy().astype(np.float64)
    assert (np.abs(table.numpy() * step - words) <= step * 0.5001).all()
    assert not [t for t in tensors if t.dtype == ir.DataType.FLOAT and t.shape == words.shape]


def test_answers_hardly_move(made: Exported) -> None:
    """Logits that vary by 1 from text to text move by less than 0.1."""
    encodings, model = random_encodings(3), _fp32(made)
    before = run(session(model), encodings)
    quantize_word_embedding(model)
    assert 0 < np.abs(before - run(session(model), encodings)).max() < 0.1


def test_a_graph_that_looks_nothing_up_is_refused(made: Exported) -> None:
    """The message says that the architecture is what is wrong."""
    model = _fp32(made)
    for node in model.graph:
        if node.op_type == "Gather":
            node.op_type = "GatherElements"
    with pytest.raises(UserError, match="unsupported architecture: the graph has no embedding"):
        quantize_word_embedding(model)
