"""Graphs of 12 layers for GPUs, of every architecture, with random weights."""

from pathlib import Path

from sentiment_export.checkpoint.checkpoint import load_checkpoint
from sentiment_export.checkpoint.family import FAMILY
from sentiment_export.graph.variants import graphs_of
from sentiment_service.engine.model.bundle import Precision

from benchmarks.random_checkpoint import random_checkpoint

# As wide a head as models have: the choice of the kernel depends on it.
SHAPE = {
    "hidden_size": 128,
    "num_attention_heads": 2,
    "intermediate_size": 256,
    "num_hidden_layers": 12,
    "vocab_size": 400,
}
PRECISIONS: tuple[Precision, ...] = ("fp16", "fp32")
DISTILBERTS = {"dim": 128, "n_heads": 2, "hidden_dim": 256, "n_layers": 12, "vocab_size": 400}


def make(folder: Path, model_type: str) -> dict[Precision, Path]:
    """Export the variants for GPUs of an architecture of the table."""
    shape = DISTILBERTS if model_type == "distilbert" else SHAPE
    source = random_checkpoint(folder / model_type, model_type, **shape)
    write = graphs_of(load_checkpoint(source), source)
    made = {precision: folder / f"{model_type}-{precision}.onnx" for precision in PRECISIONS}
    for precision, target in made.items():
        write(precision, target)
    return made


def is_flat(model_type: str, precision: Precision) -> bool:
    """Whether the graph takes the tokens of all texts one after another."""
    return precision == "fp16" and model_type in FAMILY
