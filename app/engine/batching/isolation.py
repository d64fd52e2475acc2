"""Compute a failed batch again in parts, so that only the items that cause the failure fail."""

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from app.errors import InferenceFailed, ServiceError

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")


def infer_each(
    infer: Callable[[Sequence[Item]], Sequence[Result | ServiceError]],
    items: Sequence[Item],
    *,
    retry: bool = False,
) -> list[Result | ServiceError]:
    """Return a result or an error for each item, even if ``infer`` raises.

    If ``infer`` raises on a batch, each half of the batch is computed separately, and so on with
    the halves of a half. Only the items that cause the failure fail.
    """
    try:
        results = list(infer(items))
        if len(results) != len(items):
            raise RuntimeError(f"infer gave {len(results)} results for {len(items)} items")
        return results
    except BaseException:  # SystemExit and MemoryError too: they fail texts, not the runner
        if not retry:
            logger.exception("inference raised on a batch of %d", len(items))
    if len(items) == 1:
        return [InferenceFailed("inference failed on this text")]
    middle = len(items) // 2
    return [
        *infer_each(infer, items[:middle], retry=True),
        *infer_each(infer, items[middle:], retry=True),
    ]
