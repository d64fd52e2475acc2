"""Compute a failed batch again in parts, so that only the items that cause the failure fail."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from app.errors import DeviceLost, InferenceFailed, NotReady, OutOfMemory, ServiceError

Item = TypeVar("Item")
Result = TypeVar("Result")


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
