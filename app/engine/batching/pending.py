"""Requests between admission and answer, and their items in the queue."""

import asyncio
import math
from collections.abc import Sequence, Sized
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from app.engine.batching.fair_queue import Entry
from app.errors import ServiceError

Item = TypeVar("Item", bound=Sized)
Result = TypeVar("Result")


@dataclass(slots=True)
class Answer(Generic[Result]):
    """The results of a request's items, in their order. A failed item has its error as result.

    ``inference_seconds`` is the time in which a batch with at least one of the items was computed.
    ``queue_seconds`` is the rest of the time until the last item was done.
    """

    results: list[Result | ServiceError]
    queue_seconds: float
    inference_seconds: float


@dataclass(slots=True, eq=False)
class ComputeTime:
    """When the computation of a batch started and ended."""

    started: float
    ended: float = math.inf


@dataclass(slots=True, eq=False)
class PendingRequest(Generic[Result]):
    """A request that waits for the results of its items, and the times of its batches.

    Only the event loop uses it, except that the runners append to ``batches``.
    """

    size: int  # number of items
    done: asyncio.Future[None]
    queued_at: float
    tag: object = None
    results: dict[int, Result | ServiceError] = field(default_factory=dict)
    batches: list[ComputeTime] = field(default_factory=list)
    ended_at: float = 0.0

    def settle(self, index: int, result: Result | ServiceError, at: float) -> None:
        """Give an item its result. If it already has one, the first result stays."""
        if self.done.done():
            return
        self.results.setdefault(index, result)
        self.ended_at = max(self.ended_at, at)
        if len(self.results) == self.size:
            self.done.set_result(None)

    def fail_rest(self, error: ServiceError, at: float) -> None:
        """Give the error to the items that have no result."""
        for index in range(self.size):
            self.settle(index, error, at)

    def answer(self) -> Answer[Result]:
        """The results in the order of the items. Every item must have one."""
        results = [self.results[index] for index in range(self.size)]
        # The time that the batches cover. Time in which they overlap counts once.
        seconds, covered = 0.0, self.queued_at
        for batch in sorted(self.batches, key=lambda batch: batch.started):
            # A batch may still run when its request has expired.
            ended = min(batch.ended, self.ended_at)
            seconds += max(0.0, ended - max(covered, batch.started))
            covered = max(covered, ended)
        return Answer(results, max(0.0, self.ended_at - self.queued_at - seconds), seconds)


@dataclass(slots=True, eq=False)
class QueuedItem(Entry, Generic[Item, Result]):
    """An item in the queue. ``index`` is the place of its result in the request."""

    item: Item
    request: PendingRequest[Result]
    index: int


Batch = Sequence[QueuedItem[Item, Result]]
