"""Requests and their items, and the batches in which these are computed.

If a batch fails, it is computed again in parts, so that only bad items fail.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from app.engine.batching.budget import TokenBudget
from app.engine.batching.fair_queue import Entry
from app.errors import (
    DeviceLost,
    InferenceFailed,
    NotReady,
    OutOfMemory,
    ServiceError,
    first_line,
)

Item = TypeVar("Item", bound=Sized)
Result = TypeVar("Result")

logger = logging.getLogger(__name__)


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


@dataclass(slots=True)
class BatchReport:
    """What one batch contained, and how long it took."""

    texts: int
    tokens: int
    padded_tokens: int  # with padding, if the model computes it
    inference_seconds: float
    failed: int  # number of texts that failed
    tags: tuple[object, ...] = ()  # of the requests in the batch
    retried: bool = False  # whether it was computed again in parts, after an error
    out_of_memory: bool = False  # whether memory ran out


class BatchObserver(Protocol):
    """Gets the reports of a batcher, on its event loop unless they say otherwise."""

    def batch(self, report: BatchReport) -> None:
        """A batch is done. Its runner's thread calls this before the results are delivered."""

    def lag(self, seconds: float) -> None:
        """The results of a batch waited this many seconds for the event loop."""

    def runner_lost(self) -> None:
        """A runner failed outside of inference, and goes on."""

    def batch_stalled(self) -> None:
        """A batch takes far longer than predicted."""


def tokens_taken(budget: TokenBudget, lengths: Sequence[int]) -> int:
    """The tokens that texts of these lengths take of the budget, as one batch."""
    return sum(lengths) if budget.max_padding is None else len(lengths) * max(lengths)


def out_of_memory(items: Sequence[Sized], budget: TokenBudget, error: OutOfMemory) -> None:
    """Lower the budget if memory ran out for several items; one long item may go alone."""
    tokens = tokens_taken(budget, [*map(len, items)])
    reason = first_line(error.__cause__ or error)
    if len(items) > 1:
        budget.lower(tokens, reason)
    else:
        logger.error("the memory ran out for a single text of %d tokens: %s", tokens, reason)


def infer_each(
    infer: Callable[[Sequence[Item]], Sequence[Result | ServiceError]],
    items: Sequence[Item],
    *,
    on_failure: Callable[[Sequence[Item], BaseException], None],
) -> list[Result | ServiceError]:
    """Return a result or an error for each item, even if ``infer`` raises.

    If ``infer`` raises on a batch, each half of the batch is computed separately, and so on with
    the halves of a half. Only the items that cause the failure fail. After ``DeviceLost``, no call
    can succeed: the items that have no result fail at once.

    ``on_failure`` is called after each call of ``infer`` that raised, with the items and the
    exception. What it raises is not caught.
    """
    results: list[Result | ServiceError] = []
    parts = [items]  # the last one is computed next
    while parts:
        part = parts.pop()
        try:
            computed = list(infer(part))
            if len(computed) != len(part):
                raise RuntimeError(f"infer gave {len(computed)} results for {len(part)} items")
            results += computed
        except BaseException as error:
            # SystemExit and MemoryError too: they fail texts, not the runner.
            on_failure(part, error)
            if isinstance(error, DeviceLost):
                # One error each: they are raised in different requests.
                return results + [NotReady(str(error)) for _ in items[len(results) :]]
            if len(part) == 1:
                results.append(_error_of_one(error))
            else:
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
    return results


def _error_of_one(error: BaseException) -> ServiceError:
    """The error of an item that failed alone."""
    if isinstance(error, OutOfMemory):
        return OutOfMemory(error.detail)  # without the traceback, which keeps the batch in memory
    return InferenceFailed("inference failed on this text")
