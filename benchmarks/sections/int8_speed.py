"""Compares our per-token int8 with fp32 and with ONNX Runtime's stock dynamic int8.

The checkpoints have real shapes and random weights. ``sentiment-export`` makes our graphs, and
sessions are opened as in the service. The stock model is ``quantize_dynamic`` (per channel) of the
exported graph, in a default session. All run in one process, in turns, on two runners with one
thread each.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnxruntime.quantization import QuantType, quantize_dynamic
from sentiment_export.checkpoint.checkpoint import load_checkpoint
from sentiment_export.graph.variants import export_graph, graphs_of
from sentiment_service.engine.model.bundle import Bundle
from sentiment_service.engine.model.device import CPU
from sentiment_service.engine.model.sessions import open_session

from benchmarks.ideal import on_threads
from benchmarks.random_checkpoint import random_checkpoint
from benchmarks.subject import Goal, Subject
from benchmarks.tables import Row

BASE = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
# Model type, and what its config.json has besides BASE. The size of the vocabulary changes the size
# of the files, but not the speed.
SHAPES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "RoBERTa-base": ("roberta", {"vocab_size": 50_265}),
    "XLM-RoBERTa-base": ("xlm-roberta", {"vocab_size": 250_002}),
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
RUNNERS = 2
# Tokens of a text, and texts in a batch.
BATCHES = ((8, 1), (32, 8), (128, 8))
SECONDS_PER_TURN = 0.5
FP32, STOCK, OURS = "our fp32", "stock int8", "our int8"
STOCK_UNFUSED = "stock, no SkipLayerNorm"
DEFAULT = "our int8, default session"

Sessions = dict[str, ort.InferenceSession]


def sessions(subject: Subject, checkpoint: Path | None, rounds: int) -> Iterator[Row | Goal]:
    """Compare the service's session with a default one of the same file, and with stock int8."""
    path = Bundle.open(subject.bundle).variant_path("int8")
    measured = {
        OURS: _as_served(path),
        DEFAULT: _default_session(path),
    }
    with tempfile.TemporaryDirectory() as directory:
        if checkpoint is not None:
            measured |= _stock(export_graph(load_checkpoint(checkpoint), Path(directory)))
        rates = _rates(measured, 32, 8, rounds)
    medians = {f"{name}, texts/s": statistics.median(found) for name, found in rates.items()}
    yield {"model": subject.name, **medians}
    for other, least in ((DEFAULT, 1.0), (STOCK, 1.05)):
        if other in rates:
            name = f"{subject.name}, 8 texts of 32 tokens: the service's session ÷ {other}"
            yield Goal.of_rounds(name, _ratios(rates[OURS], rates[other]), least)


def by_shape(
    rounds: int, shapes: Mapping[str, tuple[str, dict[str, Any]]] = SHAPES
) -> Iterator[Row]:
    """Texts per second of fp32, stock int8 and our int8, by shape, length and batch."""
    for shape, (model_type, config) in shapes.items():
        with tempfile.TemporaryDirectory() as directory:
            base = Path(directory)
            config = {**BASE, "vocab_size": 1000, **config}
            source = random_checkpoint(base / "checkpoint", model_type, **config)
            checkpoint = load_checkpoint(source)
            write, plain = graphs_of(checkpoint, base), export_graph(checkpoint, base)
            write("fp32", base / "fp32.onnx")
            write("int8", base / "int8.onnx")
            measured = {
                FP32: open_session(base / "fp32.onnx", CPU, threads=1),
                **_stock(plain),
                OURS: _as_served(base / "int8.onnx"),
            }
            for tokens, batch in BATCHES:
                rates = _rates(measured, tokens, batch, rounds)
                medians = {f"{name}, texts/s": statistics.median(r) for name, r in rates.items()}
                ratio = statistics.median(_ratios(rates[OURS], rates[STOCK]))
                what = {"shape": shape, "tokens a text": tokens, "texts a batch": batch}
                yield {**what, **medians, f"{OURS} ÷ {STOCK}": ratio}


def _stock(plain: Path) -> Sessions:
    """Quantize a graph with ONNX Runtime's dynamic quantization, into its directory."""
    stock = plain.with_name("stock.onnx")
    quantize_dynamic(plain, stock, per_channel=True, weight_type=QuantType.QInt8)
    unfused = _default_session(stock, ["SkipLayerNormFusion"])
    return {STOCK: _default_session(stock), STOCK_UNFUSED: unfused}


def _as_served(path: Path) -> ort.InferenceSession:
    return open_session(path, CPU, threads=1)


def _default_session(path: Path, disabled_optimizers: Sequence[str] = ()) -> ort.InferenceSession:
    """A session with default options, except for one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(
        path, options, providers=[CPU], disabled_optimizers=[*disabled_optimizers]
    )


def _rates(sessions: Sessions, tokens: int, batch: int, rounds: int) -> dict[str, list[float]]:
    """Texts per second of each session in each round, on texts of this length in full batches."""
    ids = np.random.default_rng(0).integers(5, 300, (batch, tokens))
    arrays = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "token_type_ids": np.zeros_like(ids),
    }
    rates: dict[str, list[float]] = {name: [] for name in sessions}
    for round_number in range(rounds + 1):
        for name, session in sessions.items():
            feeds = {node.name: arrays[node.name] for node in session.get_inputs()}
            rate = batch * _runs_per_second(partial(session.run, None, feeds))
            if round_number:  # the first round warms up
                rates[name].append(rate)
    return rates


def _ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(above, below, strict=True)]


def _runs_per_second(run: Callable[[], object]) -> float:
    runs, started = 0, time.perf_counter()

    def calls() -> Iterator[Callable[[], object]]:
        nonlocal runs
        while runs < RUNNERS or time.perf_counter() - started < SECONDS_PER_TURN:
            runs += 1
            yield run

    on_threads(RUNNERS, calls())
    return runs / (time.perf_counter() - started)
