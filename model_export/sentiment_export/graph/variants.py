"""Writes the variants of a checkpoint: from its weights, or from PyTorch's graph.

BERT's family is written from its weights. Other architectures are exported by PyTorch (Optimum),
and the passes change that graph.
"""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from sentiment_service.engine.model.bundle import Precision

from sentiment_export.checkpoint.checkpoint import Checkpoint
from sentiment_export.checkpoint.family import Encoder
from sentiment_export.graph.builder import LARGEST_FILE, OPSET, external_data
from sentiment_export.graph.classifier import Classifier, Int8Classifier
from sentiment_export.graph.flat import FlatClassifier

# What is done to the graph, as manifest and model card say it.
NO_PADDING = "padding left out"
LAST_LAYER_SHORTENED = "last layer for the first token only"
END_SHORTENED = "first token only after the last attention"
INT8 = ("int8 with a scale per token", "int8 embedding")


class Graphs(Protocol):
    """What a checkpoint's variants are written from."""

    def write(self, precision: Precision, target: Path) -> list[str]:
        """Write a variant; returns what was done to the graph, in plain words."""


def graphs_of(checkpoint: Checkpoint, work: Path) -> Graphs:
    """What the checkpoint's variants are written from; ``work`` is for files.

    Raises:
        UserError: its config.json describes no graph, or another one than its weights.
    """
    if checkpoint.encoder is None:
        return ExportedGraphs(export_graph(checkpoint, work))
    return WeightGraphs(checkpoint.encoder, checkpoint.weights)


@dataclass(frozen=True, slots=True)
class WeightGraphs:
    """Graphs of BERT's family."""

    encoder: Encoder
    weights: Mapping[str, np.ndarray]

    def write(self, precision: Precision, target: Path) -> list[str]:
        """Write a variant; see ``Graphs``."""
        kind, passes = _OF_WEIGHTS[precision]
        kind(self.encoder, self.weights).write(target)
        return [NO_PADDING, LAST_LAYER_SHORTENED, *passes]


_OF_WEIGHTS: Mapping[Precision, tuple[Callable[[Encoder, Any], Classifier], tuple[str, ...]]] = {
    "fp32": (Classifier, ()),
    "int8": (Int8Classifier, INT8),
    "fp16": (FlatClassifier, ("half precision with CUDA's operators",)),
}


@dataclass(frozen=True, slots=True)
class ExportedGraphs:
    """Graphs made from one that was exported: plain fp32, with dynamic axes and a mask."""

    plain: Path

    def write(self, precision: Precision, target: Path) -> list[str]:
        """Write a variant; see ``Graphs``.

        In fp16, padding is kept. Dropping it needs the number of real tokens, which only the GPU
        knows, and the CPU would have to wait for it in the middle of the graph.
        """
        # Only these graphs need onnx-ir.
        import onnx_ir as ir

        from sentiment_export.graph.passes.half_precision import to_half_precision
        from sentiment_export.graph.passes.int8 import quantize_linears, quantize_word_embedding
        from sentiment_export.graph.passes.rows import compute_on_rows, sum_tokens_in_order

        model = ir.load(self.plain)
        # ONNX Runtime lists every domain that it knows; other readers may refuse unknown domains.
        for domain in [domain for domain in model.opset_imports if domain]:
            del model.opset_imports[domain]
        if precision == "fp16":
            to_half_precision(model)
            passes = ["half precision"]
        else:
            sum_tokens_in_order(model)
            linears, first_token_only = compute_on_rows(model)
            passes = [NO_PADDING, *[END_SHORTENED] * first_token_only]
            if precision == "int8":
                quantize_linears(model, linears)
                quantize_word_embedding(model)
                passes += INT8
        _save(model, target)
        return passes


def export_graph(checkpoint: Checkpoint, directory: Path) -> Path:
    """Export the checkpoint by PyTorch at opset 18 and fold its constants.

    Returns:
        Path of the plain fp32 graph in ``directory``. Its batch and sequence axes are dynamic,
        and its large weights are in a file beside it.
    """
    from optimum.exporters.onnx import onnx_export_from_model

    config = checkpoint.model.config
    # Optimum looks for tokenizers there, at the hub if it is a repository. There are none to find
    # in this directory; ours are copied by the export.
    recorded, config.name_or_path = config.name_or_path, str(directory)
    with _quiet():
        onnx_export_from_model(
            checkpoint.model,
            directory,
            opset=OPSET,
            task="text-classification",
            do_validation=False,  # verification.py checks the final variants, on more texts
        )
    config.name_or_path = recorded
    plain = directory / "plain.onnx"
    fold_constants(directory / "model.onnx", plain)
    for exported in directory.glob("model.onnx*"):
        exported.unlink()
    return plain


def fold_constants(exported: Path, plain: Path) -> None:
    """Write a graph with its constants folded, and its large weights in a file beside it."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(plain)
    external = "session.optimized_model_external_initializers_"
    options.add_session_config_entry(external + "file_name", external_data(plain).name)
    options.add_session_config_entry(external + "min_size_in_bytes", str(2**20))
    ort.InferenceSession(exported, options, providers=["CPUExecutionProvider"])


def _save(model: Any, target: Path) -> None:
    """Write a graph of onnx-ir; see ``Graph.write``."""
    import onnx_ir as ir

    values = tuple(model.graph.initializers.values())
    if sum(v.const_value.nbytes for v in values if v.const_value is not None) > LARGEST_FILE:
        ir.save(model, target, external_data=external_data(target).name)
        return
    for value in values:
        if isinstance(value.const_value, ir.ExternalTensor):
            # Mapped from disk; loading would hold the weights in memory a second time.
            value.const_value = ir.tensor(value.const_value.numpy(), name=value.name)
    ir.save(model, target)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the exporters' tracing and deprecation messages from the user."""
    import transformers

    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    transformers.utils.logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous)
