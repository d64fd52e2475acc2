"""Exports PyTorch to ONNX with Optimum, then applies our passes; one file per variant."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx_ir as ir
import onnxruntime as ort
import transformers
from optimum.exporters.onnx import onnx_export_from_model
from sentiment_service.engine.model.device import CPU

from sentiment_export.checkpoint.checkpoint import Checkpoint
from sentiment_export.graph.encoder_layers import find_layers
from sentiment_export.graph.flat import flatten, halve
from sentiment_export.graph.linear import Linear, NotRecognised
from sentiment_export.graph.passes.half_precision import to_half_precision
from sentiment_export.graph.passes.int8 import (
    fold_attention_biases,
    quantize_linears,
    quantize_word_embedding,
)
from sentiment_export.graph.passes.padding import drop_padding, keep_first_token
from sentiment_export.graph.passes.rows import compute_on_rows, sum_tokens_in_order

OPSET = 18
# A protobuf message holds at most 2 GiB; larger weights go into a second file beside it.
LARGEST_FILE = 2**31 - 2**20
# What is done to the graph, as manifest and model card say it.
NO_PADDING = "padding left out"
LAST_LAYER_SHORTENED = "last layer for the first token only"
END_SHORTENED = "first token only after the last attention"


def export_graph(checkpoint: Checkpoint, directory: Path) -> Path:
    """Export the checkpoint at opset 18 and fold its constants.

    Returns:
        Path of the plain fp32 graph in ``directory``. Its batch and sequence axes are dynamic,
        and its large weights are in a file beside it.
    """
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
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(plain)
    external = "session.optimized_model_external_initializers_"
    options.add_session_config_entry(external + "file_name", "plain.onnx_data")
    options.add_session_config_entry(external + "min_size_in_bytes", str(2**20))
    ort.InferenceSession(directory / "model.onnx", options, providers=[CPU])
    for exported in directory.glob("model.onnx*"):
        exported.unlink()
    return plain


def write_fp32(plain: Path, target: Path) -> list[str]:
    """Write fp32 without the work that changes no logit.

    Returns:
        What was done to the graph, in plain words. The other writers return the same.
    """
    model, passes, _ = _without_padding(plain)
    _save(model, target)
    return passes


def write_int8(plain: Path, target: Path) -> list[str]:
    """Write int8: as fp32, with per-token int8 linear layers and int8 embedding rows."""
    model, passes, linears = _without_padding(plain)
    if linears is None:
        linears = fold_attention_biases(model, find_layers(model.graph))
    quantize_linears(model, linears)
    quantize_word_embedding(model)
    _save(model, target)
    return [*passes, "int8 with a scale per token", "int8 embedding"]


def write_fp16(plain: Path, target: Path) -> list[str]:
    """Write fp16 for CUDA: BERT's family without padding, in operators that CUDA has kernels for.

    In other graphs, padding is kept. Dropping it needs the number of real tokens, which only the
    GPU knows, and the CPU would have to wait for it in the middle of the graph.
    """
    model = _load(plain)
    try:
        flatten(model)
        halve(model)
        passes = [NO_PADDING, LAST_LAYER_SHORTENED, "half precision with CUDA's operators"]
    except NotRecognised:
        model = _load(plain)
        to_half_precision(model)
        passes = ["half precision"]
    _save(model, target)
    return passes


def _without_padding(plain: Path) -> tuple[ir.Model, list[str], list[Linear] | None]:
    """The graph without padding, what was done to it, and the linear layers that have no padding.

    The layers are None if ``find_layers`` finds them.
    """
    model = _load(plain)
    try:
        keep_first_token(model)
        drop_padding(model)
        return model, [NO_PADDING, LAST_LAYER_SHORTENED], None
    except NotRecognised:
        model = _load(plain)  # without what the first pass did before the second one failed
    sum_tokens_in_order(model)
    linears, first_token_only = compute_on_rows(model)
    return model, [NO_PADDING, *[END_SHORTENED] * first_token_only], linears


def external_data(target: Path) -> Path:
    """Path of the weights file of a large ``target``, named as Optimum names it."""
    return target.with_name(target.name + "_data")


def _load(path: Path) -> ir.Model:
    model = ir.load(path)
    # ONNX Runtime lists every domain that it knows; other readers may refuse unknown domains.
    for domain in [domain for domain in model.opset_imports if domain]:
        del model.opset_imports[domain]
    return model


def _save(model: ir.Model, target: Path) -> None:
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
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    transformers.utils.logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous)
