"""Lets layer norms of the fp16 graph read and write fp16, instead of Casts around them.

    LayerNormalization(X fp16, Scale fp16, B fp16; stash_type 1) → fp16

``stash_type`` is the type in which mean and variance are computed (ONNX, LayerNormalization-17); 1
is fp32. So only the input, which is a sum of fp16 values, and the weights are rounded to fp16. Each
norm loses two Casts, each of which reads and writes all activations.
"""

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from model_export.graph.linear import NotRecognised, array_of, consumers, input_of, producer
from model_export.graph.passes.editor import Editor


def remove_norm_casts(model: ir.Model) -> None:
    """Remove the Casts around every layer norm of an fp16 graph, in place.

    Raises:
        NotRecognised: no layer norm stands between two Casts.
    """
    edit = Editor(model.graph, "half_layer_norm")
    removed = [_removed(edit, norm) for norm in tuple(model.graph)]
    if not any(removed):
        raise NotRecognised("no layer norm stands between Casts")
    RemoveUnusedNodesPass()(model)


def _removed(edit: Editor, norm: ir.Node) -> bool:
    """Remove the Casts around a layer norm; whether the node is one that stands between Casts."""
    if norm.op_type != "LayerNormalization":
        return False
    before, after = producer(norm.inputs[0]), consumers(norm.outputs[0])
    casts = [(before, ir.DataType.FLOAT), *((node, ir.DataType.FLOAT16) for node in after)]
    if not all(_casts(node, to) for node, to in casts):
        return False
    norm.replace_input_with(0, input_of(before, 0))
    for index, weight in enumerate(norm.inputs[1:], start=1):
        half = edit.constant(f"{norm.name}.{index}", array_of(weight).astype(np.float16))
        norm.replace_input_with(index, half)
    for node in after:
        edit.replace(node, norm.outputs[0])
    return True


def _casts(node: ir.Node, to: ir.DataType) -> bool:
    return node.op_type == "Cast" and node.attributes.get_int("to") == to
