"""The queue of texts that wait for inference. It uses no threads, no clock and no event loop.

The order is start-time fair queueing (Goyal, Vin and Cheng, 1996). Each request is its own flow.
In virtual time, an entry starts when the earlier entries of its own request would have ended. So
the hundredth text of a list waits for as many tokens of newcomers as of its own list. Requests of
a single text are served in the order in which they arrived.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from operator import attrgetter
from typing import Generic, TypeVar

# How many tokens are considered for a batch, as a multiple of its budget. This is enough to find
# tweets of similar length, and so few that texts taken out of turn do not delay others for long.
LOOK_AHEAD = 4


@dataclass(slots=True, eq=False)
class Entry:
    """One waiting text: its length in tokens, and its deadline on the caller's clock."""

    tokens: int
    deadline: float
    turn: tuple[int, int] = field(init=False)  # virtual start, then order of arrival
    waiting: bool = field(init=False, default=False)


_turn = attrgetter("turn")
E = TypeVar("E", bound=Entry)


class FairQueue(Generic[E]):
    """Entries in the order of their turns. Batches are taken from the front.

    Taking a batch reads the entries that it takes and a few others, however many entries wait. The
    waiting entries are in several lists. What has left the queue stays in them until it is at the
    front of a list that is read, or until the lists have as many such entries as waiting ones.
    """

    def __init__(self) -> None:
        self._order: list[E] = []  # sorted by turn
        # The same by length, each sorted by turn. After an error such as MemoryError, a waiting
        # entry may be missing here; it is then computed by itself.
        self._lengths: dict[int, list[E]] = {}
        self._places = 0  # in ``_order`` and ``_lengths``, with those of entries that have left
        self._count = 0
        self._tokens = 0
        self._virtual_time = 0
        self._arrivals = 0

    def __len__(self) -> int:
        return self._count

    @property
    def tokens(self) -> int:
        """The number of tokens of the waiting entries, without padding."""
        return self._tokens

    def tokens_before(self, tokens: int) -> int:
        """Tokens that are served before a new request of ``tokens`` tokens has its last turn."""
        order = self._order
        ahead = bisect_left(order, (self._virtual_time + tokens, 0), key=_turn)
        # When a long list waits, few entries are ahead; else, few or none are behind.
        if ahead <= len(order) // 2:
            return _waiting_tokens(islice(order, ahead))
        return self._tokens - _waiting_tokens(islice(order, ahead, None))

    def add(self, request: Iterable[E]) -> None:
        """Queue the entries of one request, in their order."""
        start = self._virtual_time
        for entry in request:
            entry.turn = (start, self._arrivals)
            _insert(self._order, entry)
            entry.waiting = True
            start += entry.tokens
            self._count += 1
            self._tokens += entry.tokens
            self._arrivals += 1
            self._places += 2
            _insert(self._lengths.setdefault(entry.tokens, []), entry)

    def remove(self, entries: Iterable[E]) -> None:
        """Remove those of the entries that still wait."""
        self._leave([entry for entry in entries if entry.waiting], self._virtual_time)
        self._tidy()

    def clear(self) -> list[E]:
        """Remove all waiting entries and return them."""
        cleared = [entry for entry in self._order if entry.waiting]
        self.remove(cleared)
        return cleared

    def take_batch(
        self, *, max_tokens: int, max_padding: float, share: float, now: float
    ) -> list[E]:
        """Remove and return the next batch: the entry whose turn it is, and others of like length.

        Number of entries × longest stays within ``max_tokens``, of which ``max_padding``, as a
        share, may be padding; a longer entry goes alone. A batch takes no more entries once they
        have ``share`` tokens: the rest is for other idle runners. Entries that are found to have a
        deadline of ``now`` or earlier are dropped. The batch is empty if no entry is left.

        If an error is raised, such as MemoryError, no entry is lost and the counts stay correct.
        """
        expired: set[E] = set()
        leader = next(self._live(self._order, now, expired), None)
        batch: list[E] = []
        virtual_time = self._virtual_time
        if leader is not None:
            batch = self._fill(leader, max_tokens, max_padding, share, now, expired)
            # Virtual time moves to the leader's end, not to its start. Every request is a new
            # flow. If time stood still while newcomers lead, they could block a long list forever.
            virtual_time = max(virtual_time, leader.turn[0] + leader.tokens)
        self._leave([*batch, *expired], virtual_time)
        with suppress(MemoryError):  # there is a next time, but this batch comes only once
            self._tidy()
        return batch

    def _fill(
        self,
        leader: E,
        max_tokens: int,
        max_padding: float,
        share: float,
        now: float,
        expired: set[E],
    ) -> list[E]:
        """The leader, and those nearest to it in length that fit in its batch.

        Entries of equal length keep their order.
        """
        batch = [leader]
        tokens = longest = leader.tokens
        horizon = self._horizon(max_tokens)
        for length in sorted(self._lengths, key=lambda one: (abs(one - leader.tokens), one)):
            new_longest = max(longest, length)
            for entry in self._live(self._lengths[length], now, expired):
                padded_tokens = new_longest * (len(batch) + 1)
                least = (1 - max_padding) * padded_tokens
                if tokens >= share or padded_tokens > max_tokens or tokens + length < least:
                    break
                if entry.turn >= horizon:
                    break
                if entry is not leader:
                    batch.append(entry)
                    tokens, longest = tokens + length, new_longest
            if tokens >= share or longest * (len(batch) + 1) > max_tokens:
                break
        return batch

    def _horizon(self, max_tokens: int) -> tuple[float, int]:
        """The first turn that is too far behind to be considered for a batch of ``max_tokens``."""
        mean = self._tokens / self._count
        # Those that were taken out of turn are in front of it, too.
        index = len(self._order) - self._count + int(LOOK_AHEAD * max_tokens / mean)
        return self._order[index].turn if index < len(self._order) else (inf, 0)

    def _live(self, entries: list[E], now: float, expired: set[E]) -> Iterator[E]:
        """Those of the entries that wait; those with a deadline that has passed go to ``expired``.

        Entries that have left are deleted from the front of the list.
        """
        left = 0
        for entry in entries:
            if entry.waiting:
                break
            left += 1
        if left:
            del entries[:left]
            self._places -= left
        for entry in entries:
            if entry.waiting:
                if now < entry.deadline:
                    yield entry
                else:
                    expired.add(entry)

    def _leave(self, entries: Sequence[E], virtual_time: int) -> None:
        """Count the entries as taken or removed, all of them or, after an error, none."""
        count, tokens = self._count - len(entries), self._tokens - _waiting_tokens(entries)
        # Everything before this line may fail; these assignments cannot.
        for entry in entries:
            entry.waiting = False
        self._count, self._tokens, self._virtual_time = count, tokens, virtual_time

    def _tidy(self) -> None:
        """Delete the entries that have left from all lists, if they have more places than others.

        So each entry is deleted in constant time on average.
        """
        if self._places <= 4 * self._count:
            return
        order = [entry for entry in self._order if entry.waiting]
        lengths: dict[int, list[E]] = {}
        for entry in order:
            lengths.setdefault(entry.tokens, []).append(entry)
        self._order, self._lengths, self._places = order, lengths, 2 * len(order)


def _waiting_tokens(entries: Iterable[Entry]) -> int:
    return sum(entry.tokens for entry in entries if entry.waiting)


def _insert(entries: list[E], entry: E) -> None:
    """Insert the entry into a list that is sorted by turn; most come last."""
    if entries and entry.turn < entries[-1].turn:
        insort(entries, entry, key=_turn)
    else:
        entries.append(entry)
