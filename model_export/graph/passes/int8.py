"""Per-token dynamic int8: every row of activations has its own scale.

Stock dynamic quantization uses one scale for the whole batch, so a text's result depends on
the other texts in its batch. Here the largest magnitude of each token sets its scale. So a
text's logits are the same alone and in any batch, and closer to fp32.

In ONNX operators, for activations ``x`` [tokens, inputs] and weights ``w``:

    scale [tokens]      = max |x row| / 127
    q     (uint8)       = x / scale + 128                       QuantizeLinear, axis 0
    y                   = (q - 128) @ w_int8 * w_scale          MatMulIntegerToFloat
    result              = y * scale + bias

Only uint8 activations with int8 weights have a fast kernel on x86 (VNNI); therefore the zero
point is 128. Weights have one scale per output column. Query, key and value share one
quantization. The hidden state stays [tokens, hidden] from the first layer to the last.

Two biases are free. The key's bias adds the same number to all scores of a query, which softmax
ignores, so it is dropped. The value's bias passes through attention unchanged, because the
attention weights sum to one, so it is added to the bias of the attention output.
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnx_ir.tape import Tape

from model_export.graph.encoder_layers import EncoderLayer, Linear, array_of, find_layers
from model_export.graph.passes.editor import Editor, scope_of

# GELU is never below -0.17, so the largest value gives the largest magnitude.
GELU_LARGEST_NEGATIVE = 0.17
SMALLEST_MAGNITUDE = 1e-12  # so that a row of zeros has a scale


@dataclass(frozen=True, slots=True)
class _Quantized:
    values: ir.Value  # uint8 [tokens, inputs]
    scale: ir.Value  # float [tokens, 1]


def quantize_encoder(model: ir.Model) -> None:
    """Replace the encoder's linear layers by per-token int8 layers, in place.

    Run ``drop_padding`` first: it makes the hidden state [tokens, hidden]. The classifier
    stays in fp32.

    Raises:
        UserError: the graph is not a post-norm encoder.
    """
    model.opset_imports["com.microsoft"] = 1
    _Int8Pass(model.graph).run()
    RemoveUnusedNodesPass()(model)


def quantize_matrix(weight: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Quantize a matrix to symmetric int8; the values along ``axis`` share one scale.

    Returns:
        The int8 matrix of the same shape, and one float32 scale per index of the other axis.
    """
    scale = np.abs(weight).max(axis=axis) / np.float32(127)
    scale[scale == 0] = 1
    values = np.rint(weight / np.expand_dims(scale, axis)).clip(-127, 127).astype(np.int8)
    return values, scale.astype(np.float32)


class _Int8Pass:
    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._edit = Editor(graph, "int8")
        self._layers = find_layers(graph)
        self._vector = self._edit.constant("vector", np.array([-1], np.int64))
        self._last_axis = self._edit.constant("last_axis", np.array([1], np.int64))
        self._zero_point = self._edit.constant("zero_point", np.uint8(128))
        self._unit_scale = self._edit.constant("unit_scale", np.float32(1))
        self._levels = self._edit.constant("one_over_levels", np.float32(1 / 127))
        self._smallest = self._edit.constant("smallest", np.float32(SMALLEST_MAGNITUDE))
        self._gelu_floor = self._edit.constant("gelu_floor", np.float32(GELU_LARGEST_NEGATIVE))

    def run(self) -> None:
        for number, layer in enumerate(self._layers):
            self._attention(layer, f"layer.{number}")
            self._feed_forward(layer, f"layer.{number}")

    def _attention(self, layer: EncoderLayer, name: str) -> None:
        # Named after the parent of query, key and value, because all three read it.
        hidden = self._quantize(layer.hidden, scope_of(layer.key.output).rpartition("/")[0])
        # The last layer keeps few of its queries, so they are quantized separately.
        shared = layer.query.input is layer.hidden
        queries = (
            hidden if shared else self._quantize(layer.query.input, scope_of(layer.query.output))
        )
        context = self._quantize(layer.context, scope_of(layer.attention_output.output))
        value_bias = array_of(layer.value.bias) @ array_of(layer.attention_output.weight)
        bias = self._edit.constant(
            f"{name}.attention_output.bias",
            array_of(layer.attention_output.bias) + value_bias,
        )
        self._replace(layer.query, queries, f"{name}.query", bias=layer.query.bias)
        self._replace(layer.key, hidden, f"{name}.key", bias=None)
        self._replace(layer.value, hidden, f"{name}.value", bias=None)
        self._replace(layer.attention_output, context, f"{name}.attention_output", bias=bias)

    def _feed_forward(self, layer: EncoderLayer, name: str) -> None:
        gelu = layer.activation == "Gelu"
        widened = self._quantize(layer.output.input, scope_of(layer.output.output), gelu=gelu)
        narrow = self._quantize(layer.intermediate.input, scope_of(layer.intermediate.output))
        self._replace(
            layer.intermediate, narrow, f"{name}.intermediate", bias=layer.intermediate.bias
        )
        self._replace(layer.output, widened, f"{name}.output", bias=layer.output.bias)

    def _quantize(self, x: ir.Value, scope: str, *, gelu: bool = False) -> _Quantized:
        tape = Tape()
        if gelu:
            largest = tape.op("ReduceMax", [x, self._last_axis], {"keepdims": 1})
            largest = tape.op("Max", [largest, self._gelu_floor])
        else:
            magnitude = tape.op("Abs", [x])
            largest = tape.op("ReduceMax", [magnitude, self._last_axis], {"keepdims": 1})
            largest = tape.op("Max", [largest, self._smallest])
        scale = tape.op("Mul", [largest, self._levels])
        per_token = tape.op("Reshape", [scale, self._vector])
        zero_points = tape.op("Expand", [self._zero_point, tape.op("Shape", [per_token])])
        values = tape.op("QuantizeLinear", [x, per_token, zero_points], {"axis": 0})
        self._edit.insert_after(x, tape, f"{scope}/quantize")
        return _Quantized(values, scale)

    def _replace(self, linear: Linear, x: _Quantized, name: str, *, bias: ir.Value | None) -> None:
        weight, scale = quantize_matrix(array_of(linear.weight), axis=0)
        tape = Tape()
        inputs = [
            x.values,
            self._edit.constant(f"{name}.weight_int8", weight),
            self._unit_scale,
            self._edit.constant(f"{name}.weight_scale", scale),
            self._zero_point,
        ]
        result = tape.op("MatMulIntegerToFloat", inputs, domain="com.microsoft")
        result = tape.op("Mul", [result, x.scale])
        if bias is not None:
            result = tape.op("Add", [result, bias])
        self._edit.insert_before(linear.add, tape, scope_of(linear.output))
        result.name = linear.output.name  # other code finds it by this name
        self._edit.replace(linear.add, result)
        self._graph.remove(linear.matmul, safe=True)
