"""Half precision for CUDA: fp16 weights and activations, and fp32 where fp16 is too coarse.

Layer norms and softmax sum many squares or exponentials, so they stay in fp32, with casts
around them. The logits, the graph's output, are fp32 too.
"""

import numpy as np
import onnx_ir as ir
from onnx_ir.tape import Tape

IN_FLOAT32 = {"LayerNormalization", "Softmax"}
LARGEST = float(np.finfo(np.float16).max)


def to_half_precision(model: ir.Model) -> None:
    """Convert a float32 graph to float16 in place; its inputs and outputs keep their types."""
    graph = model.graph
    nodes = tuple(graph)
    for value in tuple(graph.initializers.values()):
        _halve(graph, value)
    for node in nodes:
        if node.op_type == "Cast" and node.attributes["to"].as_int() == ir.DataType.FLOAT:
            node.attributes["to"] = ir.AttrInt64("to", ir.DataType.FLOAT16)
        elif node.op_type in IN_FLOAT32:
            _surround(graph, node)
    for index, output in enumerate(graph.outputs):
        name, last = output.name, output.producer()
        tape = Tape()
        logits = tape.op("Cast", [output], {"to": ir.DataType.FLOAT})
        output.name = f"{name}_fp16"
        logits.name, logits.type, logits.shape = name, output.type, output.shape
        output.type = ir.TensorType(ir.DataType.FLOAT16)
        graph.insert_after(last, tape.nodes) if last is not None else graph.extend(tape.nodes)
        graph.outputs[index] = logits


def _halve(graph: ir.Graph, value: ir.Value) -> None:
    """Give an fp16 copy to the readers that compute in fp16; the others keep the original."""
    tensor = value.const_value
    if tensor is None or tensor.dtype != ir.DataType.FLOAT:
        return
    readers = [use for use in value.uses() if use.node.op_type not in IN_FLOAT32]
    if readers:
        # A mask's -3.4e38 becomes the lowest fp16 value, which softmax also turns into 0.
        array = tensor.numpy().clip(-LARGEST, LARGEST).astype(np.float16)
        half = ir.Value(name=f"{value.name}.fp16", const_value=ir.tensor(array))
        graph.register_initializer(half)
        for use in readers:
            use.node.replace_input_with(use.idx, half)
    if not value.uses():
        del graph.initializers[str(value.name)]


def _surround(graph: ir.Graph, node: ir.Node) -> None:
    """Cast the node's input to fp32 and its output to fp16."""
    before, after = Tape(), Tape()
    node.replace_input_with(0, before.op("Cast", [node.inputs[0]], {"to": ir.DataType.FLOAT}))
    graph.insert_before(node, before.nodes)
    output = node.outputs[0]
    readers = tuple(output.uses())
    half = after.op("Cast", [output], {"to": ir.DataType.FLOAT16})
    graph.insert_after(node, after.nodes)
    for use in readers:
        use.node.replace_input_with(use.idx, half)
