"""The activation functions that a config can name, in ONNX's operators.

They are computed in the order of transformers' ``ACT2FN``.
"""

from collections.abc import Callable
from math import pi, sqrt

from sentiment_export.graph.builder import Operator, Value

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


def _quick_gelu(x: Value, op: Operator, number: Number) -> Value:
    return op("Mul", x, op("Sigmoid", op("Mul", x, number(1.702))))


def _silu(x: Value, op: Operator, number: Number) -> Value:
    return op("Mul", x, op("Sigmoid", x))


def _squared_relu(x: Value, op: Operator, number: Number) -> Value:
    positive = op("Relu", x)
    return op("Mul", positive, positive)


def _mish(x: Value, op: Operator, number: Number) -> Value:
    return op("Mul", x, op("Tanh", op("Softplus", x)))


def _single(op_type: str) -> Callable[[Value, Operator, Number], Value]:
    return lambda x, op, number: op(op_type, x)


# By their names in config.json.
ACTIVATIONS: dict[str, Callable[[Value, Operator, Number], Value]] = {
    "gelu": _gelu,
    "gelu_python": _gelu,
    "gelu_new": _gelu_by_tanh,
    "gelu_pytorch_tanh": _gelu_by_tanh,
    "gelu_accurate": _gelu_by_tanh,
    "gelu_fast": _gelu_fast,
    "quick_gelu": _quick_gelu,
    "silu": _silu,
    "swish": _silu,
    "relu": _single("Relu"),
    "relu2": _squared_relu,
    "tanh": _single("Tanh"),
    "sigmoid": _single("Sigmoid"),
    "mish": _mish,
}
EXACT_GELU = ("gelu", "gelu_python")
