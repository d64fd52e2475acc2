"""Builds an ONNX graph node by node, and writes it without holding its weights in memory.

A value is the name of what computes it. Large weights are made when they are written, one after
the other: a file of 1.4 GB needs memory for its largest matrix.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from math import pi, sqrt
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, helper

from sentiment_export.checkpoint.graph_file import PRODUCER, bytes_of

OPSET = 18
CONTRIB = "com.microsoft"  # ONNX Runtime's own operators
# A protobuf message holds at most 2 GiB; larger weights go into a second file beside it.
LARGEST_FILE = 2**31 - 2**20
LEAST_OUTSIDE = 2**10  # bytes of a weight that goes there
ALIGNMENT = 2**12  # of weights in that file, so that they can be mapped
IR_VERSION = 8  # the first one with functions; older readers refuse newer ones

Value = str
# Adds an operator of a module, such as ``op("Gather", table, ids, axis=0)``; see ``Graph.at``.
Operator = Callable[..., Value]


# A tensor without its values, and what makes them.
_Weight = tuple[TensorProto, Callable[[], np.ndarray]]


class Constants:
    """A graph's constants; equal ones are one."""

    constant: Callable[..., Any]  # of a name and an array; what has the name already is kept

    def integers(self, values: object) -> Any:
        """An int64 constant, from a number or nested lists."""
        return self.constant(f"integers {values}", np.array(values, np.int64))

    def number(self, value: float) -> Any:
        return self.constant(f"number {value:.9g}", np.float32(value))


class Graph(Constants):
    """A graph under construction, with one output: the logits."""

    def __init__(self) -> None:
        # Without the graph, and that without its weights.
        self.model = ModelProto(ir_version=IR_VERSION, producer_name=PRODUCER)
        self.model.opset_import.add(domain="", version=OPSET)
        self._proto = GraphProto(name="classifier")
        self._weights: dict[Value, _Weight] = {}
        self._names = Counter[str]()  # how many nodes have a name that begins like this

    def at(self, module: str) -> Operator:
        """Adds operators that are named after a module, such as ``bert.encoder.layer.0.output``.

        ``layer_parity`` compares a module's output with that of its last operator.
        """
        return partial(self._op, "/" + re.sub(r"\.(?!\d)", "/", module))

    def _op(
        self, scope: str, op_type: str, *inputs: Value | None, domain: str = "", **attributes: Any
    ) -> Value:
        first = f"{scope}/{op_type}"
        self._names[first] += 1
        number = self._names[first] - 1
        name = f"{first}_{number}" if number else first
        output = f"{name}_output_0"
        named = [value or "" for value in inputs]
        self._proto.node.append(
            helper.make_node(op_type, named, [output], name, domain=domain, **attributes)
        )
        return output

    def input(self, name: str, dtype: int, axes: Sequence[str]) -> Value:
        self._proto.input.append(helper.make_tensor_value_info(name, dtype, list(axes)))
        return name

    def constant(self, name: str, array: np.ndarray | np.generic) -> Value:
        array = np.asarray(array)
        return self.weight(name, array.shape, array.dtype, lambda: array)

    def __contains__(self, name: str) -> bool:
        return name in self._weights

    def weight(
        self, name: str, shape: Sequence[int], dtype: Any, make: Callable[[], np.ndarray]
    ) -> Value:
        """A constant that ``make`` makes when the graph is written; its name is known once."""
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self._weights.setdefault(name, (TensorProto(name=name, dims=shape, data_type=kind), make))
        return name

    def write(self, target: Path, logits: Value, labels: int) -> None:
        """Write the graph; weights go into a second file beside it if one cannot hold them."""
        graph, weights = self._proto, [*self._weights.values()]
        last = next(node for node in reversed(graph.node) if node.output[0] == logits)
        last.output[0] = "logits"
        output = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch_size", labels])
        graph.output.append(output)
        if any(node.domain == CONTRIB for node in graph.node):
            self.model.opset_import.add(domain=CONTRIB, version=1)
        end, outside = 0, sum(bytes_of(tensor) for tensor, _ in weights) > LARGEST_FILE
        for tensor, _ in weights:
            size = bytes_of(tensor)
            if outside and size >= LEAST_OUTSIDE:
                place = {"location": external_data(target).name, "offset": end, "length": size}
                for key, value in place.items():
                    tensor.external_data.add(key=key, value=str(value))
                tensor.data_location = TensorProto.EXTERNAL
                end += -(-size // ALIGNMENT) * ALIGNMENT
        with target.open("wb") as file:
            _write_model(file, self.model, graph, weights)
        if outside:
            with external_data(target).open("wb") as file:
                for tensor, make in weights:
                    if tensor.external_data:
                        file.write(_values(tensor, make))
                        file.write(bytes(-file.tell() % ALIGNMENT))


def external_data(target: Path) -> Path:
    """Path of the weights file of a large ``target``, named as Optimum names it."""
    return target.with_name(target.name + "_data")


# Protobuf's wire format, in which a message is its fields one after the other, each with a tag and,
# if it is a message or bytes, its length. So the bytes of a weight are written from where they are.
_GRAPH_IN_MODEL = ModelProto.DESCRIPTOR.fields_by_name["graph"].number
_INITIALIZER_IN_GRAPH = GraphProto.DESCRIPTOR.fields_by_name["initializer"].number
_RAW_DATA_IN_TENSOR = TensorProto.DESCRIPTOR.fields_by_name["raw_data"].number


def _write_model(
    file: BinaryIO, model: ModelProto, graph: GraphProto, weights: Sequence[_Weight]
) -> None:
    nodes = graph.SerializeToString()
    heads = []
    for tensor, _ in weights:
        head = tensor.SerializeToString()
        size = 0 if tensor.external_data else bytes_of(tensor)
        if size:
            head += _field(_RAW_DATA_IN_TENSOR, size)
        heads.append((_field(_INITIALIZER_IN_GRAPH, len(head) + size) + head, size))
    file.write(model.SerializeToString())
    file.write(_field(_GRAPH_IN_MODEL, len(nodes) + sum(len(h) + size for h, size in heads)))
    file.write(nodes)
    for (head, size), weight in zip(heads, weights, strict=True):
        file.write(head)
        if size:
            file.write(_values(*weight))


def _values(tensor: TensorProto, make: Callable[[], np.ndarray]) -> memoryview:
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return np.asarray(make(), dtype, order="C").reshape(-1).view(np.uint8).data


def _field(number: int, size: int) -> bytes:
    """Tag and length of a field that has so many bytes."""
    return _varint(number << 3 | 2) + _varint(size)


def _varint(value: int) -> bytes:
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


Number = Callable[[float], Value]


def _gelu(x: Value, op: Operator, number: Number) -> Value:
    scaled = op("Div", x, number(sqrt(2)))
    product = op("Mul", x, op("Add", op("Erf", scaled), number(1)))
    return op("Mul", product, number(0.5))


def _gelu_by_tanh(x: Value, op: Operator, number: Number) -> Value:
    cubed = op("Mul", op("Pow", x, number(3)), number(0.044715))
    inner = op("Mul", op("Add", x, cubed), number(sqrt(2 / pi)))
    return op("Mul", op("Mul", x, number(0.5)), op("Add", op("Tanh", inner), number(1)))


def _gelu_fast(x: Value, op: Operator, number: Number) -> Value:
    squared = op("Mul", op("Mul", x, number(0.044715)), x)
    inner = op("Mul", op("Mul", x, number(sqrt(2 / pi))), op("Add", squared, number(1)))
    return op("Mul", op("Mul", x, number(0.5)), op("Add", op("Tanh", inner), number(1)))


def _squared_relu(x: Value, op: Operator, number: Number) -> Value:
    positive = op("Relu", x)
    return op("Mul", positive, positive)


# By their names in config.json.
ACTIVATIONS: dict[str, Callable[[Value, Operator, Number], Value]] = {
    **dict.fromkeys(("gelu", "gelu_python"), _gelu),
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_accurate"), _gelu_by_tanh),
    "gelu_fast": _gelu_fast,
    "quick_gelu": lambda x, op, number: op("Mul", x, op("Sigmoid", op("Mul", x, number(1.702)))),
    **dict.fromkeys(("silu", "swish"), lambda x, op, number: op("Mul", x, op("Sigmoid", x))),
    "relu": lambda x, op, number: op("Relu", x),
    "relu2": _squared_relu,
    "tanh": lambda x, op, number: op("Tanh", x),
    "sigmoid": lambda x, op, number: op("Sigmoid", x),
    "mish": lambda x, op, number: op("Mul", x, op("Tanh", op("Softplus", x))),
}
EXACT_GELU = ("gelu", "gelu_python")
GELU_BY_TANH = ("gelu_new", "gelu_pytorch_tanh", "gelu_accurate", "gelu_fast")


# Weights of a product with uint8 activations. x86 CPUs without VNNI add pairs of products in 16
# bits, where larger weights saturate (ONNX Runtime's documentation: "Quantize ONNX Models", S8S8
# and U8S8). These cannot: 2 * 255 * 64 < 2**15.
LARGEST_WEIGHT = 64
LARGEST_HALF = float(np.finfo(np.float16).max)


def quantize_matrix(
    weight: np.ndarray, axis: int, largest: int = 127
) -> tuple[np.ndarray, np.ndarray]:
    """The matrix as symmetric int8 of -``largest`` to ``largest``, and its float32 scales.

    The values along ``axis`` share one; there is one per index of the other axis.
    """
    scale = np.maximum(weight.max(axis), -weight.min(axis)) / np.float32(largest)
    scale[scale == 0] = 1
    # In place, because an embedding is larger than all memory that the rest of the export needs.
    values = weight / np.expand_dims(scale, axis)
    np.rint(values, out=values)
    return values.clip(-largest, largest, out=values).astype(np.int8), scale.astype(np.float32)


def quantize_rows(op: Callable[..., Any], graph: Constants, x: Any, *, gelu: bool) -> Any:
    """``x`` [rows, inputs], which may be all ``gelu``, as uint8; its scales; and the zero point."""
    # Of the levels 0...255, those above the zero point are for positive values. GELU is never below
    # -0.17. A row of zeros has a scale, too.
    zero, smallest = (16, 0.17 / 16) if gelu else (128, 1e-14)
    zero_point = graph.constant(f"zero point {zero}", np.uint8(zero))
    largest = op("ReduceMax", x if gelu else op("Abs", x), graph.integers([1]), keepdims=1)
    scale = op("Mul", largest, graph.number(1 / (255 - zero)))
    scale = op("Max", scale, graph.number(smallest))
    per_row = op("Reshape", scale, graph.integers([-1]))
    zero_points = op("Expand", zero_point, op("Shape", per_row))
    return op("QuantizeLinear", x, per_row, zero_points, axis=0), scale, zero_point


def multiply(op: Callable[..., Any], graph: Constants, x: Any, weight: Any, scales: Any) -> Any:
    """The product of ``x``, as ``quantize_rows`` gives it, and an int8 weight [inputs, outputs]."""
    values, scale, zero_point = x
    inputs = (values, weight, graph.number(1), scales, zero_point)
    return op("Mul", op("MatMulIntegerToFloat", *inputs, domain=CONTRIB), scale)


def find_tokens(op: Callable[..., Any], graph: Constants, mask: Any) -> tuple[Any, ...]:
    """The length of the padded texts, and where the real tokens of a mask [batch, sequence] are."""
    sequence = op("Shape", mask, start=1, end=2)
    # Of the mask itself: on a GPU, the session computes NonZero on the CPU, where the input is.
    real = op("NonZero", mask)
    # Of the [tokens]: their texts, their positions there, and their rows of [batch * sequence].
    text, position = (op("Gather", real, graph.integers(axis), axis=0) for axis in (0, 1))
    row = op("Add", op("Mul", text, sequence), position)
    # The rows of [tokens] for padded positions, [batch, sequence]. Padding is masked, so its values
    # only have to be finite. It gets those of the token before it, or of the last row.
    count = op("CumSum", op("Reshape", mask, graph.integers([-1])), graph.integers(0))
    token = op("Reshape", op("Sub", count, graph.integers(1)), op("Shape", mask))
    return sequence, text, position, row, token


def halved(weight: np.ndarray) -> np.ndarray:
    """The weight in float16.

    A mask's -3.4e38 becomes the lowest value of float16, which softmax also turns into 0.
    """
    return weight.clip(-LARGEST_HALF, LARGEST_HALF).astype(np.float16)
