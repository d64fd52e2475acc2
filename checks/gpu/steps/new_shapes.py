"""Many batches, each of a shape that never was before: stalls, and memory that grows.

Under load, nearly every batch has a new shape.
"""

import ctypes
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sentiment_service.engine.model.device import LIBCUDA
from sentiment_service.engine.model.model import SILENT, Model
from sentiment_service.engine.text.text_tokenizer import Encoding

from benchmarks.tables import Row
from checks.gpu.models import load, precisions
from checks.gpu.setup import Setup

TOKENS = (4, 512)  # of the longest text in a batch
THREADS = 2  # as the service has runners for a GPU
NEIGHBOURS = 20  # batches with nearly as many tokens as one, with which it is compared
GROWTH = 1.05  # by which memory may grow in the second half of the batches


def run(setup: Setup) -> Iterator[Row]:
    """Compute the shapes with the bundle, in a session as it serves."""
    bundle = setup.bundle
    precision = precisions(bundle)[-1]
    milliseconds, memory = _computed(load(bundle, precision, setup.device), setup)
    half_way = memory[len(memory) // 2]
    yield {
        "precision": precision,
        "shapes": len(milliseconds),
        "p50 ms": float(np.percentile(milliseconds, 50)),
        "p99 ms": float(np.percentile(milliseconds, 99)),
        "slowest ms": float(milliseconds.max()),
        "slowest, times others of its size": _slowest(milliseconds),
        "memory MB, first": memory[0] / 1e6,
        "half-way": half_way / 1e6,
        "last": memory[-1] / 1e6,
    }
    grown = memory[-1] / half_way
    assert grown <= GROWTH, f"memory grew by {grown - 1:.0%} in the end"


def _computed(model: Model, setup: Setup) -> tuple[NDArray[np.float64], list[int]]:
    """The milliseconds of each batch, smallest batch first, and the bytes in use after each."""

    def compute(shape: tuple[int, int]) -> tuple[int, float, int]:
        texts, tokens = shape
        feeds = model.feeds([Encoding.of([1] * tokens)] * texts)
        started = time.perf_counter()
        model.session.run(None, feeds, SILENT)
        return texts * tokens, (time.perf_counter() - started) * 1000, _memory(setup)

    with ThreadPoolExecutor(THREADS) as pool:
        found = [*pool.map(compute, _shapes(setup.size.new_shapes, setup.size.new_shape_tokens))]
    milliseconds = [took for _, took, _ in sorted(found)]
    return np.array(milliseconds), [memory for _, _, memory in found]


def _shapes(count: int, most: int) -> list[tuple[int, int]]:
    """Different numbers of texts and tokens, of at most ``most`` padded tokens, in random order."""
    generator = random.Random(0)
    shapes: dict[tuple[int, int], None] = {}
    while len(shapes) < count:
        tokens = generator.randint(TOKENS[0], min(TOKENS[1], most))
        shapes[generator.randint(1, most // tokens), tokens] = None
    return list(shapes)


def _slowest(milliseconds: NDArray[np.float64]) -> float:
    """How many times as long as the median of its neighbours in size the slowest batch took."""
    around = np.lib.stride_tricks.sliding_window_view(milliseconds, 2 * NEIGHBOURS + 1)
    middle = milliseconds[NEIGHBOURS:-NEIGHBOURS]
    return float((middle / np.median(around, axis=1)).max())


def _memory(setup: Setup) -> int:
    """Bytes in use on the GPU, by all processes, or in this process."""
    if setup.device == "cpu":
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    # The GPU of the session is the current one of the thread that has just used it.
    free, total, cuda = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.CDLL(LIBCUDA)
    cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    return total.value - free.value
