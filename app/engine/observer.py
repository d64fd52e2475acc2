"""What a classifier tells of its work, for metrics and traces; the engine knows neither."""

from collections.abc import Callable, Sequence
from typing import Protocol

from app.engine.batching.report import BatchReport


class Observer(Protocol):
    """Called on the event loop, but ``batch``, which a runner's thread calls."""

    def watch(
        self,
        *,
        queue_texts: Callable[[], float],
        queue_tokens: Callable[[], float],
        runners_stuck: Callable[[], float],
        ready: Callable[[], float],
    ) -> None:
        """Ask these for what changes by itself."""

    def tag(self) -> object:
        """What links the reports of batches to the current request, or None."""

    def stages(self, stages: Sequence[tuple[str, float]], *, begun_ns: int, tag: object) -> None:
        """The stages of a request, in their order and in seconds; Unix time in nanoseconds."""

    def prediction(self, label: str, score: float, *, tokens: int, truncated: bool) -> None:
        """A text was answered."""

    def failure(self, outcome: str, texts: int = 1) -> None:
        """Texts were not answered; ``outcome`` is an error's code."""

    def rejection(self, reason: str) -> None:
        """A request was not admitted."""

    def lag(self, seconds: float) -> None:
        """Finished work waited so long for the event loop."""

    def runner_lost(self) -> None:
        """A runner's thread ended and is to be replaced."""

    def batch(self, report: BatchReport) -> None:
        """A batch is done."""
