"""Requests between admission and answer: their items, and the batches that compute these."""

import asyncio
import math
from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from app.engine.batching.fair_queue import Entry
from app.engine.batching.inference import BatchReport, Computed
from app.errors import OutOfMemory, ServiceError

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
class Computing:
    """When the computation of a batch started and ended."""

    started: float
    ended: float = math.inf


@dataclass(slots=True, eq=False)
class PendingRequest(Generic[Result]):
    """A request that waits for the results of its items, and the times of its batches.

    Only the event loop uses it, except that the runners append to ``batches``.
    """

    texts: int
    done: asyncio.Future[None]
    queued_at: float
    tag: object = None
    results: dict[int, Result | ServiceError] = field(default_factory=dict)
    batches: list[Computing] = field(default_factory=list)
    ended_at: float = 0.0

    def settle(self, index: int, result: Result | ServiceError, at: float) -> None:
        """Give an item its result. If it already has one, the first result stays."""
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
        """The results in the order of the items. Every item must have one."""
        results = [self.results[index] for index in range(self.texts)]
        inference_seconds = self._inference_seconds()
        waited = self.ended_at - self.queued_at - inference_seconds
        return Answer(results, max(0.0, waited), inference_seconds)

    def _inference_seconds(self) -> float:
        """The time that the batches cover. Time in which they overlap counts once."""
        seconds, covered = 0.0, self.queued_at
        batches = self.batches
        if len(batches) > 1:
            batches = sorted(batches, key=lambda batch: batch.started)
        for batch in batches:
            # A batch may still run when its request has expired.
            ended = min(batch.ended, self.ended_at)
            seconds += max(0.0, ended - max(covered, batch.started))
            covered = max(covered, ended)
        return seconds


@dataclass(slots=True, eq=False)
class QueuedItem(Entry, Generic[Item, Result]):
    """One item in the queue. ``index`` is the place of its result in the request."""

    item: Item
    request: PendingRequest[Result]
    index: int


Batch = Sequence[QueuedItem[Item, Result]]


def begin(batch: Batch[Item, Result], computing: Computing) -> list[Item]:
    """Tell the requests that the batch is computed; returns the items to compute."""
    for request in _requests(batch):
        request.batches.append(computing)
    return [queued.item for queued in batch]


def report_of(
    batch: Batch[Item, Result],
    computed: Computed[Result],
    computing: Computing,
) -> BatchReport:
    """The report of the batch."""
    lengths = [queued.tokens for queued in batch]
    return BatchReport(
        texts=len(batch),
        tokens=sum(lengths),
        padded_tokens=len(batch) * max(lengths),
        inference_seconds=computing.ended - computing.started,
        failed=sum(isinstance(result, ServiceError) for result in computed.results),
        tags=tuple(request.tag for request in _requests(batch) if request.tag is not None),
        retried=bool(computed.raised),
        out_of_memory=OutOfMemory in computed.raised,
    )


def settle(
    batch: Batch[Item, Result], results: Iterable[Result | ServiceError], done_at: float
) -> None:
    """On the event loop: give each request its results, one for each item of the batch."""
    for queued, result in zip(batch, results, strict=True):
        queued.request.settle(queued.index, result, done_at)


def tokens_of(batch: Batch[Item, Result]) -> int:
    """The number of tokens of the batch, without padding."""
    return sum(queued.tokens for queued in batch)


def _requests(batch: Batch[Item, Result]) -> Iterable[PendingRequest[Result]]:
    """The requests that have items in this batch, each once."""
    return {id(queued.request): queued.request for queued in batch}.values()
