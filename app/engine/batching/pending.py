"""A request between admission and answer: the results that came, and where its time went."""

import asyncio
import math
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from app.errors import ServiceError

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Answer(Generic[Result]):
    """What became of a request's items, in their order: an item that failed is its error.

    ``inference_seconds`` is the time in which at least one item was in a batch being computed,
    ``queue_seconds`` the rest of the time until the last was done: together they are all of it.
    """

    results: list[Result | ServiceError]
    queue_seconds: float
    inference_seconds: float


@dataclass(slots=True, eq=False)
class Computing:
    """The time in which a batch is computed."""

    started: float
    ended: float = math.inf


@dataclass(slots=True, eq=False)
class PendingRequest(Generic[Result]):
    """A request that waits for the results of its items, and what its time went into.

    It belongs to the event loop; only ``batches`` is appended to by the runners.
    """

    texts: int
    done: asyncio.Future[None]
    queued_at: float
    tag: object = None
    results: dict[int, Result | ServiceError] = field(default_factory=dict)
    batches: list[Computing] = field(default_factory=list)
    ended_at: float = 0.0

    def settle(self, index: int, result: Result | ServiceError, at: float) -> None:
        """Give an item its result, unless it has one: what comes first stands."""
        if self.done.done():
            return
        self.results.setdefault(index, result)
        self.ended_at = max(self.ended_at, at)
        if len(self.results) == self.texts:
            self.done.set_result(None)

    def fail_rest(self, error: ServiceError, at: float) -> None:
        """Give the error to the items that have no result."""
        for index in range(self.texts):
            self.settle(index, error, at)

    def answer(self) -> Answer[Result]:
        """The results in the order of the items; all must be there."""
        results = [self.results[index] for index in range(self.texts)]
        inference_seconds = self._inference_seconds()
        waited = self.ended_at - self.queued_at - inference_seconds
        return Answer(results, max(0.0, waited), inference_seconds)

    def _inference_seconds(self) -> float:
        """The time that the batches cover, once where they overlap."""
        seconds, covered = 0.0, self.queued_at
        for batch in sorted(self.batches, key=lambda batch: batch.started):
            # A batch may still run when its request has expired.
            ended = min(batch.ended, self.ended_at)
            seconds += max(0.0, ended - max(covered, batch.started))
            covered = max(covered, ended)
        return seconds
