"""The graphs of every architecture: their logits, their bits in any batch, what was done to them.

The checkpoints are those of published.py.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import get_args

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto
from sentiment_export import export as export_module
from sentiment_export.checkpoint.architectures import ARCHITECTURES
from sentiment_export.checkpoint.checkpoint import Checkpoint, load_checkpoint
from sentiment_export.checkpoint.describe import passes
from sentiment_export.checkpoint.family import FAMILY
from sentiment_export.graph.editor import as_linear
from sentiment_export.graph.variants import Write, graphs_of
from sentiment_export.quality.verification import first_wrong, layer_parity
from sentiment_service.engine.model import model as parity
from sentiment_service.engine.model.bundle import Precision
from sentiment_service.engine.model.device import CPU
from sentiment_service.engine.model.sessions import open_session
from sentiment_service.engine.text.text_tokenizer import Encoding
from sentiment_service.settings.settings import CheckpointOptions

from tests.support.checkpoints import assert_like_transformers, random_model, save_model
from tests.support.model_export.graphs import (
    ExactFlatClassifier,
    name_of,
    random_encodings,
    run,
    session,
)
from tests.support.model_export.published import PUBLISHED, make_published
from tests.support.tiny_bundle import load

TOLERANCE = parity.TOLERANCE | {"fp32": 1e-4}  # of logits that vary by about 1
# Six labels of a model that magnifies small differences: int8 of 8 bits was off by 0.6.
LOOSE = {("electra", "int8"): 1.0}
# What is computed once per batch, or for one row of each text, or for narrow embeddings.
IN_FP32 = {
    "albert": {"embedding_hidden_mapping_in"},
    "deberta": {"pos_proj", "pos_q_proj"},
    "electra": {"embeddings_project"},
}
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
SHORTEST = Encoding.of([5, 17, 6])
# The padding id, 0 or 1, may be written in a text. RoBERTa then counts no position for it.
WITH_PADS = Encoding.of([5, 17, 1, 9, 0, 0, 1, 1, 30, 6])
ENCODINGS = [WITH_PADS, *(encoding for seed in range(3) for encoding in random_encodings(seed))]


@dataclass(frozen=True)
class Graphs:
    """A checkpoint, its variants' files, and what was done to each."""

    checkpoint: Checkpoint
    write: Write
    files: dict[Precision, Path]
    passes: dict[Precision, list[str]]

    @cached_property
    def logits(self) -> np.ndarray:
        """PyTorch's logits of ``ENCODINGS``."""
        return np.stack([self.checkpoint.logits(e.ids).numpy() for e in ENCODINGS])

    def session(self, precision: Precision) -> ort.InferenceSession:
        """Open a variant as the service does."""
        return open_session(self.files[precision], CPU, threads=1)


@cache
def _graphs(base: Path, model_type: str) -> Graphs:
    directory = base / f"graphs-{model_type}"
    checkpoint = load_checkpoint(
        make_published(directory / "source", ARCHITECTURES[model_type].example)
    )
    write = graphs_of(checkpoint, directory)
    files = {precision: directory / f"{precision}.onnx" for precision in PRECISIONS}
    passes = {precision: write(precision, files[precision]) for precision in PRECISIONS}
    return Graphs(checkpoint, write, files, passes)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def model_type(request: pytest.FixtureRequest) -> str:
    """Each architecture of the table."""
    return str(request.param)


@pytest.fixture(scope="module")
def graphs(model_type: str, tmp_path_factory: pytest.TempPathFactory) -> Graphs:
    """Its graphs."""
    return _graphs(tmp_path_factory.getbasetemp(), model_type)


def test_the_service_answers_like_transformers(
    graphs: Graphs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bundle's ids and fp32 logits are those of the checkpoint, alone and in one batch.

    The export itself compares pairs of texts.
    """
    path = graphs.checkpoint.path
    checkpoint = load_checkpoint(path, CheckpointOptions(text_pairs=True))
    made = tmp_path / "bundle"
    monkeypatch.setattr(export_module, "graphs_of", lambda *_: graphs.write)
    export_module.export(checkpoint, made, precisions=["fp32"])
    assert_like_transformers(load(made), path)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_logits_are_those_of_pytorch(graphs: Graphs, model_type: str, precision: Precision) -> None:
    """At many lengths, shorter and longer than what was traced, in padded batches."""
    found = run(graphs.session(precision), ENCODINGS)
    allowed = LOOSE.get((model_type, precision), TOLERANCE[precision])
    np.testing.assert_allclose(found, graphs.logits, rtol=0, atol=allowed)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_batch_changes_no_bit(graphs: Graphs, precision: Precision) -> None:
    """The logits are the same alone, in batches of several sizes, and with more padding."""
    opened = graphs.session(precision)
    texts = [SHORTEST, *ENCODINGS]
    alone = [run(opened, [text])[0].tobytes() for text in texts]
    for size in (2, 3, 7):
        for start in range(0, len(texts), size):
            rows = run(opened, texts[start : start + size])
            assert [row.tobytes() for row in rows] == alone[start : start + size]
    assert [row.tobytes() for row in run(opened, texts[::-1])] == alone[::-1]


def test_the_passes_are_those_of_the_table(graphs: Graphs, model_type: str) -> None:
    """The table of BERT's family agrees with what the export did."""
    padding, *last = graphs.passes["fp32"]
    assert padding == "padding left out"
    if model_type in FAMILY:
        assert last == ["last layer for the first token only"]
    else:
        mean = getattr(graphs.checkpoint.model.config, "classifier_pooling", "cls") == "mean"
        assert last == ([] if mean else ["first token only after the last attention"])
    assert ", ".join([padding, *last]) in passes(model_type) or not last
    int8 = ["int8 with a scale per token", "int8 embedding"]
    assert graphs.passes["int8"] == [padding, *last, *int8]


def test_rows_are_the_real_tokens(graphs: Graphs, model_type: str) -> None:
    """A batch of 4, 9 and 7 tokens has 20 rows, not 27; the end of the graph has one a text, unless
    the classifier reads the mean of all tokens."""
    model = ir.load(graphs.files["fp32"])
    linears = [linear for node in model.graph if (linear := as_linear(node)) is not None]
    inside = [
        linear.output
        for linear in linears
        if module_of(linear.matmul) not in IN_FP32.get(model_type, set())
    ]
    model.graph.outputs.extend([inside[0], inside[-1]])
    encodings = [Encoding.of(range(5, 5 + length)) for length in (4, 9, 7)]
    opened = session(model)
    rows = [len(run(opened, encodings, name_of(value))) for value in (inside[0], inside[-1])]
    assert rows == [20, 20 if len(graphs.passes["fp32"]) == 1 else 3]


def test_every_linear_layer_of_the_encoder_is_int8(graphs: Graphs, model_type: str) -> None:
    """Only small matrices stay in fp32, each named here; and no two nodes have one name."""
    graph = ir.load(graphs.files["int8"]).graph
    names = Counter(node.name for node in graph)
    assert [name for name, count in names.items() if count > 1] == []
    assert modules_with(graph, "MatMulIntegerToFloat")
    assert modules_with(graph, "MatMul") == IN_FP32.get(model_type, set())


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_gelu_is_one_operator_of_onnx_runtime(
    graphs: Graphs, precision: Precision, tmp_path: Path
) -> None:
    """No error function is left, which would read and write each value five times."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(graphs.files[precision], options, providers=[CPU])
    operators = Counter(node.op_type for node in ir.load(tmp_path / "optimized.onnx").graph)
    assert operators["Gelu"] + operators["BiasGelu"] + operators["FastGelu"]
    assert not operators["Erf"]


def test_token_types_are_an_input_where_the_model_has_some(tmp_path: Path) -> None:
    """DeBERTa's published checkpoints have none."""
    layout = PUBLISHED[ARCHITECTURES["deberta"].example]
    path = make_published(tmp_path / "source", ARCHITECTURES["deberta"].example)
    config = layout.config | {"type_vocab_size": 2, "num_hidden_layers": 1}
    save_model(path, random_model("deberta", 400, **config), pickled=True)
    checkpoint = load_checkpoint(path)
    graphs_of(checkpoint, tmp_path)("fp32", tmp_path / "fp32.onnx")
    opened = open_session(tmp_path / "fp32.onnx", CPU, threads=1)
    assert "token_type_ids" in [value.name for value in opened.get_inputs()]
    expected = np.stack([checkpoint.logits(e.ids).numpy() for e in ENCODINGS])
    np.testing.assert_allclose(run(opened, ENCODINGS), expected, rtol=0, atol=TOLERANCE["fp32"])


def module_of(node: ir.Node) -> str:
    """The module that the exporter names the node after."""
    return str(node.name).split("/")[-2]


def modules_with(graph: ir.Graph, op_type: str) -> set[str]:
    """The modules whose nodes of this type multiply with a constant matrix."""
    return {
        module_of(node)
        for node in graph
        if node.op_type == op_type and node.inputs[1] is not None
        if (weight := node.inputs[1].const_value) is not None and len(weight.shape) == 2
    }


def test_no_module_differs_in_fp32(graphs: Graphs) -> None:
    """--debug-parity finds the modules of every architecture, those called twice included."""
    ids = ENCODINGS[0].ids
    report = layer_parity(graphs.checkpoint, graphs.files["fp32"], "fp32", ids)
    assert first_wrong("fp32", report) is None
    assert len(report) > 10


def test_fp16_is_flat_where_the_weights_are_known(
    graphs: Graphs, model_type: str, tmp_path: Path
) -> None:
    """Attention, layer norms and their sums are single operators of CUDA; all inputs are int32.

    In fp32, the same graph's logits are PyTorch's.
    """
    model = ir.load(graphs.files["fp16"])
    if model_type not in FAMILY:
        assert graphs.passes["fp16"] == ["half precision"]
        return
    encoder, weights = graphs.checkpoint.encoder, graphs.checkpoint.weights
    assert encoder is not None
    operators = Counter(node.op_type for node in model.graph)
    layers = len(encoder.layers)
    assert operators["PackedMultiHeadAttention"] == layers
    assert operators["SkipLayerNormalization"] == 2 * layers + 1
    assert not operators.keys() & {"LayerNormalization", "Softmax", "Transpose", "NonZero", "Shape"}
    assert {value.dtype for value in model.graph.inputs} == {ir.DataType.INT32}
    exact = tmp_path / "exact.onnx"
    ExactFlatClassifier(encoder, weights).write(exact)
    found = run(open_session(exact, CPU, threads=1), ENCODINGS)
    np.testing.assert_allclose(found, graphs.logits, rtol=0, atol=TOLERANCE["fp32"])


def test_fp16_is_valid_and_can_be_fused(graphs: Graphs) -> None:
    """ONNX's checker accepts the file, products and softmax are fp16, and the logits are fp32.

    The file has the shapes of what layer norms read: without them, ONNX Runtime does not fuse them
    with the sums before. No weight overflows: a mask's lowest float32 becomes fp16's lowest, not
    minus infinity. A graph with operators of CUDA has fp16 weights only.
    """
    model = onnx.load(graphs.files["fp16"])
    onnx.checker.check_model(model, full_check=True)
    if graphs.passes["fp16"] != ["half precision"]:
        kinds = {w.data_type for w in model.graph.initializer}
        assert kinds == {TensorProto.FLOAT16, TensorProto.INT64}
    else:
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
        types = {v.name: v.type.tensor_type.elem_type for v in inferred.graph.value_info}
        axes = {v.name: len(v.type.tensor_type.shape.dim) for v in model.graph.value_info}
        for node in model.graph.node:
            if node.op_type == "LayerNormalization":
                assert axes[node.input[0]]
            elif node.op_type in ("MatMul", "Softmax") and "rotary" not in node.name:
                assert types[node.output[0]] == TensorProto.FLOAT16
    assert model.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT
    weights = [w for w in model.graph.initializer if w.data_type == TensorProto.FLOAT16]
    assert all(np.isfinite(onnx.numpy_helper.to_array(weight)).all() for weight in weights)
    size = {precision: graphs.files[precision].stat().st_size for precision in PRECISIONS}
    assert size["fp16"] < 0.75 * size["fp32"]
