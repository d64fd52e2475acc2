"""Replaces the bias and the exact GELU of a feed-forward layer by one operator.

    BiasGelu(A [..., features], B [features]) = gelu(A + B), gelu(u) = 0.5 u (1 + erf(u / √2))

It does the work of six element-wise operators, each of which reads and writes all activations.
FastGelu is not used: it computes the approximation by tanh, whose results differ.
"""

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnx_ir.tape import Tape

from model_export.graph.linear import (
    Linear,
    NotRecognised,
    consumers,
    input_of,
    is_exact_gelu,
    linear_to,
    producer,
)
from model_export.graph.passes.contrib import DOMAIN, absorb_bias, contrib
from model_export.graph.passes.editor import Editor, scope_of


def fuse_bias_gelu(model: ir.Model) -> None:
    """Fuse every exact GELU of a linear layer with its bias, in place.

    Raises:
        NotRecognised: there is none.
    """
    graph = model.graph
    found = [(node, linear) for node in graph if (linear := _linear_below(node)) is not None]
    if not found:
        raise NotRecognised("no linear layer is followed by an exact GELU")
    model.opset_imports[DOMAIN] = 1
    edit = Editor(graph, "bias_gelu")
    for node, linear in found:
        tape = Tape()
        gelu = contrib(tape, "BiasGelu", [linear.matmul.outputs[0], linear.bias])
        edit.insert_before(node, tape, scope_of(node.outputs[0]))
        absorb_bias(linear, gelu)
        edit.replace(node, gelu)
    RemoveUnusedNodesPass()(model)


def _linear_below(node: ir.Node) -> Linear | None:
    """The linear layer that feeds only the GELU that ends in this node."""
    if node.op_type != "Mul" or not is_exact_gelu(node.outputs[0]):
        return None
    u = input_of(producer(node.inputs[0]), 0)
    try:
        linear = linear_to(u)
    except NotRecognised:
        return None
    return linear if len(consumers(u)) == 2 else None  # u / √2, and u times the rest
