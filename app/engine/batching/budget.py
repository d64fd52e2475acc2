"""The token budget of batches, corrected by what batches cost while the service is busy.

It is lowered for good where the memory does not suffice for a batch.
"""

import logging
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from statistics import median

# One batch in this many tries half or twice the budget.
TRY_EVERY = 8
# The speed of such a trial is divided by the median speed of this many latest full batches of the
# current size. A machine's speed drifts, so only batches of about the same time are compared.
BESIDE = 8
# The median of this many latest ratios decides ...
TRIALS = 32
# ... and the other size is taken if it is faster by this share. A smaller gain is noise.
BETTER_BY = 0.05
# The share of a batch that may be padding. Padding costs time in attention; small batches cost time
# in loading the weights. With tweets of 5 to 45 tokens, shares of 6 to 15 % lose about the same on
# a CPU.
MAX_PADDING = 0.07
# A batch is full if it fills more than this share of its budget.
FULL = 0.75

logger = logging.getLogger(__name__)


class TokenBudget:
    """The number of padded tokens (texts x longest) that a batch may have.

    ``max_padding`` is the share of them that may be padding.

    A ``fixed`` budget is never corrected. Any other budget doubles or halves, between ``least`` and
    ``most``, when full batches of the new size compute more tokens per second than those of the
    current size. ``on_change`` is then called with the new budget, on a runner's thread.

    Every budget is lowered when memory runs out in a batch. After that it never exceeds the lowered
    value, and ``on_change`` is not called any more, because the next start may have more memory.
    """

    def __init__(
        self,
        tokens: int,
        *,
        max_padding: float = MAX_PADDING,
        fixed: bool = True,
        least: int = 1,
        most: int = 1,
        on_change: Callable[[int], None] | None = None,
    ) -> None:
        self.tokens = tokens
        self.max_padding = max_padding
        self.fixed = fixed
        self.lowered = False  # because memory ran out
        self._least, self._most = least, most
        self._on_change = on_change
        self._batches = 0
        self._lock = threading.Lock()  # protects the attributes below
        self._speeds: deque[float] = deque(maxlen=BESIDE)  # of the current size
        self._ratios = defaultdict[int, deque[float]](lambda: deque(maxlen=TRIALS))

    def again(self) -> "TokenBudget":
        """A copy of this budget for another model, whose batches then change only the copy."""
        budget = TokenBudget(
            self.tokens,
            max_padding=self.max_padding,
            fixed=self.fixed,
            least=self._least,
            most=self._most,
        )
        budget.lowered = self.lowered
        return budget

    def lower(self, too_large: int, reason: str) -> None:
        """Take no batches of ``too_large`` padded tokens any more: memory ran out in one.

        The budget is halved until it is smaller. If that changes anything, the log says so, with
        the ``reason``.
        """
        with self._lock:
            before, most = self.tokens, self._most
            while self.tokens >= too_large and self.tokens > self._least:
                self.tokens = max(self.tokens // 2, self._least)
            self.lowered = True
            self._most = self.tokens
            self._on_change = None
            self._speeds.clear()
            self._ratios.clear()
            now = self.tokens
        if now == before == most:
            return  # another part of the same batch, or another runner's batch, came first
        logger.error(
            "the memory ran out in a batch of %d tokens, which is computed again in parts; until "
            "the next start, batches have at most %d tokens, not %d; start with "
            "--max-batch-tokens %d, or with more memory, to avoid this: %s",
            too_large,
            now,
            before if now < before else most,  # the batch may have tried twice the budget
            now,
            reason,
        )

    def next(self, waiting: int) -> int:
        """The budget of the next batch, while ``waiting`` tokens wait. One caller at a time."""
        self._batches += 1
        turn, other = divmod(self._batches, TRY_EVERY)
        if self.fixed or other:
            return self.tokens
        size = self.tokens * 2 if turn % 2 else self.tokens // 2
        possible = self._least <= size <= self._most
        return size if possible and waiting >= 2 * self.tokens else self.tokens

    def learn(self, size: int, *, texts: int, longest: int, tokens: int, seconds: float) -> None:
        """Learn from a batch whose budget was ``size``, computed while other texts waited.

        Only full batches count. A batch with a text longer than half of the current budget does
        not count: smaller batches never have such a text, so the two cannot be compared.
        """
        full = FULL * size < texts * longest <= size
        if self.fixed or not full or longest > self.tokens // 2 or seconds <= 0:
            return
        with self._lock:
            before = self.tokens
            if size == before:
                self._speeds.append(tokens / seconds)
                return
            if size not in (before // 2, before * 2) or len(self._speeds) < BESIDE:
                return
            if size > self._most:  # memory ran out since this batch was formed
                return
            ratios = self._ratios[size]
            ratios.append(tokens / seconds / median(self._speeds))
            gain = median(ratios) - 1
            if len(ratios) < TRIALS or gain <= BETTER_BY:
                return
            self.tokens = size
            self._speeds.clear()
            self._ratios.clear()
            on_change = self._on_change
        logger.info(
            "batches have at most %d tokens from now on, not %d: they compute %.0f %% more",
            size,
            before,
            gain * 100,
        )
        if on_change is not None:
            on_change(size)
