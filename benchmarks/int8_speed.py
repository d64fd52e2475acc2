"""Compares our per-token int8 with fp32 and with ONNX Runtime's stock dynamic int8.

The checkpoints have the shapes of RoBERTa-base and XLM-RoBERTa-base and random weights.
``sentiment-export`` exports them, and sessions are opened as in the service. The stock model is
``quantize_dynamic`` (per channel) of Optimum's export (eager attention, constants folded), in a
default session. All run in one process, in turns, on two runners with one thread each.

    python -m benchmarks.int8_speed [--rounds N] [--layers N] [--model NAME]
"""

import argparse
import platform
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime as ort
from onnxruntime.quantization import QuantType, quantize_dynamic

from app.engine.machine.cpu import cpu_name, vector_flags
from app.engine.model.bundle import Bundle, Precision
from app.engine.model.device import CPU
from app.engine.model.session import int8_kernels, open_session
from benchmarks.random_checkpoint import random_checkpoint, timed_export
from benchmarks.subject import Goal, Subject
from benchmarks.tables import Row
from model_export.checkpoint.checkpoint import load_checkpoint
from model_export.graph.variants import export_graph

# Model type and size of the vocabulary; all else is the same.
SHAPES = {"RoBERTa-base": ("roberta", 50_265), "XLM-RoBERTa-base": ("xlm-roberta", 250_002)}
RUNNERS = 2
TOKENS = (8, 32, 128)
BATCHES = (1, 8)
SECONDS_PER_TURN = 0.5
FP32, STOCK, OURS = "our fp32", "stock int8", "our int8"
STOCK_UNFUSED = "stock, no SkipLayerNorm"
DEFAULT, OTHER_KERNELS = "our int8, default session", "our int8, U8U8 kernels"
WIDTH = len(STOCK_UNFUSED) + 3
TEXTS = 256  # the number of texts whose labels are compared

Sessions = dict[str, ort.InferenceSession]
Feeds = dict[str, np.ndarray]


def main() -> None:
    """Build the models, measure them in turns and print the tables."""
    parser = argparse.ArgumentParser(
        "benchmarks.int8_speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rounds", type=int, default=7, help="rounds of each comparison (default: %(default)s)"
    )
    parser.add_argument(
        "--layers", type=int, default=12, help="layers of the models (default: %(default)s)"
    )
    parser.add_argument("--model", choices=SHAPES, help="shape to measure (default: all)")
    options = parser.parse_args()
    print(conditions(options.rounds))
    for name in [options.model] if options.model else SHAPES:
        print(f"\n{name}'s shape, {options.layers} layers")
        with tempfile.TemporaryDirectory() as directory:
            sessions = _sessions(Path(directory), name, options.layers)
            _speed(sessions, options.rounds)
            _answers(sessions)


def _sessions(directory: Path, name: str, layers: int) -> Sessions:
    model_type, vocabulary = SHAPES[name]
    source = random_checkpoint(
        directory / "checkpoint", model_type, vocab_size=vocabulary, num_hidden_layers=layers
    )
    seconds, peak_gb = timed_export(source, directory / "bundle")
    bundle = Bundle.open(directory / "bundle")
    sizes = {name: variant.bytes for name, variant in bundle.manifest.variants.items()}
    print(
        f"exported in {seconds:.0f} s with at most {peak_gb:.1f} GB of memory: "
        f"fp32 {sizes['fp32'] / 1e6:.0f} MB, int8 {sizes['int8'] / 1e6:.0f} MB\n"
    )
    stock = _stock(source, directory)
    return {
        FP32: _as_served(bundle, "fp32"),
        STOCK: default_session(stock),
        STOCK_UNFUSED: default_session(stock, ["SkipLayerNormFusion"]),
        OURS: _as_served(bundle, "int8"),
    }


def _stock(checkpoint: Path, directory: Path) -> Path:
    """Quantize the checkpoint with ONNX Runtime's dynamic quantization, in the directory."""
    return stock_int8(export_graph(load_checkpoint(checkpoint), directory))


def stock_int8(plain: Path) -> Path:
    """Quantize a graph with ONNX Runtime's dynamic quantization, into its directory."""
    stock = plain.with_name("stock.onnx")
    quantize_dynamic(plain, stock, per_channel=True, weight_type=QuantType.QInt8)
    return stock


def _as_served(bundle: Bundle, precision: Precision) -> ort.InferenceSession:
    kernels = int8_kernels() if precision == "int8" else None
    return open_session(bundle.variant_path(precision), CPU, threads=1, kernels=kernels)


def default_session(path: Path, disabled_optimizers: Sequence[str] = ()) -> ort.InferenceSession:
    """A session with default options, except for one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(
        path, options, providers=[CPU], disabled_optimizers=[*disabled_optimizers]
    )


def sessions(subject: Subject, checkpoint: Path | None, rounds: int) -> Iterator[Row | Goal]:
    """Compare the service's session with a default one of the same file, and with stock int8."""
    bundle = Bundle.open(subject.bundle)
    path = bundle.variant_path("int8")
    measured = {
        OURS: _as_served(bundle, "int8"),
        DEFAULT: default_session(path),
        OTHER_KERNELS: open_session(path, CPU, threads=1, kernels="U8U8"),
    }
    with tempfile.TemporaryDirectory() as directory:
        if checkpoint is not None:
            stock = _stock(checkpoint, Path(directory))
            measured |= {
                STOCK: default_session(stock),
                STOCK_UNFUSED: default_session(stock, ["SkipLayerNormFusion"]),
            }
        rates = measure(measured, 32, 8, rounds)
    medians = {f"{name}, texts/s": statistics.median(found) for name, found in rates.items()}
    yield {"model": subject.name, **medians}
    for other, least in ((DEFAULT, 1.0), (STOCK, 1.05)):
        if other in rates:
            ratios = [a / b for a, b in zip(rates[OURS], rates[other], strict=True)]
            name = f"{subject.name}, 8 texts of 32 tokens: the service's session ÷ {other}"
            yield Goal.of_rounds(name, ratios, least)


def _speed(sessions: Sessions, rounds: int) -> None:
    """Print texts per second by length and batch. A ratio is the median of the rounds' ratios."""
    print(f"{'tokens x batch':>14}" + "".join(f"{name:>{WIDTH}}" for name in sessions))
    for tokens in TOKENS:
        for batch in BATCHES:
            rates = measure(sessions, tokens, batch, rounds)
            cells = []
            for figures in rates.values():
                pairs = zip(figures, rates[STOCK], strict=True)
                ratio = statistics.median(figure / stock for figure, stock in pairs)
                cells.append(f"{statistics.median(figures):.1f} {ratio:6.2f} x")
            print(f"{tokens:>9} x {batch:<2}" + "".join(f"{cell:>{WIDTH}}" for cell in cells))
    print("texts/s, and the ratio to stock int8")


def conditions(rounds: int) -> str:
    """Where, with what and how the figures are measured."""
    return (
        f"{datetime.now(UTC).date()}, {cpu_name()} {platform.machine()} ({vector_flags()}; int8 "
        f"kernels {int8_kernels()}), ONNX Runtime {ort.__version__}; {RUNNERS} runners x 1 thread, "
        f"median of {rounds} alternating rounds"
    )


def measure(sessions: Sessions, tokens: int, batch: int, rounds: int) -> dict[str, list[float]]:
    """Texts per second of each session in each round, on texts of this length in full batches."""
    ids = np.random.default_rng(0).integers(5, 300, (batch, tokens))
    rates: dict[str, list[float]] = {name: [] for name in sessions}
    for round_number in range(rounds + 1):
        for name, session in sessions.items():
            feeds = _feeds(session, ids, np.ones_like(ids))
            rate = batch * _runs_per_second(partial(session.run, None, feeds))
            if round_number:  # the first round warms up
                rates[name].append(rate)
    return rates


def _runs_per_second(run: Callable[[], object]) -> float:
    runs = [0] * RUNNERS
    started = time.perf_counter()

    def runner(index: int) -> None:
        while runs[index] == 0 or time.perf_counter() - started < SECONDS_PER_TURN:
            run()
            runs[index] += 1

    threads = [threading.Thread(target=runner, args=(index,)) for index in range(RUNNERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(runs) / (time.perf_counter() - started)


def _answers(sessions: Sessions) -> None:
    """Print how often labels agree with fp32, and how much a batch changes the logits."""
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
    return np.concatenate([session.run(None, _feeds(session, *one))[0] for one in _padded(batch)])


def _padded(batch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Ids and masks of the texts in padded batches of this size; always the same texts."""
    random = np.random.default_rng(1)
    texts = [random.integers(5, 300, random.integers(8, 65)) for _ in range(TEXTS)]
    for start in range(0, TEXTS, batch):
        chosen = texts[start : start + batch]
        ids = np.ones((len(chosen), max(map(len, chosen))), np.int64)  # 1 is the padding
        mask = np.zeros_like(ids)
        for row, text in enumerate(chosen):
            ids[row, : len(text)], mask[row, : len(text)] = text, 1
        yield ids, mask


def _feeds(session: ort.InferenceSession, ids: np.ndarray, mask: np.ndarray) -> Feeds:
    """The arrays that the model has inputs for."""
    all_inputs = {
        "input_ids": ids,
        "attention_mask": mask,
        "token_type_ids": np.zeros_like(ids),
    }
    return {node.name: all_inputs[node.name] for node in session.get_inputs()}


if __name__ == "__main__":
    main()
