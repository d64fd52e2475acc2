"""The interface by which a classifier reports its work to metrics and traces.

The engine itself does not depend on metrics or traces.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from sentiment_service.engine.batching.runners import BatchObserver
from sentiment_service.results import Outcome

# The stages of a request in the engine, in their order.
STAGES = ("tokenize", "queue", "inference")


@dataclass(frozen=True, slots=True)
class Gauges:
    """What a model has at the moment; each is called whenever its value is needed."""

    queue_texts: Callable[[], float]
    queue_tokens: Callable[[], float]
    queue_wait_seconds: Callable[[], float]
    runners_stuck: Callable[[], float]
    device_lost: Callable[[], float]
    cache_bytes: Callable[[], float]
    model_ready: Callable[[], float]


class Observer(BatchObserver, Protocol):
    """Gets the reports of a classifier.

    All methods are called on the event loop, except ``batch``.
    """

    def watch(self, gauges: Gauges) -> None:
        """The model answers from now on, and its gauges replace earlier ones."""

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
