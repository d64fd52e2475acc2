"""The queue of texts that wait for inference. It uses no threads, no clock and no event loop.

The order is start-time fair queueing (Goyal, Vin and Cheng, 1996). Each request is its own flow.
In virtual time, an entry starts when the earlier entries of its own request would have ended. So
the hundredth text of a list waits for as many tokens of newcomers as of its own list. Requests of
a single text are served in the order in which they arrived.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Generic, TypeVar

# How many tokens are considered for a batch, as a multiple of its budget. This is enough to find
# tweets of similar length, and so few that texts taken out of turn do not delay others for long.
LOOK_AHEAD = 4

# The share of a batch that may be padding. Padding costs time in attention. Small batches cost time
# in loading the weights. With tweets of 5 to 45 tokens, shares of 6 to 15 % lose about the same.
MAX_PADDING = 0.07


@dataclass(slots=True, eq=False)
class Entry:
    """One waiting text: its length in tokens, and its deadline on the caller's clock."""

    tokens: int
    deadline: float
    turn: tuple[int, int] = field(init=False)  # virtual start, then order of arrival


_turn = attrgetter("turn")
E = TypeVar("E", bound=Entry)


class FairQueue(Generic[E]):
    """Entries in the order of their turns. Batches are taken from the front."""

    def __init__(self) -> None:
        self._waiting: list[E] = []  # sorted by turn
        self._tokens = 0
        self._virtual_time = 0
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def tokens(self) -> int:
        """The number of tokens of the waiting entries, without padding."""
        return self._tokens

    def tokens_before(self, tokens: int) -> int:
        """Tokens that are served before a new request of ``tokens`` tokens has its last turn."""
        last_turn = (self._virtual_time + tokens, 0)
        ahead = bisect_left(self._waiting, last_turn, key=_turn)
        # Sum the entries after that turn: they are few or none, except when a long list waits.
        return self._tokens - sum(entry.tokens for entry in self._waiting[ahead:])

    def add(self, request: Iterable[E]) -> None:
        """Queue the entries of one request, in their order."""
        start = self._virtual_time
        for entry in request:
            entry.turn = (start, self._arrivals)
            insort(self._waiting, entry, key=_turn)
            start += entry.tokens
            self._tokens += entry.tokens
            self._arrivals += 1

    def remove(self, entries: Iterable[E]) -> None:
        """Remove those of the entries that still wait."""
        for entry in entries:
            index = bisect_left(self._waiting, entry.turn, key=_turn)
            if index < len(self._waiting) and self._waiting[index] is entry:
                del self._waiting[index]
                self._tokens -= entry.tokens

    def clear(self) -> list[E]:
        """Remove all waiting entries and return them."""
        cleared, self._waiting = self._waiting, []
        self._tokens = 0
        return cleared

    def take_batch(self, *, max_tokens: int, share: float, now: float) -> list[E]:
        """Remove and return the next batch: the entry whose turn it is, and others of like length.

        Number of entries × longest stays within ``max_tokens``; a longer entry goes alone. A batch
        takes no more entries once it has ``share`` tokens: the rest is for other idle runners.
        Entries whose deadline is ``now`` or earlier are dropped. The batch is empty if no entry is
        left.

        If an error is raised, such as MemoryError, no entry is lost and the counts stay correct.
        """
        window: list[E] = []
        seen = tokens = 0
        left = self._tokens
        while seen < len(self._waiting) and tokens < LOOK_AHEAD * max_tokens:
            entry = self._waiting[seen]
            seen += 1
            if now < entry.deadline:
                window.append(entry)
                tokens += entry.tokens
            else:
                left -= entry.tokens
        batch = _fill(window, max_tokens, share) if window else []
        left -= sum(entry.tokens for entry in batch)
        taken = set(batch)
        passed_over = [entry for entry in window if entry not in taken]
        virtual_time = self._virtual_time
        if batch:
            # Virtual time moves to the leader's end, not to its start. Every request is a new
            # flow. If time stood still while newcomers lead, they could block a long list forever.
            leader = batch[0]
            virtual_time = max(virtual_time, leader.turn[0] + leader.tokens)
        # Everything before this line may fail. From here, the slice is replaced as a whole or
        # not at all, and the other assignments cannot fail.
        self._waiting[:seen] = passed_over
        self._tokens, self._virtual_time = left, virtual_time
        return batch


def _fill(window: Sequence[E], max_tokens: int, share: float) -> list[E]:
    """The first entry of the window, and those nearest to it in length that fit in its batch."""
    leader = window[0]
    batch = [leader]
    tokens = longest = leader.tokens

    def distance(entry: E) -> tuple[int, int]:
        # The length as second key keeps entries of the same length together. Their order stays,
        # because the sort is stable.
        return abs(entry.tokens - leader.tokens), entry.tokens

    for entry in sorted(window[1:], key=distance):
        if tokens >= share:
            break
        new_tokens = tokens + entry.tokens
        new_longest = max(longest, entry.tokens)
        padded_tokens = new_longest * (len(batch) + 1)
        if padded_tokens <= max_tokens and new_tokens >= (1 - MAX_PADDING) * padded_tokens:
            batch.append(entry)
            tokens, longest = new_tokens, new_longest
    return batch
