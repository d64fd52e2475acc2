"""Replaces bias, residual and layer norm behind a linear layer by one operator.

    SkipLayerNormalization(input, skip, gamma, beta, bias) = norm(input + bias + skip)

``input`` and ``skip`` are [batch, sequence, hidden] or [tokens, hidden]; the other inputs are
[hidden]. On CUDA, the fp16 operator reads and writes fp16 and computes mean and variance in fp32
since ONNX Runtime's pull request 28682 (the kernels of onnxruntime-gpu 1.31.1 have its signature).
So it needs no Casts. On a CPU it is slow; see ``app/engine/model/session.py``.
"""

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnx_ir.tape import Tape

from model_export.graph.linear import (
    Linear,
    NotRecognised,
    consumers,
    input_of,
    linear_to,
    producer,
)
from model_export.graph.passes.contrib import DOMAIN, absorb_bias, contrib
from model_export.graph.passes.editor import Editor, scope_of

DEFAULT_EPSILON = 1e-5  # of ONNX's LayerNormalization


def fuse_skip_layer_norm(model: ir.Model) -> None:
    """Fuse every layer norm of a linear layer's result plus a residual, in place.

    Raises:
        NotRecognised: there is none.
    """
    graph = model.graph
    edit = Editor(graph, "skip_layer_norm")
    fused = [_fuse(edit, node) for node in tuple(graph) if node.op_type == "LayerNormalization"]
    if not any(fused):
        raise NotRecognised("no layer norm follows a linear layer and a residual")
    model.opset_imports[DOMAIN] = 1
    RemoveUnusedNodesPass()(model)


def _fuse(edit: Editor, norm: ir.Node) -> bool:
    """Fuse one layer norm if it has the form; whether it has."""
    found = _residual(norm)
    if found is None:
        return False
    linear, skip = found
    gamma, beta = norm.inputs[1], norm.inputs[2] if len(norm.inputs) > 2 else None
    tape = Tape()
    fused = contrib(
        tape,
        "SkipLayerNormalization",
        [linear.matmul.outputs[0], skip, gamma, beta, linear.bias],
        epsilon=norm.attributes.get_float("epsilon", DEFAULT_EPSILON),
    )
    edit.insert_before(norm, tape, scope_of(norm.outputs[0]))
    absorb_bias(linear, fused)
    edit.replace(norm, fused)
    return True


def _residual(norm: ir.Node) -> tuple[Linear, ir.Value] | None:
    """The linear layer and the residual whose sum feeds only this layer norm."""
    total = input_of(norm, 0)
    if norm.attributes.get_int("axis", -1) != -1 or len(consumers(total)) != 1:
        return None
    try:
        add = producer(total, "Add")
    except NotRecognised:
        return None
    for index in (0, 1):
        branch, skip = input_of(add, index), input_of(add, 1 - index)
        try:
            linear = linear_to(branch)
        except NotRecognised:
            continue
        if len(consumers(branch)) == 1 and skip.const_value is None:
            return linear, skip
    return None
