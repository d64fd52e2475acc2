"""Activation functions in ONNX's operators, and how weights become int8 and float16.

The functions are those that a config can name, in the order of transformers' ``ACT2FN``.
"""

from collections.abc import Callable
from math import pi, sqrt

import numpy as np

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


# Weights of a product with uint8 activations. x86 CPUs without VNNI add pairs of products in 16
# bits, where larger weights saturate (ONNX Runtime's documentation: "Quantize ONNX Models", S8S8
# and U8S8). These cannot: 2 * 255 * 64 < 2**15.
LARGEST_WEIGHT = 64
# The levels of uint8 are 0...255; those above the zero point are for positive values.
ZERO_POINT, GELU_ZERO_POINT = 128, 16
SMALLEST_SCALE = 1e-14  # so that a row of zeros has a scale
SMALLEST_GELU_SCALE = 0.17 / GELU_ZERO_POINT  # GELU is never below -0.17
LARGEST_HALF = float(np.finfo(np.float16).max)


def quantize_matrix(
    weight: np.ndarray, axis: int, largest: int = 127
) -> tuple[np.ndarray, np.ndarray]:
    """Quantize a matrix to symmetric int8; the values along ``axis`` share one scale.

    Returns:
        The int8 matrix of the same shape, with values of -``largest`` to ``largest``, and one
        float32 scale per index of the other axis.
    """
    scale = np.abs(weight).max(axis=axis) / np.float32(largest)
    scale[scale == 0] = 1
    values = np.rint(weight / np.expand_dims(scale, axis)).clip(-largest, largest)
    return values.astype(np.int8), scale.astype(np.float32)


def halved(weight: np.ndarray) -> np.ndarray:
    """The weight in float16.

    A mask's -3.4e38 becomes the lowest value of float16, which softmax also turns into 0.
    """
    return weight.clip(-LARGEST_HALF, LARGEST_HALF).astype(np.float16)
