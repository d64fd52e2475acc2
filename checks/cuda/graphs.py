"""Graphs of 12 layers for GPUs, of every architecture, with random weights."""

from pathlib import Path

from benchmarks.random_checkpoint import random_checkpoint
from model_export.checkpoint.architectures import ARCHITECTURES
from model_export.checkpoint.checkpoint import load_checkpoint
from model_export.graph.variants import export_graph, write_fp16

# As wide a head as models have: the choice of the kernel depends on it.
SHAPE = {
    "hidden_size": 128,
    "num_attention_heads": 2,
    "intermediate_size": 256,
    "num_hidden_layers": 12,
    "vocab_size": 400,
}
DISTILBERTS = {"dim": 128, "n_heads": 2, "hidden_dim": 256, "n_layers": 12, "vocab_size": 400}


def make(folder: Path, model_type: str) -> Path:
    """Export the fp16 graph of an architecture of the table."""
    shape = DISTILBERTS if model_type == "distilbert" else SHAPE
    source = random_checkpoint(folder / model_type, model_type, **shape)
    plain = export_graph(load_checkpoint(source), source)
    target = folder / f"{model_type}.onnx"
    write_fp16(plain, target)
    return target


def is_flat(model_type: str) -> bool:
    """Whether the graph has no padding."""
    return ARCHITECTURES[model_type].layers
