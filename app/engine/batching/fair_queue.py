"""The queue of texts that wait for inference. It uses no threads, no clock and no event loop.

The order is start-time fair queueing (Goyal, Vin and Cheng, 1996). Each request is its own flow.
In virtual time, an entry starts when the earlier entries of its own request would have ended. So
the hundredth text of a list waits for as many tokens of newcomers as of its own list. Requests of
a single text are served in the order in which they arrived.

Equal entries that wait at the same time need only one result. When one of them is taken for a
batch, the others are taken with it.
"""

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable, Sequence
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
    """One waiting text: its length in tokens, and its deadline on the caller's clock.

    Entries with equal keys have equal results.
    """

    tokens: int
    deadline: float
    key: Hashable
    turn: tuple[int, int] = field(init=False)  # virtual start, then order of arrival


_turn = attrgetter("turn")
E = TypeVar("E", bound=Entry)


class FairQueue(Generic[E]):
    """Entries in the order of their turns. Batches are taken from the front."""

    def __init__(self) -> None:
        self._waiting: list[E] = []  # sorted by turn
        # The waiting entries by their keys. After an error such as MemoryError, a waiting entry may
        # be missing here; it is then computed by itself. No entry is here that does not wait.
        self._equals: dict[Hashable, dict[E, None]] = {}
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
            self._equals.setdefault(entry.key, {})[entry] = None

    def remove(self, entries: Iterable[E]) -> None:
        """Remove those of the entries that still wait."""
        for entry in entries:
            index = bisect_left(self._waiting, entry.turn, key=_turn)
            if index < len(self._waiting) and self._waiting[index] is entry:
                self._forget(entry)
                del self._waiting[index]
                self._tokens -= entry.tokens

    def clear(self) -> list[E]:
        """Remove all waiting entries and return them."""
        self._equals.clear()
        cleared, self._waiting = self._waiting, []
        self._tokens = 0
        return cleared

    def take_batch(self, *, max_tokens: int, share: float, now: float) -> list[list[E]]:
        """Remove and return the next batch: the entry whose turn it is, and others of like length.

        The batch is a list of rows. A row has an entry and all waiting entries that equal it, so
        it is computed once. Number of rows × longest stays within ``max_tokens``; a longer entry
        goes alone. A batch takes no more rows once they have ``share`` tokens: the rest is for
        other idle runners. Entries whose deadline is ``now`` or earlier are dropped. The batch is
        empty if no entry is left.

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
                self._forget(entry)
        chosen = _fill(window, max_tokens, share) if window else []
        rows = [self._row(entry) for entry in chosen]
        taken = {entry for row in rows for entry in row}
        left -= sum(entry.tokens for entry in taken)
        waiting = self._waiting[seen:]
        if len(taken) > len(rows):  # then entries behind the window may have been taken
            waiting = [entry for entry in waiting if entry not in taken]
            rows = [[entry for entry in row if now < entry.deadline] for row in rows]
        waiting[:0] = [entry for entry in window if entry not in taken]
        virtual_time = self._virtual_time
        if chosen:
            # Virtual time moves to the leader's end, not to its start. Every request is a new
            # flow. If time stood still while newcomers lead, they could block a long list forever.
            leader = chosen[0]
            virtual_time = max(virtual_time, leader.turn[0] + leader.tokens)
        # Everything before this line may fail; these assignments cannot.
        self._waiting, self._tokens, self._virtual_time = waiting, left, virtual_time
        return rows

    def _row(self, entry: E) -> list[E]:
        """The entry and all that equal it."""
        equals = self._equals.pop(entry.key, {})
        equals.pop(entry, None)
        return [entry, *equals]

    def _forget(self, entry: E) -> None:
        """Do not take the entry together with others any more."""
        equals = self._equals.get(entry.key, {})
        equals.pop(entry, None)
        if not equals:
            self._equals.pop(entry.key, None)


def _fill(window: Sequence[E], max_tokens: int, share: float) -> list[E]:
    """The first entry of the window, and those nearest to it in length that fit in its batch.

    No two of them are equal.
    """
    leader = window[0]
    batch, keys = [leader], {leader.key}
    tokens = longest = leader.tokens

    def distance(entry: E) -> tuple[int, int]:
        # The length as second key keeps entries of the same length together. Their order stays,
        # because the sort is stable.
        return abs(entry.tokens - leader.tokens), entry.tokens

    for entry in sorted(window[1:], key=distance):
        if tokens >= share:
            break
        if entry.key in keys:
            continue
        new_tokens = tokens + entry.tokens
        new_longest = max(longest, entry.tokens)
        padded_tokens = new_longest * (len(batch) + 1)
        if padded_tokens <= max_tokens and new_tokens >= (1 - MAX_PADDING) * padded_tokens:
            batch.append(entry)
            keys.add(entry.key)
            tokens, longest = new_tokens, new_longest
    return batch
