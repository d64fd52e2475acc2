"""ONNX Runtime sessions, with the options that suit the CPU at hand."""

from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import onnxruntime as ort

from app.engine.model.device import CPU, Provider
from app.engine.model.device_errors import loading_error
from app.errors import UserError

# ONNX Runtime's warnings, about graphs and devices, would stand between the lines of the service's
# log. Its errors, such as why CUDA cannot be loaded, stay.
ort.set_default_logger_severity(3)

# Graph fusions that are slower on a CPU. SkipLayerNormalization takes ten times as long as the Add
# and LayerNormalization that it replaces. BiasGelu takes longer than Add and Gelu.
SLOW_ON_CPU = ["SkipLayerNormFusion", "BiasGeluFusion"]

# U8S8 multiplies uint8 activations with the int8 weights as they are. U8U8 converts the weights to
# uint8 when the session opens. It is half as fast on a CPU with VNNI.
Int8Kernels = Literal["U8S8", "U8U8"]

# The bytes of the ONNX model y = MatMulInteger(a: uint8 [m, k], b: int8 [k, n]). A test builds the
# model with the package onnx, which is not needed for serving.
MATMUL_INTEGER = (
    b'\x08\x05:P\n\x18\n\x01a\n\x01b\x12\x01y"\rMatMulInteger\x12\x01pZ\x0f\n\x01a\x12\n\n\x08\x08'
    b"\x02\x12\x04\n\x00\n\x00Z\x0f\n\x01b\x12\n\n\x08\x08\x03\x12\x04\n\x00\n\x00b\x0f\n\x01y\x12\n"
    b"\n\x08\x08\x06\x12\x04\n\x00\n\x00B\x04\n\x00\x10\n"
)
_ROWS, _DEPTH, _COLUMNS = 4, 64, 16


@cache
def int8_kernels() -> Int8Kernels:
    """The faster of the int8 kernels that are exact on this CPU, found once by a computation.

    x86 CPUs with AVX2 or AVX-512 but without VNNI add pairs of uint8 x int8 products in 16 bits.
    These sums saturate (ONNX Runtime's documentation: "Quantize ONNX Models", S8S8 and U8S8).
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(MATMUL_INTEGER, options, providers=[CPU])
    activations = np.full((_ROWS, _DEPTH), 255, np.uint8)
    for extreme in (127, -128):
        weights = np.full((_DEPTH, _COLUMNS), extreme, np.int8)
        (sums,) = session.run(None, {"a": activations, "b": weights})
        if (sums != 255 * extreme * _DEPTH).any():
            return "U8U8"
    return "U8S8"


def open_session(
    path: Path, provider: Provider, *, threads: int, kernels: Int8Kernels | None
) -> ort.InferenceSession:
    """Open a session with ``threads`` intra-op threads (0: one per core).

    ``kernels`` are the int8 kernels to use, if any.

    Raises:
        UserError: the file cannot be loaded, or the provider cannot be used (``DeviceLost``: not
            in this process).
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    # A spinning thread takes the core that the event loop needs.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if kernels == "U8U8":
        # Set only when needed: it takes effect on every x86 CPU with AVX2, with VNNI or without.
        options.add_session_config_entry("session.x64quantprecision", "1")
    on_cpu = provider == CPU
    if not on_cpu:
        # A pattern holds the memory plan of one input shape. Nearly every batch has another shape,
        # and would add a pattern and a block of memory as large as the batch.
        options.enable_mem_pattern = False
    try:
        session = ort.InferenceSession(
            path,
            options,
            providers=[provider] if on_cpu else [provider, CPU],
            disabled_optimizers=SLOW_ON_CPU if on_cpu else None,
            # Raise an error that says why, instead of printing it and using the CPU.
            enable_fallback=False,
        )
    except Exception as error:  # onnxruntime's exceptions share no base class
        raise loading_error(error, f"ONNX Runtime cannot load {path}") from error
    name = provider if isinstance(provider, str) else provider[0]
    if session.get_providers()[0] != name:  # it can still fall back to the CPU silently
        raise UserError(
            f"ONNX Runtime does not use {name}, and says why on standard error; to serve without "
            "a GPU, use --device cpu"
        )
    return session
