"""The queue in which the items of requests wait, which of them share a batch, and who is admitted.

Queue and admission use no threads, no locks, no clock and no event loop.

The order is start-time fair queueing (Goyal, Vin and Cheng, 1996). Each request is its own flow.
In virtual time, an item starts when the earlier items of its own request would have ended. So the
hundredth item of a request waits for as many tokens of newcomers as of its own request.
"""

import asyncio
import logging
import threading
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import Any, Generic, TypeVar

from sentiment_service.errors import (
    RETRY_AFTER_S,
    OutOfMemory,
    Overloaded,
    ServiceError,
    TooManyTexts,
    first_line,
)

# The share of a batch that may be padding. Padding costs time in attention; small batches cost time
# in loading the weights. With tweets of 5 to 45 tokens, shares of 6 to 15 % lose about the same on
# a CPU.
MAX_PADDING = 0.07

logger = logging.getLogger(__name__)


class TokenBudget:
    """The number of padded tokens (items x longest) that a batch may have.

    ``max_padding`` is the share of them that may be padding; None: the model computes no padding,
    so none counts. ``tokens`` is less than at the ``start`` if memory ran out in a batch.
    """

    def __init__(self, tokens: int, *, max_padding: float | None = MAX_PADDING) -> None:
        self.start = self.tokens = tokens
        self.max_padding = max_padding
        self._lock = threading.Lock()  # several runners may lower it at the same time

    def taken_by(self, lengths: Sequence[int]) -> int:
        """The tokens that items of these lengths take of the budget, as one batch."""
        return sum(lengths) if self.max_padding is None else len(lengths) * max(lengths)

    def lower(self, lengths: Sequence[int], error: OutOfMemory) -> None:
        """Take no batches as large as one of these lengths any more: memory ran out in it.

        The budget is halved until it is smaller. A single item may be longer and go alone.
        """
        too_large, reason = self.taken_by(lengths), first_line(error.__cause__ or error)
        if len(lengths) == 1:
            logger.error("the memory ran out for a text of %d tokens: %s", too_large, reason)
            return
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


Item = TypeVar("Item", bound=Sized)
Result = TypeVar("Result")

# How many tokens are considered for a batch, as a multiple of those that it may take. This is
# enough to find tweets of similar length, and so few that items taken out of turn do not delay
# others for long.
LOOK_AHEAD = 4

# The share of the queue that a single request may fill. The rest is for other requests, which are
# served before most of a large request.
REQUEST_SHARE = 0.5

# Each finished batch multiplies the weight of all earlier batches in the measured speed by this.
# So about the last ten batches count.
SPEED_DECAY = 0.9

# The predicted wait is multiplied by this. The machine may become slower while a request waits, and
# an answer after its deadline is wasted work. One request less in the queue costs nothing.
CAUTION = 1.15


@dataclass(slots=True)
class Answer(Generic[Result]):
    """The results of a request's items, in their order. A failed item has its error as result.

    ``inference_seconds`` is the time in which a batch that gave one of the results was computed.
    ``queue_seconds`` is the rest of the time until the last item was done.
    """

    results: list[Result | ServiceError]
    queue_seconds: float
    inference_seconds: float


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request that waits for the results of its items. Only the event loop uses it."""

    size: int  # number of items
    done: asyncio.Future[None]
    queued_at: float
    tag: object = None
    results: dict[int, Any] = field(default_factory=dict)  # by the item's place
    batches: set[tuple[float, float]] = field(default_factory=set)  # when they started and ended
    ended_at: float = 0.0

    def settle(self, index: int, result: Any, ended: float, started: float | None = None) -> None:
        """Give an item its result or error. If it already has one, the first stays.

        If the result is of a batch, this was computed from ``started`` to ``ended``.
        """
        if self.done.done():
            return
        if started is not None:
            self.batches.add((started, ended))
        self.results.setdefault(index, result)
        self.ended_at = max(self.ended_at, ended)
        if len(self.results) == self.size:
            self.done.set_result(None)

    def fail_rest(self, error: ServiceError, at: float) -> None:
        for index in range(self.size):
            self.settle(index, error, at)

    def answer(self) -> Answer[Any]:
        """The results in the order of the items. Every item must have one."""
        # The time that the batches cover. Time in which they overlap counts once.
        seconds, covered = 0.0, self.queued_at
        for started, ended in sorted(self.batches):
            seconds += max(0.0, ended - max(covered, started))
            covered = max(covered, ended)
        waited = max(0.0, self.ended_at - self.queued_at - seconds)
        return Answer([self.results[index] for index in range(self.size)], waited, seconds)


@dataclass(slots=True, eq=False)
class QueuedItem:
    """An item of a request, from its admission to its result. The queue sets the last two."""

    tokens: int
    deadline: float  # a time of time.monotonic
    item: Any
    request: PendingRequest
    index: int  # the place of its result in the request
    turn: tuple[int, int] = (0, 0)  # virtual start, then order of arrival
    waiting: bool = False


Batch = Sequence[QueuedItem]


@dataclass(slots=True)
class BatchReport:
    """What one batch contained, and how it was computed. Times are of time.monotonic."""

    items: int
    tokens: int
    padded_tokens: int  # with padding, if the model computes it
    started: float
    ended: float
    failed: int  # number of items that failed
    out_of_memory: bool = False
    tags: tuple[object, ...] = ()  # of the requests in the batch
    raised: list[BaseException] = field(default_factory=list)  # by the batch, then by its parts

    @property
    def seconds(self) -> float:
        return self.ended - self.started


_turn = attrgetter("turn")


class FairQueue:
    """Items in the order of their turns. Batches are taken from near the front.

    ``tokens`` is the number of tokens of the waiting items, without padding.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self._order: list[QueuedItem] = []  # sorted by turn
        self._virtual_time = 0
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._order)

    def tokens_before(self, tokens: int) -> int:
        """Tokens that are served before a new request of ``tokens`` tokens has its last turn."""
        order = self._order
        ahead = bisect_left(order, (self._virtual_time + tokens, 0), key=_turn)
        # When a long list waits, few items are ahead; else, few or none are behind.
        if ahead <= len(order) // 2:
            return _tokens_of(islice(order, ahead))
        return self.tokens - _tokens_of(islice(order, ahead, None))

    def add(self, request: Iterable[QueuedItem]) -> None:
        start = self._virtual_time
        order = self._order
        for item in request:
            item.turn = (start, self._arrivals)
            if order and item.turn < order[-1].turn:
                insort(order, item, key=_turn)
            else:  # most come last
                order.append(item)
            item.waiting = True
            start += item.tokens
            self.tokens += item.tokens
            self._arrivals += 1

    def remove(self, items: Iterable[QueuedItem]) -> None:
        """Remove those of the items that still wait."""
        for item in items:
            if item.waiting:
                del self._order[bisect_left(self._order, item.turn, key=_turn)]
                item.waiting = False
                self.tokens -= item.tokens

    def clear(self) -> list[QueuedItem]:
        cleared = [*self._order]
        self.remove(reversed(cleared))
        return cleared

    def take_batch(
        self, *, max_tokens: int, max_padding: float | None, share: float, now: float
    ) -> list[QueuedItem]:
        """Remove and return the next batch: the item whose turn it is, and others of like length.

        Number of items × longest stays within ``max_tokens``, of which ``max_padding``, as a share,
        may be padding; a longer item goes alone. Without ``max_padding``, padding does not count,
        and the items are taken in their order. A batch takes no more items once they have ``share``
        tokens: the rest is for other idle runners. Items whose deadline has come are dropped. If an
        error is raised, such as MemoryError, no item is lost and the counts stay correct.
        """
        near: list[QueuedItem] = []  # the next items
        leaving: set[QueuedItem] = set()
        looks = 1 if max_padding is None else LOOK_AHEAD
        considered, unseen = 0, looks * min(max_tokens, share)
        for item in self._order:
            if unseen <= 0:
                break
            considered += 1
            if now < item.deadline:
                near.append(item)
                unseen -= item.tokens
            else:
                leaving.add(item)
        batch = near
        virtual_time = self._virtual_time
        if near:
            leader = near[0]
            if max_padding is not None:
                batch = _fill(near, max_tokens, max_padding, share)
            elif _tokens_of(near) > max_tokens:
                batch = near[:-1] or near
            leaving.update(batch)
            # Virtual time moves to the leader's end, not to its start. Every request is a new
            # flow. If time stood still while newcomers lead, they could block a long list forever.
            virtual_time = max(virtual_time, leader.turn[0] + leader.tokens)
        tokens = self.tokens - _tokens_of(leaving)
        self._order[:considered] = [e for e in self._order[:considered] if e not in leaving]
        # Everything before this line may fail, and changes nothing then; what follows cannot.
        for item in leaving:
            item.waiting = False
        self.tokens, self._virtual_time = tokens, virtual_time
        return batch


def _fill(
    items: Sequence[QueuedItem], max_tokens: int, max_padding: float, share: float
) -> list[QueuedItem]:
    """The first item, and those nearest to it in length that fit in its batch.

    Items of equal length keep their order.
    """
    near: dict[int, list[QueuedItem]] = {}  # by length
    for item in items:
        near.setdefault(item.tokens, []).append(item)
    leader = items[0]
    batch = [leader]
    tokens = longest = leader.tokens
    for length in sorted(near, key=lambda one: (abs(one - leader.tokens), one)):
        new_longest = max(longest, length)
        for item in near[length]:
            if item is leader:
                continue
            padded_tokens = new_longest * (len(batch) + 1)
            least = (1 - max_padding) * padded_tokens
            if tokens >= share or padded_tokens > max_tokens or tokens + length < least:
                break
            batch.append(item)
            tokens, longest = tokens + length, new_longest
        if tokens >= share or longest * (len(batch) + 1) > max_tokens:
            break
    return batch


def _tokens_of(items: Iterable[QueuedItem]) -> int:
    return sum(item.tokens for item in items)


class Admission:
    """Measures how fast batches are computed, and refuses requests that would wait in vain.

    For long requests, it is asked before they are read, and at each step of tokenising them, as
    well as when they are submitted: meanwhile other requests fill the queue.
    """

    def __init__(self, queue: FairQueue, *, budget: TokenBudget, max_queue_tokens: int) -> None:
        self._queue = queue
        self._budget = budget
        self._max_queue_tokens = max_queue_tokens
        self.seconds_per_token = 0.0  # of one runner; 0 before the first batch
        self._batches = 0.0  # these three decay together; only their ratios matter
        self._tokens = 0.0
        self._seconds = 0.0

    def learn(self, *, tokens: int, seconds: float) -> None:
        self._batches = SPEED_DECAY * self._batches + 1
        self._tokens = SPEED_DECAY * self._tokens + tokens
        self._seconds = SPEED_DECAY * self._seconds + seconds
        self.seconds_per_token = self._seconds / self._tokens

    def check(self, tokens: int, *, runners: int, timeout_s: float) -> None:
        """Return if a request of ``tokens`` tokens may enter the queue, else raise the error.

        ``runners`` is the number of runners that work at this moment, at least 1.
        """
        limit, queued = self._max_queue_tokens, self._queue.tokens
        most = int(limit * REQUEST_SHARE)
        if tokens > most:
            raise TooManyTexts(
                f"the texts have more than the {most} tokens that are accepted in one request, "
                "half of --max-queue-tokens"
            )
        if queued + tokens > limit:
            raise Overloaded(
                f"{queued} tokens are waiting; with the {tokens} of this request they would "
                f"exceed the limit of {limit}",
                reason="queue_full",
                retry_after_s=(queued + tokens - limit) * self.seconds_per_token / runners
                or RETRY_AFTER_S,
            )
        ahead = self._queue.tokens_before(tokens)
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
