"""The time of a batch in ONNX Runtime alone, and texts/s through the service's own model."""

import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import onnxruntime as ort
from sentiment_service.engine.model.device import cuda_state
from sentiment_service.engine.model.model import Model
from sentiment_service.engine.text.text_tokenizer import Encoding

from benchmarks.tables import Row
from checks.gpu.models import load, of_tokens, precisions
from checks.gpu.setup import Device, Setup

WARM_UPS = 3
RUNNERS = (1, 2, 3)
# Dense fp16, TFLOP/s, from NVIDIA's data sheets.
PEAKS = {"H200": 989, "H100": 989, "A100": 312, "L40S": 362, "L4": 121, "T4": 65}


def run(setup: Setup) -> Iterator[Row]:
    """Measure the bundles' best precision, without padding and with it."""
    for path in setup.bundles:
        model = load(path, precisions(path)[-1], setup.device)
        for tokens in setup.size.tokens:
            for texts in setup.size.batches:
                if tokens * texts > setup.size.batch_tokens:
                    break
                batch = of_tokens(model, tokens, texts)
                yield {
                    "graph": f"{setup.size.name}, {'flat' if model.flat else 'padded'}",
                    "tokens": tokens,
                    "texts": texts,
                    **_cell(model, batch, operations(path, tokens), setup),
                }


def _cell(model: Model, batch: Sequence[Encoding], work: float, setup: Setup) -> Row:
    """What is measured of a batch; ``work`` is the operations of each text."""
    seconds = setup.size.cell_seconds
    bare = timed(bound(model.session, model.feeds(batch), setup.device), seconds)
    speeds = {runners: _texts_per_second(model, batch, runners, seconds) for runners in RUNNERS}
    row: Row = {"ms, inputs on the device": bare * 1000}
    row |= {f"texts/s, {runners} threads": speed for runners, speed in speeds.items()}
    row["TFLOP/s"] = max(*speeds.values(), len(batch) / bare) * work / 1e12
    if peak := _peak():
        row["share of peak"] = row["TFLOP/s"] / peak
    return row


def _texts_per_second(
    model: Model, batch: Sequence[Encoding], runners: int, seconds: float
) -> float:
    """With copies, as the service computes, on so many threads."""
    until = time.perf_counter() + seconds

    def compute(_: int) -> int:
        count = 0
        while not count or time.perf_counter() < until:
            model.infer(batch)
            count += 1
        return count

    started = time.perf_counter()
    with ThreadPoolExecutor(runners) as pool:
        batches = sum(pool.map(compute, range(runners)))
    return batches * len(batch) / (time.perf_counter() - started)


def operations(bundle: Path, tokens: int) -> float:
    """Of one text, in linear layers and attention.

    The last layer counts as a whole, though it is computed for the first token only.
    """
    config = json.loads((bundle / "config.json").read_text(encoding="utf-8"))
    width, inner = config.get("hidden_size", 0), config.get("intermediate_size", 0)
    linear = 2 * (4 * width * width + 2 * width * inner)
    each = linear + 4 * tokens * width
    return float(config.get("num_hidden_layers", 0) * tokens * each)


def _peak() -> float | None:
    gpus = cuda_state().gpus
    found = (peak for name, peak in PEAKS.items() if gpus and name in gpus[0].name)
    return next(found, None)


def bound(
    session: ort.InferenceSession, feeds: Mapping[str, Any], device: Device
) -> Callable[[], object]:
    """A call that computes a batch whose inputs are on the device, and leaves the logits there."""
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array, device, 0))
    for output in session.get_outputs():
        binding.bind_output(output.name, device)
    return lambda: session.run_with_iobinding(binding)


def timed(call: Callable[[], object], seconds: float) -> float:
    """The median seconds of a call, of as many calls as fit into ``seconds``, at least five."""
    for _ in range(WARM_UPS):
        call()
    found: list[float] = []
    end = time.perf_counter() + seconds
    while len(found) < 5 or time.perf_counter() < end:
        started = time.perf_counter()
        call()
        found.append(time.perf_counter() - started)
    return statistics.median(found)
