"""How many tokens a batch may have, corrected by what batches cost while the service is busy."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from statistics import median

# One batch in so many has half or twice the budget, to see whether that would be better.
TRY_EVERY = 8
# Of each size, the latest so many batches are compared by their median speed ...
SAMPLES = 32
# ... and another size is taken when it is faster by this share: less is noise.
BETTER_BY = 0.05
# A batch counts as one of its size when it fills this share of it: half of the next larger
# size never does.
FULL = 0.75

logger = logging.getLogger(__name__)


class TokenBudget:
    """Padded tokens (texts x longest) that a batch may have.

    A ``fixed`` budget stays. Another goes up or down by a factor of 2, between ``least`` and
    ``most``, when full batches of that size compute more tokens a second than those of today's;
    ``on_change`` is called with the new one, on a runner's thread.
    """

    def __init__(
        self,
        tokens: int,
        *,
        fixed: bool = True,
        least: int = 1,
        most: int = 1,
        on_change: Callable[[int], None] | None = None,
    ) -> None:
        self.tokens = tokens
        self.fixed = fixed
        self._least, self._most = least, most
        self._on_change = on_change
        self._batches = 0
        self._lock = threading.Lock()  # around what follows
        self._speeds: dict[int, deque[float]] = {}

    def next(self, waiting: int) -> int:
        """The budget of the next batch, for which so many tokens wait; one caller at a time."""
        self._batches += 1
        turn, other = divmod(self._batches, TRY_EVERY)
        if self.fixed or other:
            return self.tokens
        size = self.tokens * 2 if turn % 2 else self.tokens // 2
        possible = self._least <= size <= self._most
        return size if possible and waiting >= 2 * self.tokens else self.tokens

    def learn(self, *, tokens: int, padded_tokens: int, seconds: float) -> None:
        """Take in a batch that was computed while others waited; only a full one counts."""
        if self.fixed:
            return
        with self._lock:
            before = self.tokens
            near = (before, before // 2, before * 2)
            size = next((n for n in near if FULL * n < padded_tokens <= n), None)
            if size is None:
                return
            speeds = self._speeds.setdefault(size, deque(maxlen=SAMPLES))
            speeds.append(tokens / seconds)
            gain = self._gain(size)
            if gain <= BETTER_BY:
                return
            self.tokens = size
            self._speeds.clear()
        logger.info(
            "batches have at most %d tokens from now on, not %d: they compute %.0f %% more",
            size,
            before,
            gain * 100,
        )
        if self._on_change is not None:
            self._on_change(size)

    def _gain(self, size: int) -> float:
        """The share by which batches of that size are faster than today's; 0 if not known."""
        today, other = self._speeds.get(self.tokens, ()), self._speeds[size]
        if size == self.tokens or min(len(today), len(other)) < SAMPLES:
            return 0.0
        return median(other) / median(today) - 1
