"""Opens a graph on the CUDA provider as the service does, and computes batches of it.

    python -m checks.cuda.look GRAPH REPORT

Run by ``checks.cuda``, where NVIDIA's libraries are stand-ins. Writes what it saw into the file
REPORT, as JSON. What the provider says of itself goes to the standard files.
"""

import ctypes
import json
import os
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from sentiment_service.engine.model import sessions
from sentiment_service.engine.model.device import CUDA, Device
from sentiment_service.engine.model.sessions import device_error, flat_feeds

LARGEST, SHAPES, THREADS = 64, 500, 2
ROUNDS = 4  # each of so many SHAPES
ALLOCATIONS, KERNELS = 2, 700  # the faults of stand_ins/cudart.c
EVERYTHING, ERRORS = 0, 4  # of ONNX Runtime's log

CUDART = ctypes.CDLL("libcudart.so.13")
EVENTS = (ctypes.c_char * 2**16).in_dll(CUDART, "stand_in_events")
COUNT = ctypes.c_int.in_dll(CUDART, "stand_in_event_count")
BYTES = ctypes.c_long.in_dll(CUDART, "stand_in_bytes")
FAULT = Path(os.environ["STAND_IN_FAULT"])
COARSE = ctypes.c_int.in_dll(ctypes.CDLL("libcublas.so.13"), "stand_in_coarse_products")


def look(graph: Path) -> dict[str, Any]:
    """What a batch asks of CUDA, whether memory grows, and which errors faults end in."""
    ort.set_default_logger_severity(EVERYTHING)
    (provider,) = Device.of("cuda").providers(0)
    session = sessions.open_session(graph, provider, threads=1)
    ort.set_default_logger_severity(ERRORS)
    silent = ort.RunOptions()
    silent.log_severity_level = ERRORS

    def compute(lengths: list[int]) -> None:
        session.run(None, _feeds(session, lengths), silent)

    def fault(kind: int, lengths: list[int]) -> str:
        FAULT.write_text(str(kind))
        try:
            compute(lengths)
        except Exception as error:
            return type(device_error(error)).__name__
        finally:
            FAULT.write_text("")
        return "none"

    wanted, taken = Device.of("cuda").options(0), session.get_provider_options()[CUDA]
    batch = [32, 20, 25, 7]
    compute(batch)
    COUNT.value = 0
    compute(batch)
    events = EVENTS.raw[: COUNT.value].decode()
    generator = random.Random(0)
    grown = []
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(compute, [[64] * LARGEST] * 40))  # so many that two meet, on a busy machine
        for _ in range(ROUNDS):
            shapes = [
                [generator.randint(3, 64) for _ in range(generator.randint(1, LARGEST))]
                for _ in range(SHAPES)
            ]
            before = BYTES.value
            list(pool.map(compute, shapes))
            grown.append(BYTES.value - before)
    return {
        "events": events,
        "coarse": COARSE.value,
        # An option that it does not know is refused; of some, it does not say the value.
        "not_taken": [name for name, value in wanted.items() if taken.get(name, value) != value],
        # When two large batches first meet, they may need another block, in one of the rounds. If
        # new shapes need memory, it grows in several.
        "grown": sorted(grown)[-2],
        "out_of_memory": fault(ALLOCATIONS, [512] * 4 * LARGEST),
        "illegal_address": fault(KERNELS, batch),
    }


def _feeds(session: ort.InferenceSession, lengths: list[int]) -> dict[str, np.ndarray]:
    """A batch of texts of so many tokens, for a flat graph or for one with padding."""
    count = np.array(lengths, np.int32)
    names = [node.name for node in session.get_inputs()]
    if "token_offset" in names:
        metadata = session.get_modelmeta().custom_metadata_map
        feeds: dict[str, np.ndarray] = {
            **flat_feeds(np.full(count.sum(), 5, np.int32), count, 0 * count, metadata)
        }
    else:
        real = (np.arange(count.max()) < count[:, np.newaxis]).astype(np.int64)
        feeds = {"input_ids": 5 * real, "attention_mask": real, "token_type_ids": 0 * real}
    return {name: feeds[name] for name in names}


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(look(Path(sys.argv[1]))))
