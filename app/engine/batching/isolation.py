"""A batch that fails is computed again in parts, so that only what is at fault fails."""

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
    """A result or an error for each item, whatever ``infer`` does.

    A batch that raises is retried in halves, and those in halves: only the culprits fail.
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
