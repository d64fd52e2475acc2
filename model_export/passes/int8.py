"""Per-token dynamic int8: every row of activations has a scale of its own.

Stock dynamic quantization takes one scale for the whole batch, so a text's answer depends
on who shares the batch. Here each token is quantized by its own largest magnitude, which
makes a text's logits the same alone and in any batch, and closer to fp32.

In ONNX operators, for activations ``x`` [tokens, inputs] and weights ``w``:

    scale [tokens]      = max |x row| / 127
    q     (uint8)       = x / scale + 128                       QuantizeLinear, axis 0
    y                   = (q - 128) @ w_int8 * w_scale          MatMulIntegerToFloat
    result              = y * scale + bias

Only uint8 activations with int8 weights have a fast kernel on x86 (VNNI), hence the zero
point of 128. Weights have one scale per output column. Query, key and value share one
quantization. The hidden state stays [tokens, hidden] from the first layer to the last.

Two biases cost nothing: the key's adds the same number to all scores of a query, which
softmax ignores, and the value's passes through attention unchanged (its weights sum to
one), so it is added to the bias of the attention output.
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnx_ir.tape import Tape

from app.errors import UserError
from model_export.encoder import EncoderLayer, Linear, constant, find_layers

# GELU is never below -0.17, so from its largest value follows its largest magnitude.
GELU_LARGEST_NEGATIVE = 0.17
SMALLEST_MAGNITUDE = 1e-12  # of a row of zeros, which has to have a scale


@dataclass(frozen=True, slots=True)
class _Quantized:
    values: ir.Value  # uint8 [tokens, inputs]
    scale: ir.Value  # float [tokens, 1]


def quantize_encoder(model: ir.Model) -> None:
    """Replace the encoder's linear layers by per-token int8 ones, in place.

    ``keep_first_token`` has to come first. The classifier itself stays in fp32.

    Raises:
        UserError: the graph is not a post-norm encoder.
    """
    model.opset_imports["com.microsoft"] = 1
    _Int8Pass(model.graph).run()
    RemoveUnusedNodesPass()(model)


def quantize_matrix(weight: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Symmetric int8 with one scale per slice; ``axis`` is the one that is reduced.

    Returns:
        The int8 matrix of the same shape, and the float32 scales of the other axis.
    """
    scale = np.abs(weight).max(axis=axis) / np.float32(127)
    scale[scale == 0] = 1
    values = np.rint(weight / np.expand_dims(scale, axis)).clip(-127, 127).astype(np.int8)
    return values, scale.astype(np.float32)


class _Int8Pass:
    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._layers = find_layers(graph)
        self._size = self._layers[0].hidden_size
        self._flat = self._constant("flat", np.array([-1, self._size], np.int64))
        self._vector = self._constant("vector", np.array([-1], np.int64))
        self._last_axis = self._constant("last_axis", np.array([1], np.int64))
        self._zero_point = self._constant("zero_point", np.uint8(128))
        self._unit_scale = self._constant("unit_scale", np.float32(1))
        self._levels = self._constant("one_over_levels", np.float32(1 / 127))
        self._smallest = self._constant("smallest", np.float32(SMALLEST_MAGNITUDE))
        self._gelu_floor = self._constant("gelu_floor", np.float32(GELU_LARGEST_NEGATIVE))

    def run(self) -> None:
        by_sequence, by_head = self._shapes()
        for layer in self._layers:
            self._keep_shape(layer.hidden)
        self._flatten(self._layers[0].hidden, _scope(self._layers[0].hidden))
        for number, layer in enumerate(self._layers):
            if layer.query.input is not layer.hidden:  # the last layer keeps its first tokens
                for kept, reader in (
                    (layer.query.input, layer.query.output),
                    (layer.residual, layer.attention_residual.outputs[0]),
                ):
                    self._read_tokens(kept, by_sequence, _scope(reader))
                    self._flatten(kept, _scope(reader))
            self._attention(layer, by_head, f"layer.{number}")
            self._feed_forward(layer, f"layer.{number}")
        self._classifier_reads_rows()

    def _shapes(self) -> tuple[ir.Value, ir.Value]:
        """Shapes that make [batch, sequence, hidden] of rows, and split their heads."""
        tape = Tape()
        heads = self._layers[0].heads
        batch = tape.op("Shape", [self._graph.inputs[0]], {"start": 0, "end": 1})
        _name(tape, "/int8/batch")
        by_sequence = tape.op("Concat", [batch, self._flat], {"axis": 0})
        _name(tape, "/int8/by_sequence")
        split = np.array([-1, heads, self._size // heads], np.int64)
        by_head = tape.op("Concat", [batch, self._constant("heads", split)], {"axis": 0})
        _name(tape, "/int8/by_head")
        self._graph.insert_before(self._graph[0], tape.nodes)
        return by_sequence, by_head

    def _keep_shape(self, hidden: ir.Value) -> None:
        """Let who asks for the shape of a hidden state (DistilBERT's mask) find three axes."""
        readers = [use.node for use in hidden.uses() if use.node.op_type == "Shape"]
        if not readers:
            return
        tape = Tape()
        size = self._constant(f"{hidden.name}.size", np.array([self._size], np.int64))
        shape = tape.op("Concat", [tape.op("Shape", [self._graph.inputs[0]]), size], {"axis": 0})
        _name(tape, f"{_scope(hidden)}/shape")
        self._graph.insert_before(self._graph[0], tape.nodes)
        for reader in readers:
            for use in tuple(reader.outputs[0].uses()):
                use.node.replace_input_with(use.idx, shape)
            self._graph.remove(reader, safe=True)

    def _flatten(self, value: ir.Value, scope: str) -> None:
        """Hand [batch, sequence, hidden] to its readers as [tokens, hidden]."""
        readers = tuple(value.uses())
        tape = Tape()
        flat = tape.op("Reshape", [value, self._flat])
        _name(tape, f"{scope}/by_token")
        for reader in readers:
            reader.node.replace_input_with(reader.idx, flat)
        self._insert_after(value, tape)

    def _read_tokens(self, gathered: ir.Value, by_sequence: ir.Value, scope: str) -> None:
        """Let the Gather behind ``gathered`` find its tokens by text again."""
        gather = _producer(gathered)
        tape = Tape()
        gather.replace_input_with(0, tape.op("Reshape", [gather.inputs[0], by_sequence]))
        _name(tape, f"{scope}/by_text")
        self._graph.insert_before(gather, tape.nodes)

    def _attention(self, layer: EncoderLayer, by_head: ir.Value, name: str) -> None:
        for reshape in layer.head_reshapes:
            reshape.replace_input_with(1, by_head)
        layer.context_reshape.replace_input_with(1, self._flat)
        # Beside query, key and value, which read it, not in any of them.
        hidden = self._quantize(layer.hidden, _scope(layer.key.output).rpartition("/")[0])
        shared = layer.query.input is layer.hidden
        queries = (
            hidden if shared else self._quantize(layer.query.input, _scope(layer.query.output))
        )
        context = self._quantize(layer.context, _scope(layer.attention_output.output))
        value_bias = constant(layer.value.bias) @ constant(layer.attention_output.weight)
        bias = self._constant(
            f"{name}.attention_output.bias", constant(layer.attention_output.bias) + value_bias
        )
        self._replace(layer.query, queries, f"{name}.query", bias=layer.query.bias)
        self._replace(layer.key, hidden, f"{name}.key", bias=None)
        self._replace(layer.value, hidden, f"{name}.value", bias=None)
        self._replace(layer.attention_output, context, f"{name}.attention_output", bias=bias)

    def _feed_forward(self, layer: EncoderLayer, name: str) -> None:
        gelu = layer.activation == "Gelu"
        widened = self._quantize(layer.output.input, _scope(layer.output.output), gelu=gelu)
        narrow = self._quantize(layer.intermediate.input, _scope(layer.intermediate.output))
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
        _name(tape, f"{scope}/quantize")
        self._insert_after(x, tape)
        return _Quantized(values, scale)

    def _replace(self, linear: Linear, x: _Quantized, name: str, *, bias: ir.Value | None) -> None:
        weight, scale = quantize_matrix(constant(linear.weight), axis=0)
        tape = Tape()
        inputs = [
            x.values,
            self._constant(f"{name}.weight_int8", weight),
            self._unit_scale,
            self._constant(f"{name}.weight_scale", scale),
            self._zero_point,
        ]
        result = tape.op("MatMulIntegerToFloat", inputs, domain="com.microsoft")
        result = tape.op("Mul", [result, x.scale])
        if bias is not None:
            result = tape.op("Add", [result, bias])
        _name(tape, _scope(linear.output))
        self._graph.insert_before(linear.add, tape.nodes)
        for use in tuple(linear.output.uses()):
            use.node.replace_input_with(use.idx, result)
        result.name = linear.output.name  # under which it is looked for
        self._graph.remove([linear.add, linear.matmul], safe=True)

    def _classifier_reads_rows(self) -> None:
        """After the last layer there is one row a text: the Gather of token 0 goes."""
        rows = self._layers[-1].output_norm.outputs[0]
        for use in tuple(rows.uses()):
            gathered = use.node.outputs[0]
            for reader in tuple(gathered.uses()):
                reader.node.replace_input_with(reader.idx, rows)
            self._graph.remove(use.node, safe=True)

    def _constant(self, name: str, array: np.ndarray | np.generic) -> ir.Value:
        value = ir.Value(name=f"int8.{name}", const_value=ir.tensor(np.asarray(array)))
        self._graph.register_initializer(value)
        return value

    def _insert_after(self, value: ir.Value, tape: Tape) -> None:
        self._graph.insert_after(_producer(value), tape.nodes)


def _producer(value: ir.Value) -> ir.Node:
    node = value.producer()
    if node is None:
        raise UserError(f"unsupported architecture: {value.name} is not computed")
    return node


def _scope(value: ir.Value) -> str:
    """The module that computes ``value``, as the exporter writes it: ``/encoder/layer.0/...``."""
    name = value.name or ""
    return name.rpartition("/")[0] or name


def _name(tape: Tape, scope: str) -> None:
    """Name what is new on the tape as the exporter names nodes and values."""
    for node in tape.nodes:
        if node.name is None:
            node.name = f"{scope}/{node.op_type}"
            node.outputs[0].name = f"{node.name}_output_0"
