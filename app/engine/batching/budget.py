"""How many tokens a batch may have, corrected by what batches cost while the service is busy."""

import logging
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from statistics import median

# Every so many batches, one tries half or twice the budget.
TRY_EVERY = 8
# Its speed is divided by the median of the latest so many full batches of today's size: machines
# drift, and what is compared must have run at the same time.
BESIDE = 8
# The latest so many of these ratios decide, by their median ...
TRIALS = 32
# ... and another size is taken when it is faster by this share: less is noise.
BETTER_BY = 0.05
# The share of its budget that a full batch fills.
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
        self._speeds: deque[float] = deque(maxlen=BESIDE)  # of today's size
        self._ratios = defaultdict[int, deque[float]](lambda: deque(maxlen=TRIALS))

    def again(self) -> "TokenBudget":
        """The same budget for another model, whose batches change this one only."""
        return TokenBudget(self.tokens, fixed=self.fixed, least=self._least, most=self._most)

    def next(self, waiting: int) -> int:
        """The budget of the next batch, for which so many tokens wait; one caller at a time."""
        self._batches += 1
        turn, other = divmod(self._batches, TRY_EVERY)
        if self.fixed or other:
            return self.tokens
        size = self.tokens * 2 if turn % 2 else self.tokens // 2
        possible = self._least <= size <= self._most
        return size if possible and waiting >= 2 * self.tokens else self.tokens

    def learn(self, size: int, *, texts: int, longest: int, tokens: int, seconds: float) -> None:
        """Take in a batch whose budget was ``size``, computed while others waited.

        Only a full one counts. One with a text that does not fit half of today's budget does not:
        smaller batches never have such a text, so they could not be compared.
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
            ratios = self._ratios[size]
            ratios.append(tokens / seconds / median(self._speeds))
            gain = median(ratios) - 1
            if len(ratios) < TRIALS or gain <= BETTER_BY:
                return
            self.tokens = size
            self._speeds.clear()
            self._ratios.clear()
        logger.info(
            "batches have at most %d tokens from now on, not %d: they compute %.0f %% more",
            size,
            before,
            gain * 100,
        )
        if self._on_change is not None:
            self._on_change(size)
