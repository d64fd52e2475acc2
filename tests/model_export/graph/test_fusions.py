"""Fused operators of the fp16 graph: the same logits, on a CPU where it has them, else in numpy."""

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto
from onnxruntime.capi import onnxruntime_pybind11_state as native

from app.errors import UserError
from model_export.checkpoint.checkpoint import load_checkpoint
from model_export.graph.encoder_layers import find_layers
from model_export.graph.fusions import FUSIONS, fuse
from model_export.graph.linear import NotRecognised, array_of, producer
from model_export.graph.passes.first_token import keep_first_token
from model_export.graph.passes.fused_attention import fuse_attention
from model_export.graph.passes.packed_attention import pack_attention
from model_export.graph.variants import write_fp16
from model_export.quality.layer_parity import layer_parity
from tests.support.checkpoints import ARCHITECTURES, HIDDEN_SIZE, LAYERS, Exported, exported
from tests.support.contrib_operators import evaluate
from tests.support.graphs import encoding_of, name_of, random_encodings, run, session

DOMAIN = "com.microsoft"
PACKED = "packed-attention"
PADDED = tuple(name for name in FUSIONS if name != PACKED)
ALL = tuple(FUSIONS)
# Each fusion alone, and all that go together.
CHOICES = [*((name,) for name in FUSIONS), PADDED, ALL]
ON_CPU = [names for names in CHOICES if PACKED not in names]
IN_NUMPY = [(PACKED,), PADDED, ALL]  # all operators, each padded and packed where there are both
ENCODINGS = random_encodings(0)
SHORT = [encoding_of(list(range(5 + n, 5 + 2 * n))) for n in (9, 3, 14, 6)]  # numpy is slow
HALF_TOLERANCE = 0.02  # of logits that vary by about 1
# What each fusion puts into a graph with a shortened last layer.
OPERATORS: dict[tuple[str, ...], dict[str, int]] = {
    (PACKED,): {"RemovePadding": 1, "PackedAttention": LAYERS},
    ("attention",): {"Attention": LAYERS - 1, "MultiHeadAttention": 1},
    ("skip-layer-norm",): {"SkipLayerNormalization": 2 * LAYERS},
    ("bias-gelu",): {"BiasGelu": LAYERS},
    ("embeddings",): {"EmbedLayerNormalization": 1},
    ("half-layer-norm",): {},
}
OPERATORS[PADDED] = {k: n for name in PADDED for k, n in OPERATORS[(name,)].items()}
OPERATORS[ALL] = {k: n for k, n in OPERATORS[PADDED].items() if "Attention" not in k}
OPERATORS[ALL] |= OPERATORS[(PACKED,)]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A checkpoint and its graph that no pass has seen."""
    return exported(tmp_path_factory.getbasetemp(), request.param)


@pytest.fixture(params=CHOICES, ids="+".join)
def names(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Which fusions to apply."""
    chosen: tuple[str, ...] = request.param
    return chosen


@cache
def _half(plain: Path, names: tuple[str, ...]) -> Path:
    path = plain.with_name("+".join(("fp16", *names)) + ".onnx")
    write_fp16(plain, path, names)
    return path


@pytest.fixture
def half(made: Exported, names: tuple[str, ...]) -> Path:
    """The fp16 file with these fusions."""
    return _half(made.plain, names)


@cache
def _shortened(plain: Path) -> ir.Model:
    model = ir.load(plain)
    for domain in [domain for domain in model.opset_imports if domain]:
        del model.opset_imports[domain]
    keep_first_token(model)
    return model


@cache
def _plain_session(plain: Path) -> ort.InferenceSession:
    return session(_shortened(plain))


def _operators(model: ir.Model) -> dict[str, int]:
    return Counter(node.op_type for node in model.graph if node.domain == DOMAIN)


@pytest.mark.parametrize("names", ON_CPU, ids="+".join, indirect=True)
def test_the_cpu_provider_computes_the_same_logits(
    made: Exported, names: tuple[str, ...], half: Path
) -> None:
    """ONNX Runtime's own kernels, in a padded batch: fp32 within rounding, fp16 nearly. Where it
    has no fp16 kernel, it casts to fp32."""
    expected = run(_plain_session(made.plain), ENCODINGS)
    fused, _ = fuse(_shortened(made.plain), names, "fp32")
    found = run(session(fused, optimised=False), ENCODINGS)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    found = run(session(ir.load(half)), ENCODINGS)
    np.testing.assert_allclose(found, expected, rtol=0, atol=HALF_TOLERANCE)


@pytest.mark.parametrize("names", IN_NUMPY, ids="+".join, indirect=True)
def test_the_operators_definitions_give_the_same_logits(
    made: Exported, names: tuple[str, ...], half: Path
) -> None:
    """In numpy, also those that only CUDA has: fp32 within rounding, fp16 nearly."""
    expected = run(_plain_session(made.plain), SHORT)
    fused, _ = fuse(_shortened(made.plain), names, "fp32")
    np.testing.assert_allclose(evaluate(fused, SHORT), expected, rtol=0, atol=1e-5)
    found = evaluate(ir.load(half), SHORT)
    np.testing.assert_allclose(found, expected, rtol=0, atol=HALF_TOLERANCE)


@pytest.mark.parametrize("names", IN_NUMPY, ids="+".join, indirect=True)
def test_a_batch_changes_no_label(half: Path) -> None:
    """Alone, each text has nearly the logits that it has beside longer ones."""
    model = ir.load(half)
    alone = np.concatenate([evaluate(model, [encoding]) for encoding in SHORT])
    batch = evaluate(model, SHORT)
    np.testing.assert_allclose(alone, batch, rtol=0, atol=HALF_TOLERANCE)
    assert alone.argmax(1).tolist() == batch.argmax(1).tolist()


def test_each_fusion_puts_in_its_operators(
    made: Exported, names: tuple[str, ...], half: Path
) -> None:
    """No pattern is missed. A packed graph has no other attention."""
    assert _operators(ir.load(half)) == OPERATORS[names]
    if "half-layer-norm" not in names:
        fused, _ = fuse(_shortened(made.plain), names, "fp32")
        assert _operators(fused) == OPERATORS[names]


@pytest.mark.parametrize("names", [("embeddings",)], indirect=True)
def test_fused_embeddings_are_looked_up_once(half: Path) -> None:
    """No other node reads their tables, not even for the size of the batch (DistilBERT)."""
    graph = ir.load(half).graph
    (fused,) = (node for node in graph if node.op_type == "EmbedLayerNormalization")
    tables = [table for table in fused.inputs[2:5] if table is not None]
    assert [use.node for table in tables for use in table.uses()] == [fused] * len(tables)
    assert [n for n in graph if n.op_type == "Gather" and n.inputs[1] is graph.inputs[0]] == []


def test_fp16_operators_fit_their_schemas(half: Path) -> None:
    """Numbers and types of inputs and outputs, and attributes, are those of ONNX Runtime."""
    model = onnx.load(half)
    onnx.checker.check_model(model, full_check=True)
    types = _types(model)
    schemas = {s.name: s for s in native.get_all_operator_schema() if s.domain == DOMAIN}
    for node in model.graph.node:
        if node.domain != DOMAIN:
            continue
        schema = schemas[node.op_type]
        assert schema.min_input <= len(node.input) <= schema.max_input
        assert schema.min_output <= len(node.output) <= schema.max_output
        required = {name for name, a in schema.attributes.items() if a.required}
        assert required <= {a.name for a in node.attribute} <= set(schema.attributes)
        _check_types(schema, node, types)


@pytest.mark.parametrize("names", [(PACKED,), ALL], ids="+".join, indirect=True)
def test_only_the_kernels_of_packed_texts_are_missing_on_a_cpu(half: Path) -> None:
    """ONNX Runtime infers all types and shapes of the graph before it looks for kernels."""
    with pytest.raises(native.NotImplemented, match=r"kernel for com\.microsoft\.RemovePadding"):
        session(ir.load(half))


def _check_types(schema: Any, node: onnx.NodeProto, types: dict[str, int]) -> None:
    """Each type parameter of the schema stands for one allowed type; floats are fp16."""
    allowed = {t.type_param_str: t.allowed_type_strs for t in schema.type_constraints}
    found: dict[str, set[str]] = {name: set() for name in allowed}
    for formal, name in zip(schema.inputs, node.input, strict=False):
        assert name or formal.option.name == "Optional"
        if name:
            kind = TensorProto.DataType.Name(types[name]).lower()
            found[formal.typeStr].add(f"tensor({kind})")
    for parameter, kinds in found.items():
        assert len(kinds) <= 1
        assert kinds <= set(allowed[parameter]) - {"tensor(float)"}


def _types(model: onnx.ModelProto) -> dict[str, int]:
    """The types of all values: those that ONNX infers once it knows those of fused operators."""
    known = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.domain == DOMAIN:
            result, *integers = node.output
            values = [onnx.helper.make_tensor_value_info(result, TensorProto.FLOAT16, None)]
            values += [
                onnx.helper.make_tensor_value_info(name, TensorProto.INT32, None)
                for name in integers
            ]
            model.graph.value_info.extend(values)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    for value in (*inferred.value_info, *inferred.input, *inferred.output):
        known[value.name] = value.type.tensor_type.elem_type
    return known


@pytest.mark.parametrize(
    ("names", "left"),
    [(PADDED, set()), (ALL, set()), (("half-layer-norm",), {"Softmax"})],
    indirect=["names"],
)
def test_casts_between_fp32_and_fp16_are_gone(half: Path, left: set[str]) -> None:
    """Only the logits become fp32, and what a softmax reads where attention is not fused."""
    model = ir.load(half)
    readers = {
        use.node.op_type
        for node in model.graph
        if node.op_type == "Cast" and node.attributes.get_int("to") == ir.DataType.FLOAT
        for use in node.outputs[0].uses()
    }
    assert readers == left


@pytest.mark.parametrize("names", [("half-layer-norm",)], indirect=True)
def test_layer_norms_without_casts_sum_in_fp32(half: Path) -> None:
    """Each says so by its ``stash_type``, and has fp16 weights."""
    graph = ir.load(half).graph
    norms = [node for node in graph if node.op_type == "LayerNormalization"]
    assert len(norms) == 1 + 2 * LAYERS
    for norm in norms:
        assert norm.attributes.get_int("stash_type") == TensorProto.FLOAT
        assert {array_of(weight).dtype for weight in norm.inputs[1:]} == {np.dtype(np.float16)}


def test_packed_layers_compute_the_real_tokens_only(made: Exported) -> None:
    """A batch of 4, 9 and 7 tokens has 20 rows, not 27; after the last attention, one a text."""
    model, _ = fuse(_shortened(made.plain), [PACKED], "fp32")
    activations = [node.outputs[0] for node in model.graph if node.op_type == "Erf"]
    texts = [encoding_of(list(range(5, 5 + length))) for length in (4, 9, 7)]
    shapes = [evaluate(model, texts, name_of(value)).shape for value in activations]
    assert shapes == [(20, 2 * HIDDEN_SIZE), (3, 2 * HIDDEN_SIZE)]


@pytest.mark.parametrize("names", [PADDED], ids="+".join, indirect=True)
def test_no_module_differs(made: Exported, half: Path) -> None:
    """--debug-parity compares the modules that a fused graph still has, and no half ones."""
    report = layer_parity(load_checkpoint(made.source), half, "fp16", ENCODINGS[0].ids)
    assert report.first_wrong is None
    assert len(report.differences) > 2 * LAYERS


def test_the_default_is_the_graph_without_fusions(made: Exported, tmp_path: Path) -> None:
    """No fusion has been measured on a GPU yet; the manifest lists those that were applied."""
    words = ["last layer for the first token only", "half precision"]
    assert write_fp16(made.plain, tmp_path / "half.onnx") == words
    assert _operators(ir.load(tmp_path / "half.onnx")) == {}
    done = write_fp16(made.plain, tmp_path / "half.onnx", ["attention", "half-layer-norm"])
    assert done == [words[0], "attention fused", words[1], "layer norms without Casts"]


def test_an_unknown_fusion_is_refused(made: Exported, tmp_path: Path) -> None:
    """The message names it and those that there are; no file is written."""
    with pytest.raises(UserError, match="no fusion is called 'gelu'; there are packed-attention, "):
        write_fp16(made.plain, tmp_path / "half.onnx", ["attention", "gelu"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("apply", [fuse_attention, pack_attention])
def test_scores_of_another_scale_are_not_fused(made: Exported, apply: Any) -> None:
    """The operators divide by the root of the head width, so anything else would be wrong."""
    model = _shortened(made.plain).clone()
    queries = find_layers(model.graph)[0].head_reshapes[0].outputs[0]
    (use,) = queries.uses()
    while use.node.op_type != "Div":
        (use,) = use.node.outputs[0].uses()
    factor = use.node.inputs[1]
    other = ir.Value(name="other", const_value=ir.tensor(2 * array_of(factor), name="other"))
    model.graph.register_initializer(other)
    use.node.replace_input_with(1, other)
    with pytest.raises(NotRecognised, match=r"attention scales scores by 0\.144.*, not by 1/√12"):
        apply(model)


def test_texts_are_not_packed_if_all_tokens_are_read(made: Exported) -> None:
    """Behind the layers, a packed graph has one row for each text only."""
    model = ir.load(made.plain)
    with pytest.raises(NotRecognised, match="the classifier reads more than the first token"):
        pack_attention(model)


def test_a_fusion_without_its_pattern_changes_nothing(made: Exported) -> None:
    """The graph is kept as it was, even if the pass fails half-way."""
    model = _shortened(made.plain).clone()
    next(i for i in model.graph.inputs if i.name == "attention_mask").name = "mask"
    before = [(node.op_type, node.name) for node in model.graph]
    fused, done = fuse(model, [PACKED, "attention"], "fp32")
    assert done == []
    assert [(node.op_type, node.name) for node in fused.graph] == before


def test_equal_layers_share_one_projection(made: Exported) -> None:
    """ALBERT's layers have the same weights; merged, they are in the file once."""
    model = _shortened(made.plain).clone()
    first, second = find_layers(model.graph)
    for name in ("query", "key", "value"):
        theirs, ours = getattr(first, name), getattr(second, name)
        ours.matmul.replace_input_with(1, theirs.weight)
        ours.add.replace_input_with(tuple(ours.add.inputs).index(ours.bias), theirs.bias)
    pack_attention(model)
    packed = [node for node in model.graph if node.op_type == "PackedAttention"]
    assert len({id(node.inputs[1]) for node in packed}) == 1
    assert producer(packed[0].inputs[0]).op_type == "RemovePadding"
