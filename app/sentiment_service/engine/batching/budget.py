"""The token budget of batches. It is lowered for good where the memory does not suffice."""

import logging
import threading

# The share of a batch that may be padding. Padding costs time in attention; small batches cost time
# in loading the weights. With tweets of 5 to 45 tokens, shares of 6 to 15 % lose about the same on
# a CPU.
MAX_PADDING = 0.07

logger = logging.getLogger(__name__)


class TokenBudget:
    """The number of padded tokens (items x longest) that a batch may have.

    ``max_padding`` is the share of them that may be padding; None: the model computes no padding,
    so none counts. ``tokens`` is less than at the ``start`` if memory ran out in a batch. The next
    start may have more memory.
    """

    def __init__(self, tokens: int, *, max_padding: float | None = MAX_PADDING) -> None:
        self.start = self.tokens = tokens
        self.max_padding = max_padding
        self._lock = threading.Lock()  # several runners may lower it at the same time

    def copy(self) -> "TokenBudget":
        """A copy of this budget for another model, whose batches then change only the copy."""
        other = TokenBudget(self.start, max_padding=self.max_padding)
        other.tokens = self.tokens
        return other

    def lower(self, too_large: int, reason: str) -> None:
        """Take no batches of ``too_large`` tokens any more: memory ran out in one.

        The budget is halved until it is smaller. If that changes anything, the log says so, with
        the ``reason``.
        """
        with self._lock:
            before = self.tokens
            while self.tokens >= too_large and self.tokens > 1:
                self.tokens //= 2
            now = self.tokens
        if now == before:
            return  # another part of the same batch, or another runner's batch, came first
        logger.error(
            "the memory ran out in a batch of %d tokens, which is computed again in parts; until "
            "the next start, batches have at most %d tokens, not %d; start with "
            "--max-batch-tokens %d, or with more memory, to avoid this: %s",
            too_large,
            now,
            before,
            now,
            reason,
        )
