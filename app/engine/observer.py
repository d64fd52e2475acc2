"""The interface by which a classifier reports its work to metrics and traces.

The engine itself does not depend on metrics or traces.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from app.engine.batching.inference import BatchReport
from app.engine.predictions import Outcome

# The stages of a request in the engine, in their order.
STAGES = ("tokenize", "queue", "inference")


class Observer(Protocol):
    """Gets the reports of a classifier.

    All methods are called on the event loop, except ``batch``: a runner's thread calls it.
    """

    def watch(self, **gauges: Callable[[], float]) -> None:
        """The model answers from now on: call these functions whenever their values are needed.

        They are named like the metrics that have these values, and replace earlier ones.
        """

    def tag(self) -> object:
        """A tag that links the reports of batches to the current request, or None."""

    def stages(self, stages: Mapping[str, float], *, begun_ns: int, tag: object) -> None:
        """The seconds of each of a request's ``STAGES``. If nothing was computed, two are 0.

        ``begun_ns`` is when the first stage began, as Unix time in nanoseconds.
        """

    def predictions(self, outcomes: Iterable[Outcome]) -> None:
        """Each text got a prediction, or the error that takes its place."""

    def failure(self, error: BaseException, texts: int) -> None:
        """A request failed, so this many texts got no prediction."""

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
