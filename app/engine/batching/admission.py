"""Decide which requests enter the queue, by its limit and by the predicted wait.

``MicroBatcher.submit`` decides. For long requests, the same question is asked before that, to save
work that would be in vain: before a long body is read, before its texts are tokenised, and after
each step of tokenising them. None of these checks can stand for another, because meanwhile other
requests fill the queue.
"""

from app.engine.batching.budget import TokenBudget
from app.engine.batching.fair_queue import LOOK_AHEAD
from app.errors import RETRY_AFTER_S, Overloaded, TooManyTexts

# The share of the queue that a single request may fill. The rest is for other requests, which are
# served before most of a large request.
REQUEST_SHARE = 0.5

# Each finished batch multiplies the weight of all earlier batches in the measured speed by this.
# So about the last ten batches count.
SPEED_DECAY = 0.9

# The predicted wait is multiplied by this. The machine may become slower while a request waits, and
# an answer after its deadline is wasted work. One request less in the queue costs nothing.
CAUTION = 1.15


class Admission:
    """Measures how fast batches are computed, and refuses requests that would wait in vain.

    It has no lock of its own.
    """

    def __init__(self, *, budget: TokenBudget, max_queue_tokens: int) -> None:
        self._budget = budget
        self._max_queue_tokens = max_queue_tokens
        self.seconds_per_token = 0.0  # of one runner; 0 before the first batch
        self._batches = 0.0  # these three decay together; only their ratios matter
        self._tokens = 0.0
        self._seconds = 0.0

    def learn(self, *, tokens: int, seconds: float) -> None:
        """Update the measured speed with a batch of ``tokens`` that took ``seconds``."""
        self._batches = SPEED_DECAY * self._batches + 1
        self._tokens = SPEED_DECAY * self._tokens + tokens
        self._seconds = SPEED_DECAY * self._seconds + seconds
        self.seconds_per_token = self._seconds / self._tokens

    def check(
        self, tokens: int, *, queued: int, ahead: int, runners: int, timeout_s: float
    ) -> None:
        """Return if a request of ``tokens`` tokens may enter the queue.

        ``queued`` tokens are in the queue. ``ahead`` of them are served before this request.
        ``runners`` is the number of runners that work at this moment, at least 1.

        Raises:
            TooManyTexts: the request would fill more than its share of the queue.
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
                retry_after_s=(queued + tokens - limit) * self.seconds_per_token / runners
                or RETRY_AFTER_S,
            )
        wait_s = self._predicted_wait_s(ahead, tokens, runners)
        if wait_s > timeout_s:
            raise Overloaded(
                f"{ahead} tokens are ahead of this request; the predicted wait is {wait_s:.1f} s, "
                f"but the request may take at most {timeout_s:.3g} s",
                reason="deadline",
                retry_after_s=wait_s - timeout_s,
            )

    def _predicted_wait_s(self, ahead: int, tokens: int, runners: int) -> float:
        """Estimated seconds until the answer, rather too many than too few.

        0 if nothing is ahead, or before the first batch.
        """
        if not ahead or not self._batches:
            return 0.0
        # Texts that arrive later can fill up the batches of the texts ahead, so up to as many
        # tokens again may be served first. The answer is complete when the last batch ends.
        overtaking = min(ahead, LOOK_AHEAD * self._budget.tokens)
        batch_s = self._seconds / self._batches
        before_s = (ahead + overtaking + tokens) * self.seconds_per_token / runners
        return CAUTION * (before_s + batch_s)
