"""Operators of ONNX Runtime's own domain, and what several fusions give them.

The operators are described in ONNX Runtime's ContribOperators.md; OperatorKernels.md says which
provider has which of them for which types.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.tape import Tape

from model_export.graph.encoder_layers import EncoderLayer
from model_export.graph.linear import Linear, array_of
from model_export.graph.passes.editor import Editor, scope_of
from model_export.graph.passes.text_rows import attention_mask

DOMAIN = "com.microsoft"


def contrib(
    tape: Tape,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    *,
    outputs: int = 1,
    **attributes: float,
) -> ir.Value:
    """Record one operator of ONNX Runtime that computes in fp32; returns its first output."""
    result, *_ = tape.op_multi_out(op_type, inputs, attributes, num_outputs=outputs, domain=DOMAIN)
    # ONNX's shape inference does not know the operator, and half precision needs the type.
    result.type = ir.TensorType(ir.DataType.FLOAT)
    return result


def absorb_bias(linear: Linear, fused: ir.Value) -> None:
    """Rename the product of a linear layer whose bias is now added in ``fused``.

    Nodes are named after their modules, and this one no longer computes what its module does.
    """
    linear.matmul.name = f"{scope_of(fused)}/{linear.matmul.op_type}"


def text_lengths(graph: ir.Graph, edit: Editor, tape: Tape) -> ir.Value:
    """Record the nodes that count each text's tokens: int32 [batch].

    Raises:
        NotRecognised: the graph has no attention mask.
    """
    axis = edit.integers("last_axis", [-1])
    count = tape.op("ReduceSum", [attention_mask(graph), axis], {"keepdims": 0})
    return tape.op("Cast", [count], {"to": ir.DataType.INT32})


class MergedProjections:
    """Query, key and value of each layer as one linear layer; equal layers share it (ALBERT)."""

    def __init__(self, edit: Editor) -> None:
        self._edit = edit
        self._known: dict[tuple[ir.Value | None, ...], tuple[ir.Value, ir.Value]] = {}

    def of(self, layer: EncoderLayer) -> tuple[ir.Value, ir.Value]:
        """Weight [hidden, 3 * hidden] and bias [3 * hidden]."""
        linears = (layer.query, layer.key, layer.value)
        parts = tuple(part for linear in linears for part in (linear.weight, linear.bias))
        if parts not in self._known:
            weight = np.concatenate([array_of(linear.weight) for linear in linears], axis=1)
            bias = np.concatenate([array_of(linear.bias) for linear in linears])
            name = scope_of(layer.context)
            self._known[parts] = (
                self._edit.constant(f"{name}.weight", weight),
                self._edit.constant(f"{name}.bias", bias),
            )
        return self._known[parts]
