"""Compute batches. If one fails, it is computed again in parts, so that only bad items fail."""

import logging
import threading
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

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


@dataclass(slots=True)
class Computed(Generic[Result]):
    """A result or an error for each item of a batch, and what was raised on the way to them."""

    results: list[Result | ServiceError]
    raised: list[type[BaseException]]  # by the whole batch first, then by its parts


class Inference(Generic[Item, Result]):
    """Calls ``infer`` for the runners' threads. Errors that it raises are isolated and logged.

    If memory runs out in a batch, the budget is lowered. ``device_lost`` says why no further batch
    can be computed; it is None while the device works.
    """

    def __init__(
        self,
        infer: Callable[[Sequence[Item]], Sequence[Result | ServiceError]],
        budget: TokenBudget,
    ) -> None:
        self._infer = infer
        self._budget = budget
        self.device_lost: str | None = None
        self._lock = threading.Lock()  # only one runner logs that the device is lost

    def compute(self, items: Sequence[Item]) -> Computed[Result]:
        """Infer the items as one batch, and again in parts if that fails."""
        raised: list[type[BaseException]] = []
        on_failure = partial(self._on_failure, raised)
        return Computed(infer_each(self._infer, items, on_failure=on_failure), raised)

    def _on_failure(
        self, raised: list[type[BaseException]], items: Sequence[Item], error: BaseException
    ) -> None:
        if isinstance(error, DeviceLost):
            self._lose_device(error)
        elif isinstance(error, OutOfMemory):
            out_of_memory(items, self._budget, error)
        elif not raised:  # one line with a traceback is enough for a batch and its parts
            logger.error("inference raised on a batch of %d", len(items), exc_info=error)
        raised.append(type(error))

    def _lose_device(self, error: DeviceLost) -> None:
        with self._lock:
            known, self.device_lost = self.device_lost, str(error)
        if known is None:
            logger.critical("%s; liveness and readiness fail until then", error, exc_info=error)


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
