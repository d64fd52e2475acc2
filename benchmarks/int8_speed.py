"""Throughput of our per-token int8 beside fp32 and ONNX Runtime's stock dynamic int8.

A RoBERTa-base-shaped checkpoint with random weights is exported by ``sentiment-export``'s own
code; the stock model is ``quantize_dynamic`` (per channel) of Optimum's export (eager attention,
constants folded), in a default session. All run in one process, in turns, on two runners of
one thread each, batches of 8 texts of 32 tokens.

    python -m benchmarks.int8_speed [--rounds N] [--layers N]
"""

import argparse
import platform
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from tokenizers import ByteLevelBPETokenizer
from transformers import RobertaConfig, RobertaForSequenceClassification, RobertaTokenizerFast

from app.bundle import Bundle
from app.model import SLOW_ON_CPU
from model_export.checkpoint import Checkpoint, load_checkpoint
from model_export.export import export
from model_export.onnx_graph import export_graph

RUNNERS = 2
BATCH, TOKENS = 8, 32
SECONDS_PER_TURN = 1.0
REFERENCE = "stock dynamic int8, per channel"


def main() -> None:
    """Build the models, measure them in turns and print the table."""
    parser = argparse.ArgumentParser("benchmarks.int8_speed", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="(default: %(default)s)")
    parser.add_argument("--layers", type=int, default=12, help="(default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        sessions = _sessions(Path(directory), options.layers)
        results = _measure(sessions, options.rounds)
    _print(results)


def _sessions(directory: Path, layers: int) -> dict[str, ort.InferenceSession]:
    checkpoint = _random_checkpoint(directory / "checkpoint", layers)
    export(checkpoint, directory / "bundle")
    bundle = Bundle.open(directory / "bundle")
    size = bundle.manifest.variants["int8"].bytes
    print(f"our int8 file: {size / 1e6:.1f} MB\n")

    plain, stock = export_graph(checkpoint, directory), directory / "stock.onnx"
    quantize_dynamic(plain, stock, per_channel=True, weight_type=QuantType.QInt8)
    return {
        REFERENCE: _open(stock, []),
        "the same without SkipLayerNormFusion": _open(stock, ["SkipLayerNormFusion"]),
        "fp32, Optimum's export": _open(plain, []),
        "our fp32": _open(bundle.variant_path("fp32"), SLOW_ON_CPU),
        "our int8": _open(bundle.variant_path("int8"), SLOW_ON_CPU),
    }


def _random_checkpoint(path: Path, layers: int) -> Checkpoint:
    """RoBERTa-base's shape with random weights, and a byte-level tokenizer of no merges."""
    path.mkdir()
    tokenizer = ByteLevelBPETokenizer()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer.train_from_iterator([], vocab_size=300, special_tokens=specials)
    tokenizer.save_model(str(path))
    RobertaTokenizerFast.from_pretrained(path).save_pretrained(path)
    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=50_265,
        max_position_embeddings=514,
        type_vocab_size=1,
        num_labels=3,
        num_hidden_layers=layers,
    )
    RobertaForSequenceClassification(config).save_pretrained(path)
    return load_checkpoint(path)


def _open(path: Path, disabled_optimizers: list[str]) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(
        path,
        options,
        providers=["CPUExecutionProvider"],
        disabled_optimizers=disabled_optimizers,
    )


def _measure(sessions: dict[str, ort.InferenceSession], rounds: int) -> dict[str, list[float]]:
    """Texts per second of each session, one figure a round; rounds alternate the sessions."""
    ids = np.random.default_rng(0).integers(5, 300, (BATCH, TOKENS))
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    results: dict[str, list[float]] = {name: [] for name in sessions}
    for round_number in range(rounds + 1):
        for name, session in sessions.items():
            rate = _texts_per_second(partial(session.run, None, feeds))
            if round_number:  # the first round warms up
                results[name].append(rate)
    return results


def _texts_per_second(run: Callable[[], object]) -> float:
    batches = [0] * RUNNERS
    started = time.perf_counter()

    def runner(index: int) -> None:
        while time.perf_counter() - started < SECONDS_PER_TURN:
            run()
            batches[index] += 1

    threads = [threading.Thread(target=runner, args=(index,)) for index in range(RUNNERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(batches) * BATCH / (time.perf_counter() - started)


def _print(results: dict[str, list[float]]) -> None:
    rounds = len(results[REFERENCE])
    print(
        f"{datetime.now(UTC).date()}, {platform.machine()}, ONNX Runtime {ort.__version__}; "
        f"{RUNNERS} runners x 1 thread, batch {BATCH} x {TOKENS} tokens, "
        f"median of {rounds} alternating rounds\n"
    )
    fp32 = results["fp32, Optimum's export"]
    print(f"{'':40}{'texts/s':>9}{'x stock int8':>14}{'x fp32':>9}")
    for name, rates in results.items():
        to_stock = statistics.median(a / b for a, b in zip(rates, results[REFERENCE], strict=True))
        to_fp32 = statistics.median(a / b for a, b in zip(rates, fp32, strict=True))
        print(f"{name:40}{statistics.median(rates):9.1f}{to_stock:14.2f}{to_fp32:9.2f}")


if __name__ == "__main__":
    main()
