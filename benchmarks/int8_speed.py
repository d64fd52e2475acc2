"""Throughput of our per-token int8 beside fp32 and ONNX Runtime's stock dynamic int8.

Checkpoints of RoBERTa-base's and XLM-RoBERTa-base's shape with random weights are exported by
the real command. The stock model is ``quantize_dynamic`` (per channel) of Optimum's export
(eager attention, constants folded), in a default session. All run in one process, in turns,
on two runners of one thread each.

    python -m benchmarks.int8_speed [--rounds N] [--layers N] [--model NAME]
"""

import argparse
import platform
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime as ort
from onnxruntime.quantization import QuantType, quantize_dynamic

from app.bundle import Bundle
from app.session import SLOW_ON_CPU
from benchmarks.random_checkpoint import SHAPES, random_checkpoint, timed_export
from model_export.checkpoint import load_checkpoint
from model_export.onnx_graph import export_graph

RUNNERS = 2
TOKENS = (8, 32, 128)
BATCHES = (1, 8)
SECONDS_PER_TURN = 0.5
FP32, STOCK, OURS = "our fp32", "stock int8", "our int8"
STOCK_UNFUSED = "stock, no SkipLayerNorm"
WIDTH = len(STOCK_UNFUSED) + 3
TEXTS = 256  # whose labels are compared

Sessions = dict[str, ort.InferenceSession]
Feeds = dict[str, np.ndarray]


def main() -> None:
    """Build the models, measure them in turns and print the tables."""
    parser = argparse.ArgumentParser(
        "benchmarks.int8_speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=7, help="(default: %(default)s)")
    parser.add_argument("--layers", type=int, default=12, help="(default: %(default)s)")
    parser.add_argument("--model", choices=SHAPES, help="(default: all)")
    options = parser.parse_args()
    print(
        f"{datetime.now(UTC).date()}, {platform.machine()}, ONNX Runtime {ort.__version__}; "
        f"{RUNNERS} runners x 1 thread, median of {options.rounds} alternating rounds"
    )
    for name in [options.model] if options.model else SHAPES:
        print(f"\n{name}'s shape, {options.layers} layers")
        with tempfile.TemporaryDirectory() as directory:
            sessions = _sessions(Path(directory), name, options.layers)
            _speed(sessions, options.rounds)
            _answers(sessions)


def _sessions(directory: Path, name: str, layers: int) -> Sessions:
    source = random_checkpoint(directory / "checkpoint", name, layers)
    seconds, peak_gb = timed_export(source, directory / "bundle")
    bundle = Bundle.open(directory / "bundle")
    sizes = {name: variant.bytes for name, variant in bundle.manifest.variants.items()}
    print(
        f"exported in {seconds:.0f} s with at most {peak_gb:.1f} GB of memory: "
        f"fp32 {sizes['fp32'] / 1e6:.0f} MB, int8 {sizes['int8'] / 1e6:.0f} MB\n"
    )
    plain, stock = export_graph(load_checkpoint(source), directory), directory / "stock.onnx"
    quantize_dynamic(plain, stock, per_channel=True, weight_type=QuantType.QInt8)
    return {
        FP32: _open(bundle.variant_path("fp32"), SLOW_ON_CPU),
        STOCK: _open(stock, []),
        STOCK_UNFUSED: _open(stock, ["SkipLayerNormFusion"]),
        OURS: _open(bundle.variant_path("int8"), SLOW_ON_CPU),
    }


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


def _speed(sessions: Sessions, rounds: int) -> None:
    """Texts a second by length and batch; the ratios are medians of each round's."""
    print(f"{'tokens x batch':>14}" + "".join(f"{name:>{WIDTH}}" for name in sessions))
    for tokens in TOKENS:
        for batch in BATCHES:
            rates = _measure(sessions, tokens, batch, rounds)
            cells = []
            for figures in rates.values():
                pairs = zip(figures, rates[STOCK], strict=True)
                ratio = statistics.median(figure / stock for figure, stock in pairs)
                cells.append(f"{statistics.median(figures):.1f} {ratio:6.2f} x")
            print(f"{tokens:>9} x {batch:<2}" + "".join(f"{cell:>{WIDTH}}" for cell in cells))
    print("texts/s, and how many times stock int8's")


def _measure(sessions: Sessions, tokens: int, batch: int, rounds: int) -> dict[str, list[float]]:
    ids = np.random.default_rng(0).integers(5, 300, (batch, tokens))
    rates: dict[str, list[float]] = {name: [] for name in sessions}
    for round_number in range(rounds + 1):
        for name, session in sessions.items():
            rate = batch * _runs_per_second(partial(session.run, None, _feeds(ids)))
            if round_number:  # the first round warms up
                rates[name].append(rate)
    return rates


def _runs_per_second(run: Callable[[], object]) -> float:
    runs = [0] * RUNNERS
    started = time.perf_counter()

    def runner(index: int) -> None:
        while time.perf_counter() - started < SECONDS_PER_TURN:
            run()
            runs[index] += 1

    threads = [threading.Thread(target=runner, args=(index,)) for index in range(RUNNERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(runs) / (time.perf_counter() - started)


def _answers(sessions: Sessions) -> None:
    """How often the labels are fp32's, and what the company in a batch changes."""
    alone = {name: _logits(session, 1) for name, session in sessions.items()}
    print(f"\n{TEXTS} texts of 8 to 64 tokens")
    for name in (STOCK, OURS):
        batched = _logits(sessions[name], 8)
        agreement = (batched.argmax(1) == alone[FP32].argmax(1)).mean()
        error = np.abs(batched - alone[FP32]).mean()
        moved = np.abs(batched - alone[name]).max()
        print(
            f"{name:>12}: labels agree with fp32 on {agreement:.1%}, logits are {error:.2g} off "
            f"on average; alone and in a batch of 8 they differ by up to {moved:.2g}"
        )


def _logits(session: ort.InferenceSession, batch: int) -> np.ndarray:
    return np.concatenate([session.run(None, feeds)[0] for feeds in _padded(batch)])


def _padded(batch: int) -> Iterator[Feeds]:
    """The same texts, in padded batches of this size."""
    random = np.random.default_rng(1)
    texts = [random.integers(5, 300, random.integers(8, 65)) for _ in range(TEXTS)]
    for start in range(0, TEXTS, batch):
        chosen = texts[start : start + batch]
        ids = np.ones((len(chosen), max(map(len, chosen))), np.int64)  # 1 is the padding
        mask = np.zeros_like(ids)
        for row, text in enumerate(chosen):
            ids[row, : len(text)], mask[row, : len(text)] = text, 1
        yield _feeds(ids, mask)


def _feeds(ids: np.ndarray, mask: np.ndarray | None = None) -> Feeds:
    return {"input_ids": ids, "attention_mask": np.ones_like(ids) if mask is None else mask}


if __name__ == "__main__":
    main()
