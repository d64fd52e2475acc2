"""Compares fp32, stock dynamic int8 and our int8 for five shapes of checkpoints.

The weights are random, and the vocabularies have 1,000 rows: that changes the size of the files,
but not the speed. The graphs are those of ``sentiment-export``, in sessions as in the service. The
stock model is ``quantize_dynamic`` (per channel) of the exported graph, in a default session.
All three run in turns, with 8 texts of 32 tokens in a batch, on two runners with one thread each.

    python -m benchmarks.architectures [--rounds N] [--model NAME]
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from app.engine.model.device import CPU
from app.engine.model.session import int8_kernels, open_session
from benchmarks.int8_speed import conditions, default_session, measure, stock_int8
from benchmarks.random_checkpoint import random_checkpoint
from model_export.checkpoint.checkpoint import load_checkpoint
from model_export.graph.variants import export_graph, write_fp32, write_int8

TOKENS, BATCH = 32, 8
BASE = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
# Model type, and what its config.json has besides BASE.
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "distilroberta-base": ("roberta", {"num_hidden_layers": 6}),
    "camembert-base": ("camembert", {"num_hidden_layers": 12}),
    "deberta-v3-small": (
        "deberta-v2",
        {
            "num_hidden_layers": 6,
            "max_position_embeddings": 512,
            "type_vocab_size": 0,
            "relative_attention": True,
            "max_relative_positions": -1,
            "position_buckets": 256,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "pos_att_type": ["p2c", "c2p"],
            "position_biased_input": False,
            "pooler_hidden_size": 768,
        },
    ),
    "modernbert-base": (
        "modernbert",
        {
            "num_hidden_layers": 22,
            "intermediate_size": 1152,
            "max_position_embeddings": 8192,
            "global_attn_every_n_layers": 3,
            "local_attention": 128,
            "classifier_pooling": "mean",
            "pad_token_id": 1,
            "bos_token_id": 0,
            "cls_token_id": 0,
            "eos_token_id": 2,
            "sep_token_id": 2,
        },
    ),
    "bertweet-base": ("roberta", {"num_hidden_layers": 12, "max_position_embeddings": 130}),
}


def main() -> None:
    """Build the models one after another, measure each and print the table."""
    parser = argparse.ArgumentParser(
        "benchmarks.architectures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rounds", type=int, default=7, help="rounds of each comparison (default: %(default)s)"
    )
    parser.add_argument("--model", choices=SHAPES, help="shape to measure (default: all)")
    options = parser.parse_args()
    print(conditions(options.rounds), "\n")
    print("| shape | fp32 | stock int8 | our int8 | our int8 ÷ stock int8 |")
    print("| --- | --- | --- | --- | --- |")
    for name in [options.model] if options.model else SHAPES:
        model_type, config = SHAPES[name]
        fp32, stock, ours = speeds(model_type, BASE | {"vocab_size": 1000} | config, options.rounds)
        ratio = statistics.median(a / b for a, b in zip(ours, stock, strict=True))
        medians = " | ".join(f"{statistics.median(rates):.0f}" for rates in (fp32, stock, ours))
        print(f"| {name} | {medians} | {ratio:.2f} |", flush=True)


def speeds(model_type: str, config: dict[str, Any], rounds: int) -> list[list[float]]:
    """Texts per second in each round: of our fp32, of stock int8, and of our int8."""
    with tempfile.TemporaryDirectory() as directory:
        base = Path(directory)
        source = random_checkpoint(base / "checkpoint", model_type, **config)
        plain = export_graph(load_checkpoint(source), base)
        write_fp32(plain, base / "fp32.onnx")
        write_int8(plain, base / "int8.onnx")
        sessions = {
            "fp32": open_session(base / "fp32.onnx", CPU, threads=1, kernels=None),
            "stock": default_session(stock_int8(plain)),
            "ours": open_session(base / "int8.onnx", CPU, threads=1, kernels=int8_kernels()),
        }
        return list(measure(sessions, TOKENS, BATCH, rounds).values())


if __name__ == "__main__":
    main()
