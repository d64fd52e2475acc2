"""How float32 weights become int8 and float16, in our own graphs and in those from elsewhere."""

import numpy as np

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
