"""Finding the encoder layers in an exported graph."""

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from sentiment_export.graph.encoder_layers import find_layers
from sentiment_export.graph.linear import NotRecognised, is_exact_gelu

from tests.support.checkpoints import HEADS, HIDDEN_SIZE, LAYERS, Exported


def test_layers_heads_and_width_are_found(made: Exported) -> None:
    """Every architecture's graph gives the figures of its config."""
    layers = find_layers(ir.load(made.plain).graph)
    assert len(layers) == LAYERS
    assert {(layer.heads, layer.hidden_size) for layer in layers} == {(HEADS, HIDDEN_SIZE)}
    assert all(is_exact_gelu(layer.output.input) for layer in layers)


def _graph(*op_types: str) -> ir.Graph:
    """A chain of operators with one input each."""
    names = ["x", *(f"y{index}" for index in range(len(op_types)))]
    nodes = [
        helper.make_node(op, [names[index]], [names[index + 1]])
        for index, op in enumerate(op_types)
    ]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3])
        for name in (names[0], names[-1])
    ]
    graph = helper.make_graph(nodes, "chain", values[:1], values[1:])
    return ir.from_proto(onnx.helper.make_model(graph)).graph


def test_a_graph_without_attention_is_refused() -> None:
    """The message says that the architecture is what is wrong."""
    with pytest.raises(NotRecognised, match="the graph has no attention"):
        find_layers(_graph("Relu", "Tanh"))


def test_a_softmax_that_is_no_attention_is_refused() -> None:
    """What should stand where is named."""
    with pytest.raises(NotRecognised, match="should come from Add or Where"):
        find_layers(_graph("Relu", "Softmax"))


def test_a_graph_with_anything_missing_is_refused(made: Exported, tmp_path: Path) -> None:
    """Without its LayerNormalization a layer is no post-norm layer."""
    model = ir.load(made.plain)
    norm = find_layers(model.graph)[0].attention_norm
    for use in tuple(norm.outputs[0].uses()):
        source = norm.inputs[0]
        assert source is not None
        use.node.replace_input_with(use.idx, source)
    model.graph.remove(norm, safe=True)
    with pytest.raises(NotRecognised, match="should feed one LayerNormalization, not 0"):
        find_layers(model.graph)
