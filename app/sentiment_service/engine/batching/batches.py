"""Requests and their items, and the batches in which these are computed.

If a batch fails, it is computed again in parts, so that only bad items fail.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from sentiment_service.engine.batching.budget import TokenBudget
from sentiment_service.errors import (
    DeviceLost,
    InferenceFailed,
    NotReady,
    OutOfMemory,
    ServiceError,
    first_line,
)

Item = TypeVar("Item", bound=Sized)
Result = TypeVar("Result")
# May raise any error. One that it returns in the place of a result fails only that item.
Infer = Callable[[Sequence[Item]], Sequence[Result | ServiceError]]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Answer(Generic[Result]):
    """The results of a request's items, in their order. A failed item has its error as result.

    ``inference_seconds`` is the time in which a batch that gave one of the results was computed.
    ``queue_seconds`` is the rest of the time until the last item was done.
    """

    results: list[Result | ServiceError]
    queue_seconds: float
    inference_seconds: float


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request that waits for the results of its items. Only the event loop uses it."""

    size: int  # number of items
    done: asyncio.Future[None]
    queued_at: float
    tag: object = None
    results: dict[int, Any] = field(default_factory=dict)  # by the item's place
    batches: set[tuple[float, float]] = field(default_factory=set)  # when they started and ended
    ended_at: float = 0.0

    def settle(self, index: int, result: Any, ended: float, started: float | None = None) -> None:
        """Give an item its result or error. If it already has one, the first stays.

        If the result is of a batch, this was computed from ``started`` to ``ended``.
        """
        if self.done.done():
            return
        if started is not None:
            self.batches.add((started, ended))
        self.results.setdefault(index, result)
        self.ended_at = max(self.ended_at, ended)
        if len(self.results) == self.size:
            self.done.set_result(None)

    def fail_rest(self, error: ServiceError, at: float) -> None:
        """Give the error to the items that have no result."""
        for index in range(self.size):
            self.settle(index, error, at)

    def answer(self) -> Answer[Any]:
        """The results in the order of the items. Every item must have one."""
        # The time that the batches cover. Time in which they overlap counts once.
        seconds, covered = 0.0, self.queued_at
        for started, ended in sorted(self.batches):
            seconds += max(0.0, ended - max(covered, started))
            covered = max(covered, ended)
        waited = max(0.0, self.ended_at - self.queued_at - seconds)
        return Answer([self.results[index] for index in range(self.size)], waited, seconds)


@dataclass(slots=True, eq=False)
class QueuedItem:
    """An item of a request, from its admission to its result. The queue sets the last two."""

    tokens: int
    deadline: float  # a time of time.monotonic
    item: Any
    request: PendingRequest
    index: int  # the place of its result in the request
    turn: tuple[int, int] = (0, 0)  # virtual start, then order of arrival
    waiting: bool = False


Batch = Sequence[QueuedItem]


@dataclass(slots=True)
class BatchReport:
    """What one batch contained, and how it was computed. Times are of time.monotonic."""

    items: int
    tokens: int
    padded_tokens: int  # with padding, if the model computes it
    started: float
    ended: float
    failed: int  # number of items that failed
    out_of_memory: bool = False
    tags: tuple[object, ...] = ()  # of the requests in the batch
    raised: list[BaseException] = field(default_factory=list)  # by the batch, then by its parts

    @property
    def seconds(self) -> float:
        """How long it was computed."""
        return self.ended - self.started


def compute(
    infer: Infer[Any, Any], batch: Batch, budget: TokenBudget
) -> tuple[list[Any], BatchReport]:
    """A result or an error for each item of the batch, and the report of it."""

    def log(error: BaseException) -> None:
        # One line with a traceback is enough for a batch and its parts.
        if not isinstance(error, DeviceLost | OutOfMemory):
            logger.error("inference raised on a batch of %d", len(batch), exc_info=error)

    started = time.monotonic()
    results, raised = infer_each(infer, [queued.item for queued in batch], budget, log)
    ended = time.monotonic()
    lengths = [queued.tokens for queued in batch]
    requests = {id(queued.request): queued.request for queued in batch}.values()
    return results, BatchReport(
        items=len(batch),
        tokens=sum(lengths),
        padded_tokens=tokens_taken(budget, lengths),
        started=started,
        ended=ended,
        failed=sum(isinstance(result, ServiceError) for result in results),
        out_of_memory=any(isinstance(error, OutOfMemory) for error in raised),
        tags=tuple(request.tag for request in requests if request.tag is not None),
        raised=raised,
    )


def infer_each(
    infer: Infer[Item, Result],
    items: Sequence[Item],
    budget: TokenBudget,
    on_first_error: Callable[[BaseException], None] = lambda error: None,
) -> tuple[list[Result | ServiceError], list[BaseException]]:
    """A result or an error for each item, even if ``infer`` raises; and all that it raised.

    If ``infer`` raises on a batch, each half of the batch is computed separately, and so on with
    the halves of a half. Only the items that cause the failure fail. After ``OutOfMemory``, the
    budget is lowered. After ``DeviceLost``, no call can succeed: the items that have no result fail
    at once.

    ``on_first_error`` gets the first error while it has its traceback, which the errors lose here.
    """
    results: list[Result | ServiceError] = []
    raised: list[BaseException] = []
    parts = [items]  # the last one is computed next
    while parts:
        part = parts.pop()
        try:
            computed = list(infer(part))
            if len(computed) != len(part):
                raise RuntimeError(f"infer gave {len(computed)} results for {len(part)} items")
            results += computed
        except BaseException as error:
            # SystemExit and MemoryError too: they fail items, not the runner.
            if not raised:
                on_first_error(error)
            raised.append(error)
            if isinstance(error, DeviceLost):
                # One error each: they are raised in different requests.
                results += [NotReady(str(error)) for _ in items[len(results) :]]
                break
            if isinstance(error, OutOfMemory):
                _lower(budget, part, error)
            if len(part) > 1:
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
            elif isinstance(error, OutOfMemory):
                # Without the traceback, which keeps the batch in memory.
                results.append(OutOfMemory(error.detail))
            else:
                results.append(InferenceFailed("inference failed on this text"))
            # Tracebacks keep what the attempt has allocated, which the next one may need.
            error.__traceback__ = error.__cause__ = error.__context__ = None
    return results, raised


def tokens_taken(budget: TokenBudget, lengths: Sequence[int]) -> int:
    """The tokens that items of these lengths take of the budget, as one batch."""
    return sum(lengths) if budget.max_padding is None else len(lengths) * max(lengths)


def _lower(budget: TokenBudget, items: Sequence[Sized], error: OutOfMemory) -> None:
    """Lower the budget if memory ran out for several items; one long item may go alone."""
    tokens = tokens_taken(budget, [*map(len, items)])
    reason = first_line(error.__cause__ or error)
    if len(items) > 1:
        budget.lower(tokens, reason)
    else:
        logger.error("the memory ran out for a single text of %d tokens: %s", tokens, reason)
