"""Directories of an ONNX model, configuration and tokenizer, as Infinity's ONNX engine loads them.

Made with our own environment, not with the peer's.
"""

import shutil
from pathlib import Path

from onnxruntime.quantization import QuantType, quantize_dynamic

from model_export.checkpoint.checkpoint import load_checkpoint
from model_export.graph.variants import export_graph, external_data


def onnx_fp32(checkpoint: Path, directory: Path) -> None:
    """Optimum's export with its constants folded, beside configuration and tokenizer."""
    directory.mkdir()
    export_graph(load_checkpoint(checkpoint), directory)
    for file in checkpoint.iterdir():
        if file.suffix in {".json", ".txt", ".model"} and ".safetensors" not in file.name:
            shutil.copy(file, directory)


def onnx_int8(checkpoint: Path, directory: Path) -> None:
    """The same after ONNX Runtime's own dynamic quantization."""
    onnx_fp32(checkpoint, directory)
    plain = directory / "plain.onnx"
    quantized = directory / "model_quantized.onnx"  # Infinity looks for *quantize*
    quantize_dynamic(plain, quantized, per_channel=True, weight_type=QuantType.QInt8)
    plain.unlink()
    external_data(plain).unlink(missing_ok=True)
