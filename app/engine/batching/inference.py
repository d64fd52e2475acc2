"""Reports of batches, and how a batch that fails is computed again in parts."""

import logging
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from typing import Protocol, TypeVar

from app.engine.batching.budget import TokenBudget
from app.errors import (
    DeviceLost,
    InferenceFailed,
    NotReady,
    OutOfMemory,
    ServiceError,
    first_line,
)

logger = logging.getLogger(__name__)

Item = TypeVar("Item", bound=Sized)
Result = TypeVar("Result")


@dataclass(slots=True)
class BatchReport:
    """What one batch contained, and how long it took."""

    texts: int
    tokens: int
    padded_tokens: int  # texts × longest
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
        """A runner's thread was lost and will be replaced."""

    def batch_stalled(self) -> None:
        """A batch takes far longer than predicted."""


def out_of_memory(items: Sequence[Sized], budget: TokenBudget, error: OutOfMemory) -> None:
    """Lower the budget if memory ran out for several items; one long item may go alone."""
    tokens = len(items) * max(map(len, items))
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
