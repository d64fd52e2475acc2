"""Many batches, each of a shape that never was before: stalls, and memory that grows.

Under load, nearly every batch has a new shape. Other options than the service's are tried beside
them: another growth of the arena, and attention by cuDNN.
"""

import ctypes
import random
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from app.engine.machine.gpu import CUDA, LIBCUDA
from app.engine.model.bundle import Bundle
from app.engine.model.device import CPU, Device
from app.engine.model.model import INPUT_TYPES, SILENT
from app.engine.model.session import open_session
from app.engine.text.encoding import Ids
from benchmarks.tables import Row
from checks.gpu.models import precisions
from checks.gpu.setup import Setup

TOKENS = (4, 512)  # of the longest text in a batch
NEIGHBOURS = 20  # batches with nearly as many tokens as one, with which it is compared
GROWTH = 1.05  # by which memory may grow in the second half of the batches
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "as served": {},
    "arena grows as requested": {"arena_extend_strategy": "kSameAsRequested"},
    "attention chosen by ONNX Runtime": {"sdpa_kernel": "0"},
}


def run(setup: Setup) -> Iterator[Row]:
    """Compute the same shapes with each choice of options, with the first bundle.

    Raises:
        AssertionError: with the options of the service, memory grew until the end.
    """
    bundle = Bundle.open(setup.bundle(setup.shapes[0]))
    precision = precisions(bundle.path)[-1]
    served = Device((0,)).options(0) if setup.device == "cuda" else {}
    grown = {}
    for name, options in OPTIONS.items() if served else [("as served", {})]:
        provider = (CUDA, {"device_id": "0", **served, **options}) if served else CPU
        path = bundle.variant_path(precision)
        session = open_session(path, provider, threads=0, kernels=None)
        milliseconds, memory = _computed(session, setup)
        grown[name] = memory[-1] / memory[len(memory) // 2]
        yield {
            "precision": precision,
            "options": name,
            "shapes": len(milliseconds),
            "p50 ms": float(np.percentile(milliseconds, 50)),
            "p99 ms": float(np.percentile(milliseconds, 99)),
            "slowest ms": float(milliseconds.max()),
            "slowest, times others of its size": _slowest(milliseconds),
            "memory MB, first": memory[0] / 1e6,
            "half-way": memory[len(memory) // 2] / 1e6,
            "last": memory[-1] / 1e6,
        }
        del session  # the next one begins without their memory
    assert grown["as served"] <= GROWTH, f"memory grew by {grown['as served'] - 1:.0%} in the end"


def _computed(session: ort.InferenceSession, setup: Setup) -> tuple[NDArray[np.float64], list[int]]:
    """The milliseconds of each batch, smallest batch first, and the bytes in use after each."""
    found, memory = [], []
    for texts, tokens in _shapes(setup.size.new_shapes, setup.size.new_shape_tokens):
        started = time.perf_counter()
        session.run(None, _feeds(session, texts, tokens), SILENT)
        found.append((texts * tokens, (time.perf_counter() - started) * 1000))
        memory.append(_memory(setup))
    return np.array([milliseconds for _, milliseconds in sorted(found)]), memory


def _shapes(count: int, most: int) -> list[tuple[int, int]]:
    """Different numbers of texts and tokens, of at most ``most`` padded tokens, in random order."""
    generator = random.Random(0)
    shapes: dict[tuple[int, int], None] = {}
    while len(shapes) < count:
        tokens = generator.randint(TOKENS[0], min(TOKENS[1], most))
        shapes[generator.randint(1, most // tokens), tokens] = None
    return list(shapes)


def _feeds(session: ort.InferenceSession, texts: int, tokens: int) -> dict[str, Ids]:
    """The same token everywhere, and no padding."""
    return {
        node.name: np.full(
            (texts, tokens), int(node.name != "token_type_ids"), INPUT_TYPES[node.type]
        )
        for node in session.get_inputs()
    }


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
