"""The passes that lower the precision of a graph: int8 for CPUs, fp16 for CUDA.

Int8 is per token and dynamic: every row of activations has its own scale.

Stock dynamic quantization uses one scale for the whole batch, so a text's result depends on
the other texts in its batch. Here the largest magnitude of each token sets its scale. So a
text's logits are the same alone and in any batch, and closer to fp32.

In ONNX operators, for activations ``x`` [tokens, inputs] and weights ``w``:

    scale [tokens]      = max |x row| / 127
    q     (uint8)       = x / scale + 128                       QuantizeLinear, axis 0
    y                   = (q - 128) @ w_int8 * w_scale          MatMulIntegerToFloat
    result              = y * scale + bias

Only uint8 activations with int8 weights have a fast kernel on x86; therefore the zero point is
128. After GELU, which has no large negative values, it is 16, so nearly all levels are used:

    scale [tokens]      = max(max x row / 239, 0.17 / 16)

The weights are within -64...64, with one scale per output column, so the sums are exact on every
CPU: see ``builder.LARGEST_WEIGHT``.

Layers that read the same value, such as query, key and value, share one quantization. Layers with
the same weights (ALBERT) share one int8 matrix. Padding must be left out before, because ``x`` must
have two axes.

The word embedding takes most of the bytes of a small or multilingual model. It has one scale per
row. A row becomes floats again when it is looked up, which costs almost nothing.

Fp16 has fp16 weights and activations, and fp32 where fp16 is too coarse. A layer norm in parts
sums many squares, so its parts stay in fp32; CUDA's own layer norms and softmax add up in fp32.
Values that become whole numbers or angles stay in fp32, too, because the next fp16 number after
256 is 256.25. These are relative positions (MPNet, DeBERTa) and rotary embeddings (ModernBERT). A
Cast is inserted where a value goes from one precision to the other. The logits, the graph's output,
are fp32, too. The shapes of values stay in the file, because ONNX Runtime fuses a layer norm with
the sum before it only if it knows that both have one shape.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass, ShapeInferencePass
from onnx_ir.tape import Tape
from sentiment_service.errors import UserError

from sentiment_export.graph.builder import (
    LARGEST_WEIGHT,
    halved,
    multiply,
    quantize_matrix,
    quantize_rows,
)
from sentiment_export.graph.editor import (
    Editor,
    Linear,
    array_of,
    consumers,
    is_gelu,
    operator,
    producer,
    scope_of,
)


def quantize_linears(model: ir.Model, linears: Sequence[Linear]) -> None:
    """Replace linear layers of values [tokens, inputs] by int8 layers, in place.

    A layer comes after those that it reads from.
    """
    model.opset_imports["com.microsoft"] = 1
    graph, edit = model.graph, Editor(model.graph, "int8")
    activations: dict[ir.Value, Any] = {}  # see ``quantize_rows``
    matrices: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}  # as ``multiply`` reads them
    for linear in linears:
        x, scope = linear.input, scope_of(linear.output)
        if x not in activations:
            tape = Tape()
            activations[x] = quantize_rows(operator(tape), edit, x, gelu=is_gelu(x))
            # Named after the parent of the layer, whose other layers may read it, too.
            edit.insert_after(x, tape, f"{scope.rpartition('/')[0]}/quantize")
        if linear.weight not in matrices:
            weight, scale = quantize_matrix(array_of(linear.weight), 0, LARGEST_WEIGHT)
            name = scope.strip("/").replace("/", ".")
            matrices[linear.weight] = (
                edit.constant(f"{name}.weight_int8", weight),
                edit.constant(f"{name}.weight_scale", scale),
            )
        tape = Tape()
        result = multiply(operator(tape), edit, activations[x], *matrices[linear.weight])
        if linear.bias is not None:
            result = tape.op("Add", [result, linear.bias])
        replaced = linear.add or linear.matmul
        edit.insert_before(replaced, tape, scope)
        result.name = linear.output.name  # other code finds it by this name
        edit.replace(replaced, result)
        if linear.add is not None:
            graph.remove(linear.matmul, safe=True)
    RemoveUnusedNodesPass()(model)


def quantize_word_embedding(model: ir.Model) -> None:
    """Replace the largest embedding table [vocabulary, hidden] by int8 rows, in place."""
    lookups = [(node, array) for node in model.graph if (array := _table(node)) is not None]
    if not lookups:
        raise UserError("unsupported architecture: the graph has no embedding table")
    lookup, largest = max(lookups, key=lambda pair: pair[1].size)
    weight, scale = quantize_matrix(largest, axis=1)

    edit, tape = Editor(model.graph, "int8"), Tape()
    table = edit.constant("word_embedding", weight)
    scales = edit.constant("word_embedding_scale", scale[:, np.newaxis])
    ids = lookup.inputs[1]
    values = tape.op("Cast", [tape.op("Gather", [table, ids])], {"to": ir.DataType.FLOAT})
    rows = tape.op("Mul", [values, tape.op("Gather", [scales, ids])])
    edit.insert_before(lookup, tape, str(lookup.name).rpartition("/")[0])
    edit.replace(lookup, rows)
    RemoveUnusedNodesPass()(model)


def _table(node: ir.Node) -> np.ndarray | None:
    """The float matrix from which the node reads rows; None if it is no such Gather."""
    source = node.inputs[0] if node.op_type == "Gather" else None
    if source is None or source.const_value is None:
        return None
    array = array_of(source)
    return array if array.dtype == np.float32 and array.ndim == 2 else None


# A layer norm in parts (DeBERTa), and what chooses between graphs.
IN_FLOAT32 = {"Pow", "ReduceMean", "Sqrt", "If"}
ANGLES = {"Sin", "Cos"}


def to_half_precision(model: ir.Model) -> None:
    """Convert a float32 graph to float16 in place; its inputs and outputs keep their types."""
    graph = model.graph
    exact = _exact_nodes(model)
    nodes = tuple(graph)
    for node in nodes:
        if node not in exact and node.op_type == "Cast" and _is_float(node.outputs[0]):
            node.attributes["to"] = ir.AttrInt64("to", ir.DataType.FLOAT16)
    for node in nodes:
        for output in node.outputs:
            if _is_float(output):
                _cast_for_readers(graph, output, exact)
    for value in tuple(graph.initializers.values()):
        _halve(graph, value, exact)
    for node in nodes:
        for output in node.outputs:
            if _is_float(output) and node not in exact and not output.is_graph_output():
                output.type = ir.TensorType(ir.DataType.FLOAT16)


def _exact_nodes(model: ir.Model) -> set[ir.Node]:
    """The nodes that compute in fp32; finds the types of all values on the way."""
    ShapeInferencePass()(model)
    exact = {node for node in model.graph if node.op_type in IN_FLOAT32}
    # The branches of an If, too: they are graphs of their own (DeBERTa).
    exact |= {node for node in model.graph.all_nodes() if node.graph is not model.graph}
    waiting = [node for node in model.graph if node.op_type in ANGLES or _ends_floats(node)]
    while waiting:  # these nodes, and all nodes whose results they need
        node = waiting.pop()
        if node not in exact:
            exact.add(node)
            sources = (v.producer() for v in node.inputs if v is not None and _is_float(v))
            waiting += [source for source in sources if source is not None]
    between = {  # a layer norm's epsilon
        node
        for node in model.graph
        if all(reader in exact for reader in consumers(node.outputs[0]))
        and all(v.producer() in exact for v in node.inputs if v is not None and v.producer())
    }
    return exact | between


def _ends_floats(node: ir.Node) -> bool:
    """Whether the node turns floats into another type, or makes floats from whole numbers."""
    if node.op_type in ("ConstantOfShape", "Range"):
        return _is_float(node.outputs[0])
    return (
        node.op_type == "Cast"
        and node.inputs[0] is not None
        and _is_float(node.inputs[0])
        and not _is_float(node.outputs[0])
    )


def _is_float(value: ir.Value) -> bool:
    return value.dtype == ir.DataType.FLOAT


def _cast_for_readers(graph: ir.Graph, value: ir.Value, exact: set[ir.Node]) -> None:
    """Cast the value for the readers that compute in the other precision."""
    source = producer(value)
    is_exact = source in exact
    readers = [use for use in value.uses() if (use.node in exact) != is_exact]
    tape = Tape()
    if readers:
        to = ir.DataType.FLOAT16 if is_exact else ir.DataType.FLOAT
        cast = tape.op("Cast", [value], {"to": to})
        for use in readers:
            use.node.replace_input_with(use.idx, cast)
    if value.is_graph_output() and not is_exact:
        logits = tape.op("Cast", [value], {"to": ir.DataType.FLOAT})
        name, index = value.name, graph.outputs.index(value)
        value.name = f"{name}_fp16"
        logits.name, logits.type, logits.shape = name, value.type, value.shape
        graph.outputs[index] = logits
    graph.insert_after(source, tape.nodes)


def _halve(graph: ir.Graph, value: ir.Value, exact: set[ir.Node]) -> None:
    """Give an fp16 copy to the readers that compute in fp16; the others keep the original."""
    tensor = value.const_value
    if tensor is None or tensor.dtype != ir.DataType.FLOAT:
        return
    readers = [use for use in value.uses() if use.node not in exact]
    if readers:
        half = ir.Value(name=f"{value.name}.fp16", const_value=ir.tensor(halved(tensor.numpy())))
        graph.register_initializer(half)
        for use in readers:
            use.node.replace_input_with(use.idx, half)
    if not value.uses():
        del graph.initializers[str(value.name)]
