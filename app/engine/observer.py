"""The interface by which a classifier reports its work to metrics and traces.

The engine itself does not depend on metrics or traces.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from app.engine.batching.inference import BatchReport
from app.engine.predictions import Outcome
from app.errors import ClientDisconnected, ServiceError

# The stages of a request in the engine, in their order.
STAGES = ("tokenize", "queue", "inference")


class Observer(Protocol):
    """Gets the reports of a classifier.

    All methods are called on the event loop, except ``batch``: a runner's thread calls it.
    """

    def watch(self, **gauges: Callable[[], float]) -> None:
        """Keep these functions, and call them whenever their values are needed.

        They are named like the metrics that have these values.
        """

    def tag(self) -> object:
        """A tag that links the reports of batches to the current request, or None."""

    def stages(self, stages: Mapping[str, float], *, begun_ns: int, tag: object) -> None:
        """The seconds of each of a request's ``STAGES``. If nothing was computed, two are 0.

        ``begun_ns`` is when the first stage began, as Unix time in nanoseconds.
        """

    def predictions(self, outcomes: Iterable[Outcome]) -> None:
        """Each text got a prediction, or the error that takes its place."""

    def failure(self, outcome: str, texts: int = 1) -> None:
        """This many texts got no prediction. ``outcome`` is the code of the error."""

    def rejection(self, reason: str) -> None:
        """A request was not admitted."""

    def cache_lookup(self, hits: int, misses: int) -> None:
        """A request was looked up in the cache. Windows and sentences count as texts."""

    def lag(self, seconds: float) -> None:
        """The results of a batch waited this many seconds for the event loop."""

    def runner_lost(self) -> None:
        """A runner's thread was lost and will be replaced."""

    def batch_stalled(self) -> None:
        """A batch takes far longer than predicted."""

    def batch(self, report: BatchReport) -> None:
        """A batch is done."""


class CountingFailures:
    """A context that counts so many failed texts if it raises an error or is cancelled."""

    # A class, because contextlib's generator takes several times as long.
    __slots__ = ("_observer", "_texts")

    def __init__(self, observer: Observer, texts: int) -> None:
        self._observer, self._texts = observer, texts

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ServiceError):
            self._observer.failure(error.code, self._texts)
            if error.rejection:
                self._observer.rejection(error.rejection)
        elif isinstance(error, asyncio.CancelledError):
            self._observer.failure(ClientDisconnected.code, self._texts)
