"""Compute a failed batch again in parts, so that only the items that cause the failure fail."""

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from app.errors import InferenceFailed, ServiceError

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")


def _log(size: int, error: BaseException) -> None:
    logger.error("inference raised on a batch of %d", size, exc_info=error)


def _ignore(_: int, __: BaseException) -> None:
    """Do nothing: the failure of the whole batch has been reported."""


def infer_each(
    infer: Callable[[Sequence[Item]], Sequence[Result | ServiceError]],
    items: Sequence[Item],
    *,
    on_failure: Callable[[int, BaseException], None] = _log,
) -> list[Result | ServiceError]:
    """Return a result or an error for each item, even if ``infer`` raises.

    If ``infer`` raises on a batch, each half of the batch is computed separately, and so on with
    the halves of a half. Only the items that cause the failure fail.

    ``on_failure`` is called once, with the number of items and the first exception. What it raises
    is not caught.
    """
    try:
        results = list(infer(items))
        if len(results) != len(items):
            raise RuntimeError(f"infer gave {len(results)} results for {len(items)} items")
        return results
    except BaseException as error:
        # SystemExit and MemoryError too: they fail texts, not the runner.
        on_failure(len(items), error)
    if len(items) == 1:
        return [InferenceFailed("inference failed on this text")]
    middle = len(items) // 2
    return [
        *infer_each(infer, items[:middle], on_failure=_ignore),
        *infer_each(infer, items[middle:], on_failure=_ignore),
    ]
