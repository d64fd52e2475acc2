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


Gauge = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Gauges:
    """What a classifier is asked whenever its values are needed. Metrics have the same names."""

    queue_texts: Gauge
    queue_tokens: Gauge
    queue_wait_seconds: Gauge
    runners_stuck: Gauge
    device_lost: Gauge
    cache_bytes: Gauge
    model_ready: Gauge


class Observer(BatchObserver, Protocol):
    """Gets the reports of a classifier, and of the requests that it answers.

    All methods are called on the event loop, except ``batch``.
    """

    def watch(self, gauges: Gauges) -> None:
        """The model answers from now on. Its gauges replace those of an earlier one."""

    def tag(self) -> object:
        """A tag that links the reports of batches to the current request, or None."""

    def stages(self, stages: Mapping[str, float], *, begun_ns: int, tag: object) -> None:
        """The seconds of each of a request's ``STAGES``. If nothing was computed, two are 0.

        ``begun_ns`` is when the first stage began, as Unix time in nanoseconds.
        """

    def predictions(self, outcomes: Iterable[Outcome]) -> None:
        """Each text of a request got a prediction, or the error that takes its place."""

    def failure(self, error: BaseException, texts: int) -> None:
        """A request failed, so this many texts got no prediction."""

    def cache_lookup(self, hits: int, misses: int) -> None:
        """A request was looked up in the cache. Windows and sentences count as texts."""
