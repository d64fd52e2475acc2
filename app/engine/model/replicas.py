"""One model on several GPUs: a session on each, and each batch goes to the least busy one.

A session copies a batch's inputs to its GPU and the logits back. Buffers of our own, bound to the
session, would save little: the ids of 32,768 tokens are 0.3 MB. ONNX Runtime computes calls at the
same time on separate streams (its PR #13495), so two threads keep a GPU busy: while one waits for
its batch, the other prepares and copies the next.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

import onnxruntime as ort


@dataclass(slots=True, eq=False)
class _Replica:
    session: ort.InferenceSession
    running: int = 0  # batches
    begun: int = 0


class Replicas:
    """The sessions of one model. Any number of threads may use them."""

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
