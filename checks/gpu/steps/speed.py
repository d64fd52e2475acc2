"""The time of one batch in ONNX Runtime alone, and through the service's own model."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import onnxruntime as ort

from app.engine.model.model import Model
from app.engine.text.encoding import Encoding
from benchmarks.tables import Row
from checks.gpu.models import load, of_tokens, precisions
from checks.gpu.setup import Device, Setup

WARM_UPS = 3


def run(setup: Setup) -> Iterator[Row]:
    """Measure each shape, precision, length and number of texts."""
    for shape in setup.shapes:
        for precision in precisions(setup.bundle(shape)):
            model = load(setup.bundle(shape), precision, setup.device)
            for tokens in setup.size.tokens:
                for texts in setup.size.batches:
                    batch = of_tokens(model, tokens, texts)
                    bare = timed(bound(model, batch, setup.device), setup.size.cell_seconds)
                    served = timed(partial(model.infer, batch), setup.size.cell_seconds)
                    yield {
                        "shape": shape,
                        "precision": precision,
                        "tokens": tokens,
                        "texts": texts,
                        "ms": bare * 1000,
                        "texts/s": texts / bare,
                        "ms with copies": served * 1000,
                        "texts/s with copies": texts / served,
                    }


def bound(model: Model, batch: Sequence[Encoding], device: Device) -> Callable[[], object]:
    """A call that computes a batch whose inputs are on the device, and leaves the logits there."""
    session = model.session
    binding = session.io_binding()
    for name, array in model.feeds(batch).items():
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
