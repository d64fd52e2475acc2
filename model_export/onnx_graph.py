"""PyTorch → ONNX: Optimum's export, simplified, then our passes; one file a variant."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx_ir as ir
import onnxruntime as ort
import transformers
from optimum.exporters.onnx import onnx_export_from_model

from model_export.checkpoint import Checkpoint
from model_export.passes.first_token import keep_first_token
from model_export.passes.int8 import quantize_encoder
from model_export.passes.int8_embedding import quantize_word_embedding

OPSET = 18


def export_graph(checkpoint: Checkpoint, directory: Path) -> Path:
    """Export the checkpoint at opset 18 and fold its constants.

    Returns:
        The plain fp32 graph in ``directory``, its batch and sequence axes dynamic.
    """
    with _quiet():
        onnx_export_from_model(
            checkpoint.model,
            directory,
            opset=OPSET,
            task="text-classification",
            do_validation=False,  # verification.py checks what is served, and more of it
        )
    plain = directory / "plain.onnx"
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(plain)
    ort.InferenceSession(directory / "model.onnx", options, providers=["CPUExecutionProvider"])
    (directory / "model.onnx").unlink()
    return plain


def write_fp32(plain: Path, target: Path) -> None:
    """The exported graph with its last layer cut to the first token."""
    model = _load(plain)
    keep_first_token(model)
    ir.save(model, target)


def write_int8(plain: Path, target: Path) -> None:
    """The same with per-token int8 linear layers and int8 embedding rows."""
    model = _load(plain)
    keep_first_token(model)
    quantize_encoder(model)
    quantize_word_embedding(model)
    ir.save(model, target)


def _load(path: Path) -> ir.Model:
    model = ir.load(path)
    # ONNX Runtime lists every domain it knows; other readers may refuse those they do not.
    for domain in [domain for domain in model.opset_imports if domain]:
        del model.opset_imports[domain]
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporters' tracing and deprecation notes off the user's screen."""
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    transformers.utils.logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous)
