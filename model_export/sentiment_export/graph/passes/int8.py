"""Per-token dynamic int8: every row of activations has its own scale.

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

The weights are within -64...64, with one scale per output column. x86 CPUs without VNNI add pairs
of products in 16 bits, where larger weights saturate (ONNX Runtime's documentation: "Quantize ONNX
Models", S8S8 and U8S8). These cannot: 2 * 255 * 64 < 2**15. So the sums are exact on every CPU.

Layers that read the same value, such as query, key and value, share one quantization. Layers with
the same weights (ALBERT) share one int8 matrix. Padding must be left out before, because ``x`` must
have two axes.

The word embedding takes most of the bytes of a small or multilingual model. It has one scale per
row. A row becomes floats again when it is looked up, which costs almost nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnx_ir.tape import Tape
from sentiment_service.errors import UserError

from sentiment_export.graph.arithmetic import (
    GELU_ZERO_POINT,
    LARGEST_WEIGHT,
    SMALLEST_GELU_SCALE,
    SMALLEST_SCALE,
    ZERO_POINT,
    quantize_matrix,
)
from sentiment_export.graph.passes.editor import Editor, Linear, array_of, is_exact_gelu, scope_of


def quantize_linears(model: ir.Model, linears: Sequence[Linear]) -> None:
    """Replace linear layers of values [tokens, inputs] by int8 layers, in place.

    A layer comes after those that it reads from.
    """
    model.opset_imports["com.microsoft"] = 1
    int8 = _Int8Pass(model.graph)
    for linear in linears:
        int8.replace(linear)
    RemoveUnusedNodesPass()(model)


@dataclass(frozen=True, slots=True)
class _Levels:
    """How activations become uint8: constants of the graph."""

    zero_point: ir.Value
    step: ir.Value  # the scale of a row whose largest magnitude is 1
    smallest: ir.Value  # of the scales


@dataclass(frozen=True, slots=True)
class _Quantized:
    """Activations [tokens, inputs] as uint8, and their scales, float [tokens, 1]."""

    values: ir.Value
    scale: ir.Value
    zero_point: ir.Value


class _Int8Pass:
    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._edit = Editor(graph, "int8")
        # The int8 values and their scales, by the fp32 value that they stand for.
        self._matrices: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
        self._activations: dict[ir.Value, _Quantized] = {}
        self._vector = self._edit.integers("vector", [-1])
        self._last_axis = self._edit.integers("last_axis", [1])
        self._unit_scale = self._edit.constant("unit_scale", np.float32(1))
        self._symmetric = self._levels("", ZERO_POINT, SMALLEST_SCALE)
        self._after_gelu = self._levels("gelu_", GELU_ZERO_POINT, SMALLEST_GELU_SCALE)

    def replace(self, linear: Linear) -> None:
        x = self._quantized(linear)
        weight, weight_scale = self._matrix(linear)
        tape = Tape()
        inputs = [x.values, weight, self._unit_scale, weight_scale, x.zero_point]
        result = tape.op("MatMulIntegerToFloat", inputs, domain="com.microsoft")
        result = tape.op("Mul", [result, x.scale])
        if linear.bias is not None:
            result = tape.op("Add", [result, linear.bias])
        replaced = linear.add or linear.matmul
        self._edit.insert_before(replaced, tape, scope_of(linear.output))
        result.name = linear.output.name  # other code finds it by this name
        self._edit.replace(replaced, result)
        if linear.add is not None:
            self._graph.remove(linear.matmul, safe=True)

    def _matrix(self, linear: Linear) -> tuple[ir.Value, ir.Value]:
        """The layer's weights as int8 [inputs, outputs], and their scales, float [outputs]."""
        if linear.weight not in self._matrices:
            name = scope_of(linear.output).strip("/").replace("/", ".")
            weight, scale = quantize_matrix(array_of(linear.weight), 0, LARGEST_WEIGHT)
            self._matrices[linear.weight] = (
                self._edit.constant(f"{name}.weight_int8", weight),
                self._edit.constant(f"{name}.weight_scale", scale),
            )
        return self._matrices[linear.weight]

    def _levels(self, name: str, zero_point: int, smallest: float) -> _Levels:
        return _Levels(
            self._edit.constant(f"{name}zero_point", np.uint8(zero_point)),
            self._edit.constant(f"{name}step", np.float32(1 / (255 - zero_point))),
            self._edit.constant(f"{name}smallest_scale", np.float32(smallest)),
        )

    def _quantized(self, linear: Linear) -> _Quantized:
        """The layer's input."""
        x = linear.input
        if x not in self._activations:
            gelu = is_exact_gelu(x)
            levels = self._after_gelu if gelu else self._symmetric
            tape = Tape()
            magnitude = x if gelu else tape.op("Abs", [x])
            largest = tape.op("ReduceMax", [magnitude, self._last_axis], {"keepdims": 1})
            scale = tape.op("Max", [tape.op("Mul", [largest, levels.step]), levels.smallest])
            per_token = tape.op("Reshape", [scale, self._vector])
            zero_points = tape.op("Expand", [levels.zero_point, tape.op("Shape", [per_token])])
            values = tape.op("QuantizeLinear", [x, per_token, zero_points], {"axis": 0})
            # Named after the parent of the layer, whose other layers may read it, too.
            parent = scope_of(linear.output).rpartition("/")[0]
            self._edit.insert_after(x, tape, f"{parent}/quantize")
            self._activations[x] = _Quantized(values, scale, levels.zero_point)
        return self._activations[x]


def quantize_word_embedding(model: ir.Model) -> None:
    """Replace the largest embedding table [vocabulary, hidden] by int8 rows, in place.

    Raises:
        UserError: the graph has no embedding table.
    """
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
