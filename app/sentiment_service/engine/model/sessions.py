"""ONNX Runtime sessions: their options, and one session on each of several GPUs.

A session copies a batch's inputs to its GPU and the logits back. Buffers of our own, bound to the
session, would save little: the ids of 32,768 tokens are 0.3 MB. ONNX Runtime computes calls at the
same time on separate streams (its PR #13495), so two threads keep a GPU busy: while one waits for
its batch, the other prepares and copies the next.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import onnxruntime as ort

from sentiment_service.engine.model.device import CPU, Provider
from sentiment_service.engine.model.device_errors import loading_error
from sentiment_service.engine.model.flat import for_cpu
from sentiment_service.errors import UserError

# What ONNX Runtime writes to standard error, in colours, would stand between the lines of the
# service's log. Its errors are raised as well.
ort.set_default_logger_severity(4)

# Graph fusions that are slower on a CPU. SkipLayerNormalization takes ten times as long as the Add
# and LayerNormalization that it replaces. BiasGelu takes longer than Add and Gelu.
SLOW_ON_CPU = ["SkipLayerNormFusion", "BiasGeluFusion"]


def open_session(path: Path, provider: Provider, *, threads: int) -> ort.InferenceSession:
    """Open a session with ``threads`` intra-op threads (0: one per core).

    Raises:
        UserError: the file cannot be loaded, or the provider cannot be used (``DeviceLost``: not
            in this process).
    """
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
