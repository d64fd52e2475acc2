"""Writes directories that Infinity's ONNX engine loads: ONNX model, configuration and tokenizer.

This runs in our own environment, not in the peer's.
"""

import shutil
from pathlib import Path

import onnx
from onnxruntime.quantization import QuantType, quantize_dynamic
from sentiment_export.checkpoint.checkpoint import load_checkpoint
from sentiment_export.graph.builder import external_data
from sentiment_export.graph.variants import export_graph


def onnx_fp32(checkpoint: Path, directory: Path) -> None:
    """Write PyTorch's export with constants folded, with configuration and tokenizer."""
    directory.mkdir()
    export_graph(load_checkpoint(checkpoint), directory)
    for file in checkpoint.iterdir():
        if file.suffix in {".json", ".txt", ".model"} and ".safetensors" not in file.name:
            shutil.copy(file, directory)


def onnx_int8(checkpoint: Path, directory: Path) -> None:
    """Write the same after ONNX Runtime's dynamic quantization."""
    onnx_fp32(checkpoint, directory)
    plain = directory / "plain.onnx"
    quantized = directory / "model_quantized.onnx"  # Infinity looks for *quantize*
    # Shapes that the exporter has noted contradict what onnx infers, which ends the quantization.
    model = onnx.load(plain)
    del model.graph.value_info[:]
    onnx.save(model, plain)
    quantize_dynamic(plain, quantized, per_channel=True, weight_type=QuantType.QInt8)
    plain.unlink()
    external_data(plain).unlink(missing_ok=True)
