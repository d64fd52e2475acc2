"""Half precision for CUDA: fp16 weights and activations, and fp32 where fp16 is too coarse.

Layer norms and softmax sum many squares or exponentials, so they stay in fp32. Values that become
whole numbers or angles stay in fp32, too, because the next fp16 number after 256 is 256.25. These
are relative positions (MPNet, DeBERTa) and rotary embeddings (ModernBERT). A Cast is inserted where
a value goes from one precision to the other. The logits, the graph's output, are fp32, too.
"""

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass
from onnx_ir.tape import Tape

from sentiment_export.graph.arithmetic import halved
from sentiment_export.graph.passes.editor import consumers, forget_shapes, producer

# The last three are the parts of a layer norm that is not a single operator (DeBERTa).
IN_FLOAT32 = {"LayerNormalization", "Softmax", "If", "Pow", "ReduceMean", "Sqrt"}
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
    forget_shapes(model)


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
