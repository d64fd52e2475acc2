"""Who is admitted to the queue: its limit, and the wait that the measured speed predicts."""

from collections.abc import Callable

from app.engine.batching.budget import TokenBudget
from app.engine.batching.fair_queue import LOOK_AHEAD
from app.errors import Overloaded, TooManyTexts

# The part of the queue that a single request may fill: the rest is for others, whose turn comes
# before most of it.
REQUEST_SHARE = 0.5

# What a finished batch weighs in the measured speed when the next one is done: about the last ten
# count.
SPEED_DECAY = 0.9

# On the predicted wait: a machine may become slower while one waits, and an answer after its
# deadline is work for nothing, while one request less in the queue costs nothing.
CAUTION = 1.15

# The advice when the wait cannot be computed: nothing was measured yet, or the process goes away.
RETRY_AFTER_S = 1.0


class Admission:
    """Measures how fast batches are done, and turns away what would wait in vain. No lock.

    ``runners`` tells how many of them work at this moment: one or more.
    """

    def __init__(
        self, *, runners: Callable[[], int], budget: TokenBudget, max_queue_tokens: int
    ) -> None:
        self._runners = runners
        self._budget = budget
        self._max_queue_tokens = max_queue_tokens
        self._batches = 0.0  # these decay alike: their ratios are what is measured
        self._tokens = 0.0
        self._seconds = 0.0

    def learn(self, *, tokens: int, seconds: float) -> None:
        """Take in what a batch was and took."""
        self._batches = SPEED_DECAY * self._batches + 1
        self._tokens = SPEED_DECAY * self._tokens + tokens
        self._seconds = SPEED_DECAY * self._seconds + seconds

    def check(self, tokens: int, *, queued: int, ahead: int, timeout_s: float) -> None:
        """Let a request of that many tokens pass; ``ahead`` of those queued come before it.

        Raises:
            TooManyTexts: it would fill more than its part of the queue.
            Overloaded: the queue is full, or the answer would come after ``timeout_s`` seconds.
        """
        limit = self._max_queue_tokens
        most = int(limit * REQUEST_SHARE)
        if tokens > most:
            raise TooManyTexts(
                f"the texts have more than the {most} tokens that are accepted in one request"
            )
        if queued + tokens > limit:
            raise Overloaded(
                f"{queued} tokens are waiting; with the {tokens} of this request they would "
                f"exceed the limit of {limit}",
                reason="queue_full",
                retry_after_s=self._seconds_for(queued + tokens - limit) or RETRY_AFTER_S,
            )
        wait_s = self._predicted_wait_s(ahead, tokens)
        if wait_s > timeout_s:
            raise Overloaded(
                f"{ahead} tokens come before these, in about {wait_s:.1f} s; "
                f"this request has {timeout_s:.3g} s",
                reason="deadline",
                retry_after_s=wait_s - timeout_s,
            )

    def _predicted_wait_s(self, ahead: int, tokens: int) -> float:
        """Until the answer, rather too long than too short; 0 where nobody is ahead."""
        if not ahead or not self._batches:
            return 0.0
        # Later texts fill the batches that those ahead lead, so as many may come first; and the
        # answer is there when the last batch ends.
        overtaking = min(ahead, LOOK_AHEAD * self._budget.tokens)
        batch_s = self._seconds / self._batches
        return CAUTION * (self._seconds_for(ahead + overtaking + tokens) + batch_s)

    def batch_seconds(self, tokens: int) -> float:
        """How long a runner takes for a batch of that many tokens; 0 before the first batch."""
        return tokens * self._seconds / self._tokens if self._tokens else 0.0

    def _seconds_for(self, tokens: int) -> float:
        """How long all runners together take for that many tokens; 0 before the first batch."""
        return self.batch_seconds(tokens) / self._runners()
