"""What waits for inference, and whose turn it is: no threads, no clock, no event loop.

Start-time fair queueing (Goyal, Vin and Cheng, 1996) with every request as a flow of its own.
An entry starts, in virtual time, when the entries of its own request before it would have ended:
the hundredth text of a list stands behind as many tokens of newcomers as of its own list, and
requests of a single text are served in the order in which they came.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Generic, TypeVar

# Tokens considered for a batch, in batches: enough to find neighbours of like length among tweets,
# few enough that what is taken out of turn does not keep others waiting for long.
LOOK_AHEAD = 4

# The share of a batch that may be padding. Padding costs time in attention, a small batch costs
# time in loading the weights: with tweets of 5 to 45 tokens, 6 to 15 % lose about the same.
MAX_PADDING = 0.07


@dataclass(slots=True, eq=False)
class Entry:
    """One text that waits: its length in tokens, and until when (on the caller's clock)."""

    tokens: int
    deadline: float
    turn: tuple[int, int] = field(init=False)  # virtual start, then order of arrival


_turn = attrgetter("turn")
E = TypeVar("E", bound=Entry)


class FairQueue(Generic[E]):
    """Entries in the order of their turns; batches are taken from the front of it."""

    def __init__(self) -> None:
        self._waiting: list[E] = []  # sorted by turn
        self._tokens = 0
        self._virtual_time = 0
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def tokens(self) -> int:
        """Tokens waiting, without padding."""
        return self._tokens

    def tokens_before(self, tokens: int) -> int:
        """Tokens that are served before a newcomer of ``tokens`` tokens has all its turns."""
        last_turn = (self._virtual_time + tokens, 0)
        ahead = bisect_left(self._waiting, last_turn, key=_turn)
        # What comes after is less, if anything, but for a long list.
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
        """Forget those of the entries that still wait."""
        for entry in entries:
            index = bisect_left(self._waiting, entry.turn, key=_turn)
            if index < len(self._waiting) and self._waiting[index] is entry:
                del self._waiting[index]
                self._tokens -= entry.tokens

    def clear(self) -> list[E]:
        """Forget all that waits, and return it."""
        cleared, self._waiting = self._waiting, []
        self._tokens = 0
        return cleared

    def take_batch(self, *, max_tokens: int, share: float, now: float) -> list[E]:
        """Remove and return the next batch: the entry whose turn it is, then those like it.

        Count × longest stays within ``max_tokens``; a longer entry goes alone. A batch of
        ``share`` tokens takes no more: the rest is for others who are free. Entries whose
        deadline has come by ``now`` are dropped. Empty when nothing is left.

        Whatever is raised, such as MemoryError: no entry is lost, and none is counted wrongly.
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
            # To the leader's end, not to its start: every request is a new flow, and time that
            # stood still while newcomers lead would let them hold a long list back for ever.
            leader = batch[0]
            virtual_time = max(virtual_time, leader.turn[0] + leader.tokens)
        # All that can fail is done: a list's slice is replaced as a whole or not at all.
        self._waiting[:seen] = passed_over
        self._tokens, self._virtual_time = left, virtual_time
        return batch


def _fill(window: Sequence[E], max_tokens: int, share: float) -> list[E]:
    """The first of the window, and of the rest the nearest to it in length that fit beside it."""
    leader = window[0]
    batch = [leader]
    tokens = longest = leader.tokens

    def distance(entry: E) -> tuple[int, int]:
        # With the length itself, those of one length stay together, and in turn: sorts are stable.
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
