"""ONNX Runtime sessions: options, feeds, errors, and one session on each of several GPUs."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from sentiment_service.engine.model.device import CPU, Provider
from sentiment_service.errors import DeviceLost, NoMemory, OutOfMemory, UserError, first_line

# That memory ran out, or the device was lost, is known only from the text of ONNX Runtime's
# exceptions, which share no base class. The texts are those of ONNX Runtime 1.31 (``cuda_call.cc``,
# ``bfc_arena.cc``), CUDA 13 (``cudaGetErrorString``), cuBLAS 13 and cuDNN 9.
_CUDA_FAILURE = re.compile(r"CUDA failure (\d+): ([^;\n]*[^;\s])")

# CUDA asks for a new process after 226, 7xx (without 709), 810 and 911. After the others, the GPU,
# its driver or a service of the driver is gone; 999 is also what a GPU that has fallen off the bus
# reports.
_LOST = {
    *(46, 100, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721),
    *(802, 805, 806, 810, 911, 999),
}

_NO_MEMORY = re.compile(
    r"CUDA failure 2: out of memory"
    # ONNX Runtime's arena, on the CPU as well: the device has no more; the arena's limit is
    # reached; what is free is in too small pieces.
    r"|Failed to allocate memory for requested buffer of size"
    r"|Available memory of \d+ is smaller than requested bytes"
    r"|Failed to find a free memory block despite calling Extend"
    r"|CUBLAS_STATUS_ALLOC_FAILED"
    r"|CUDNN_STATUS_INTERNAL_ERROR_(HOST|DEVICE)_ALLOCATION_FAILED"
    r"|std::bad_alloc|bad allocation"  # of GNU's and of Microsoft's C++ library
)


def device_error(error: Exception) -> OutOfMemory | DeviceLost | None:
    """What an exception of ``session.run`` says about the device; None if it says nothing."""
    text = str(error)
    failure = _CUDA_FAILURE.search(text)
    lost = failure is not None and int(failure[1]) in _LOST
    if lost or "DEVICE_RESET" in text:
        reason = f"CUDA error {failure[1]}: {failure[2]}" if failure and lost else "it was reset"
        return DeviceLost(
            f"the GPU cannot be used any more ({reason}); only a restart of the service helps"
        )
    if isinstance(error, MemoryError) or _NO_MEMORY.search(text):
        return OutOfMemory(
            "there is too little memory to compute this text; send a shorter text, or try again "
            "when there is less load"
        )
    return None


def loading_error(error: Exception, failure: str) -> UserError:
    """The error for the operator if a model cannot be loaded: the ``failure`` with the reason.

    It is ``NoMemory`` if the memory ran out. If the device is lost, it is that error alone.
    """
    known = device_error(error)
    if isinstance(known, DeviceLost):
        return known
    kind = NoMemory if isinstance(known, OutOfMemory) else UserError
    return kind(f"{failure}: {first_line(error)}")


# They have no padding, so texts of any lengths fit together. ``sentiment_export/graph/flat.py``
# makes them.
Integers = NDArray[np.int32]

# The operator of attention, for which ONNX Runtime has a kernel on CUDA only; and the function in
# the same file that computes the same in operators for every device. The names are equally long.
ATTENTION, REFERENCE = b"PackedMultiHeadAttention", b"PackedMultiHeadReference"
# Bytes at the start of a file that has its nodes before its weights.
NODES = 2**20
# In the graph's metadata: the padding id, which has no position where a text contains it
# (RoBERTa). Its own row in the table of positions has the same number.
POSITION_PADDING = "position_padding"


def for_cpu(path: Path) -> Path | bytes:
    """What a session on the CPU opens: the file, or a flat graph with the function in it."""
    with path.open("rb") as file:
        if ATTENTION not in file.read(NODES):
            return path
    return path.read_bytes().replace(ATTENTION, REFERENCE)


def flat_feeds(
    ids: Integers, lengths: Integers, typed: Integers, metadata: Mapping[str, str]
) -> dict[str, Integers]:
    """All inputs that a flat graph can have.

    ``ids`` [tokens] are those of all texts, which have ``lengths`` [texts] tokens. The last
    ``typed`` [texts] tokens of each have the type 1. ``metadata`` is that of the graph.
    """
    lengths_so_far = np.cumsum(lengths, dtype=np.int32)
    starts = lengths_so_far - lengths
    # BERT counts all tokens before one, from 0.
    padding, counted = -1, np.ones_like(ids)
    if POSITION_PADDING in metadata:
        padding = int(metadata[POSITION_PADDING])
        counted = (ids != padding).astype(np.int32)
    count = np.cumsum(counted, dtype=np.int32)
    before = np.repeat(count[starts] - counted[starts], lengths)
    # Where attention cannot do without padding: the padded place of each token, then the others.
    real = np.arange(lengths.max()) < lengths[:, np.newaxis]
    places = np.arange(real.size, dtype=np.int32).reshape(real.shape)
    return {
        "input_ids": ids,
        "token_type_ids": (
            np.arange(len(ids)) >= np.repeat(lengths_so_far - typed, lengths)
        ).astype(np.int32),
        "positions": (count - before) * counted + np.int32(padding),
        "token_offset": np.concatenate([places[real], places[~real]]).reshape(real.shape),
        "cumulative_lengths": np.concatenate([starts[:1], lengths_so_far]),
        "first_token": starts,
    }


# ONNX Runtime computes calls at the same time on separate streams (its PR #13495), so two threads
# keep a GPU busy: while one waits for its batch, the other prepares and copies the next.

# What ONNX Runtime writes to standard error, in colours, would stand between the lines of the
# service's log. Its errors are raised as well.
ort.set_default_logger_severity(4)

# Graph fusions that are slower on a CPU. SkipLayerNormalization takes ten times as long as the Add
# and LayerNormalization that it replaces. BiasGelu takes longer than Add and Gelu.
SLOW_ON_CPU = ["SkipLayerNormFusion", "BiasGeluFusion"]


def open_session(path: Path, provider: Provider, *, threads: int) -> ort.InferenceSession:
    """Open a session with ``threads`` intra-op threads (0: one per core)."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    # A spinning thread takes the core that the event loop needs.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    on_cpu = provider == CPU
    # Where the weights are that do not fit into the file, if its content is given instead.
    folder = "session.model_external_initializers_file_folder_path"
    options.add_session_config_entry(folder, str(path.parent))
    if not on_cpu:
        # A pattern holds the memory plan of one input shape. Nearly every batch has another shape,
        # and would add a pattern and a block of memory as large as the batch.
        options.enable_mem_pattern = False
        # Where fp32 drops padding, this node counts the tokens. On a GPU, the CPU would wait for
        # its result in the middle of a batch. On the CPU, it needs nothing but the mask.
        options.add_session_config_entry("session.name_based_layer_assignment", "cpu(NonZero)")
    try:
        session = ort.InferenceSession(
            for_cpu(path) if on_cpu else path,
            options,
            providers=[provider] if on_cpu else [provider, CPU],
            disabled_optimizers=SLOW_ON_CPU if on_cpu else None,
            # Raise an error that says why, instead of printing it and using the CPU.
            enable_fallback=False,
        )
    except Exception as error:  # onnxruntime's exceptions share no base class
        raise loading_error(error, f"ONNX Runtime cannot load {path}") from error
    name = provider if isinstance(provider, str) else provider[0]
    if session.get_providers()[0] != name:  # it can still fall back to the CPU silently
        raise UserError(
            f"ONNX Runtime does not use {name}; install the packages for GPUs again, or serve with "
            "--device cpu"
        )
    return session


@dataclass(slots=True, eq=False)
class _Replica:
    session: ort.InferenceSession
    running: int = 0  # batches
    begun: int = 0


class Replicas:
    """The sessions of one model. Each batch gets the least busy one, on any number of threads."""

    def __init__(self, sessions: Sequence[ort.InferenceSession]) -> None:
        self._replicas = [*map(_Replica, sessions)]
        self._lock = Lock()  # protects the replicas' attributes

    @contextmanager
    def session(self) -> Iterator[ort.InferenceSession]:
        """The session with the fewest batches, for one batch. Idle ones take turns."""
        with self._lock:
            replica = min(self._replicas, key=lambda replica: (replica.running, replica.begun))
            replica.running += 1
            replica.begun += 1
        try:
            yield replica.session
        finally:
            with self._lock:
                replica.running -= 1
