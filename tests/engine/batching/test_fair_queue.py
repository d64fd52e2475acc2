import math
import random
import statistics
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentiment_service.engine.batching.fair_queue import (
    LOOK_AHEAD,
    MAX_PADDING,
    FairQueue,
    QueuedItem,
)

LONGEST = 20

anytime = settings(deadline=None)  # a busy machine is not a fault of the queue

lengths = st.integers(min_value=1, max_value=LONGEST)
requests = st.lists(st.lists(lengths, min_size=1, max_size=30), max_size=8)
budgets = st.integers(min_value=1, max_value=5 * LONGEST)


# The queue reads nothing of an item but its tokens and its deadline.
REQUEST: Any = None


def items_of(*tokens: int, deadline: float = math.inf) -> list[QueuedItem]:
    return [QueuedItem(count, deadline, None, REQUEST, 0) for count in tokens]


def take(
    queue: FairQueue,
    *,
    max_tokens: int = 10_000,
    share: float = math.inf,
    now: float = 0.0,
    max_padding: float | None = MAX_PADDING,
) -> list[QueuedItem]:
    return queue.take_batch(max_tokens=max_tokens, max_padding=max_padding, share=share, now=now)


def take_all(queue: FairQueue, *, max_tokens: int = 10_000) -> list[list[QueuedItem]]:
    batches = []
    while batch := take(queue, max_tokens=max_tokens):
        batches.append(batch)
    return batches


def queue_of(*requests: list[QueuedItem]) -> FairQueue:
    queue = FairQueue()
    for request in requests:
        queue.add(request)
    return queue


def test_lists_take_turns() -> None:
    """Two equal requests are served alternately, whichever came first."""
    first, second = items_of(*[10] * 5), items_of(*[10] * 5)
    taken = [batch[0] for batch in take_all(queue_of(first, second), max_tokens=10)]
    assert taken == [item for pair in zip(first, second, strict=True) for item in pair]


def test_the_batch_is_filled_with_the_nearest_lengths() -> None:
    """The batch is filled with the texts whose lengths are nearest to the leader's."""
    leader, *_ = request = items_of(100, 90, 98, 80, 101, 110, 97)
    batch = take(queue_of(request), max_tokens=4 * 101)
    assert batch[0] is leader
    assert sorted(item.tokens for item in batch) == [97, 98, 100, 101]


def test_the_look_ahead_is_bounded() -> None:
    """Only a limited number of next turns are considered, even if better matches stand behind."""
    far, near = items_of(10, *[1000] * LOOK_AHEAD, 10), items_of(10, *[1000] * (LOOK_AHEAD - 1), 10)
    assert len(take(queue_of(far), max_tokens=1000)) == 1
    assert len(take(queue_of(near), max_tokens=1000)) == 2


class Fragile(QueuedItem):
    """An item that raises once all such items were read a given number of times."""

    reads_left = math.inf

    def __getattribute__(self, name: str) -> Any:
        Fragile.reads_left -= 1
        if Fragile.reads_left < 0:
            raise MemoryError
        return super().__getattribute__(name)


def test_a_fault_while_taking_costs_nothing() -> None:
    """After an error during take, all items still wait and count, and the next take works."""
    faults = 0
    while True:
        waiting: list[QueuedItem] = [
            Fragile(tokens, 9.0, None, REQUEST, 0) for tokens in (3, 5, 4, 5, 20)
        ]
        behind: list[QueuedItem] = [
            Fragile(3, 9.0, None, REQUEST, 0),
            Fragile(3, 1.0, None, REQUEST, 0),
        ]
        expired: list[QueuedItem] = [Fragile(tokens, 1.0, None, REQUEST, 0) for tokens in (2, 5)]
        queue = queue_of(expired, [*waiting, *behind])
        Fragile.reads_left = faults
        try:
            take(queue, max_tokens=15, now=5.0)
            break
        except MemoryError:
            faults += 1
        finally:
            Fragile.reads_left = math.inf
        assert (len(queue), queue.tokens) == (9, 50)
        taken = []
        while batch := take(queue, max_tokens=15, now=5.0):
            taken += batch
        assert len(taken) == 6
        assert {*taken} == {*waiting, behind[0]}
        assert (len(queue), queue.tokens) == (0, 0)
    assert faults > 20


class Counted(QueuedItem):
    """An item that counts how often any of its attributes is read."""

    reads = 0

    def __getattribute__(self, name: str) -> Any:
        Counted.reads += 1
        return super().__getattribute__(name)


@pytest.mark.parametrize("share", [200, math.inf])
def test_the_cost_of_a_batch_does_not_grow_with_the_queue(share: float) -> None:
    """However many texts wait, each take reads some times as many as it may take, and no more."""
    generator = random.Random(0)
    lengths = range(5, 46)
    queue = FairQueue()
    for _ in range(8_000):
        queue.add([Counted(generator.choice(lengths), math.inf, None, REQUEST, 0)])
    considered = LOOK_AHEAD * min(8_192, share) / statistics.mean(lengths)
    while len(queue) > 4_000:
        Counted.reads = 0
        take(queue, max_tokens=8_192, share=share)
        assert Counted.reads <= 5 * considered + 100
    Counted.reads = 0
    queue.tokens_before(10)
    assert Counted.reads < 100


def test_a_removed_list_leaves_the_others_in_their_turns() -> None:
    """Texts that give up in the middle of the queue take no room in it any more."""
    front, late, behind = items_of(*[10] * 3), items_of(*[7] * 3), items_of(*[10] * 3)
    queue = queue_of(front, late, behind)
    queue.remove(late)
    queue.remove(late)
    assert (len(queue), queue.tokens) == (6, 60)
    pairs = zip(front, behind, strict=True)
    assert queue.clear() == [item for pair in pairs for item in pair]
    assert (len(queue), queue.tokens, take(queue)) == (0, 0, [])


@anytime
@given(requests, budgets, st.data())
def test_all_come_out_in_good_batches(
    lists: list[list[int]], budget: int, data: st.DataObject
) -> None:
    """Each item that still waits, whatever was taken and removed before, comes out once. Each
    batch keeps the budget, unless it is a single item, and the limit of padding. The item with
    the earliest turn leads it, so none is passed over for ever."""
    added = [items_of(*request) for request in lists]
    queue = queue_of(*added)
    everything = [item for request in added for item in request]
    removed = {item for item in everything if data.draw(st.booleans())}
    waiting = set(everything) - set(take(queue, max_tokens=budget)) - removed
    queue.remove(removed)
    while batch := take(queue, max_tokens=budget):
        assert batch[0] is min(waiting, key=lambda item: item.turn)
        assert waiting.issuperset(batch)
        waiting.difference_update(batch)
        assert (len(queue), queue.tokens) == (len(waiting), sum(one.tokens for one in waiting))
        tokens = [item.tokens for item in batch]
        padded = len(batch) * max(tokens)
        assert len(batch) == 1 or padded <= budget
        assert padded - sum(tokens) <= MAX_PADDING * padded
    assert waiting == set()


def test_a_newcomer_does_not_wait_for_a_long_list() -> None:
    """At most the items that start no later than a single text come before it."""
    queue = queue_of(items_of(*[10] * 100))
    assert queue.tokens_before(10) == 10
    assert queue.tokens_before(1000) == 1000


@anytime
@given(requests, lengths)
def test_tokens_before_are_those_served_before(lists: list[list[int]], newcomer: int) -> None:
    """The predicted tokens before a single text are those served before it, one item at a time."""
    queue = queue_of(*(items_of(*request) for request in lists))
    predicted = queue.tokens_before(newcomer)
    (last,) = items_of(newcomer)
    queue.add([last])

    before = 0
    while (leader := take(queue, max_tokens=1)[0]) is not last:
        before += leader.tokens
    # The prediction reserves the newcomer's own length in virtual time, so it never falls short.
    assert before <= predicted


@anytime
@given(requests, budgets, st.integers(min_value=1, max_value=5 * LONGEST))
def test_without_padding_texts_of_any_lengths_come_in_their_order(
    lists: list[list[int]], budget: int, share: int
) -> None:
    """Where no padding is computed, a batch has the next texts, as many real tokens as fit.

    It ends with the text that reaches its share. A longer text goes alone.
    """
    queue = queue_of(*(items_of(*request) for request in lists))
    turns = []
    while batch := take(queue, max_tokens=budget, share=share, max_padding=None):
        tokens = [item.tokens for item in batch]
        assert len(batch) == 1 or sum(tokens) <= budget
        assert sum(tokens[:-1]) < share
        rest = take_one(queue)
        assert sum(tokens) >= share or rest is None or sum(tokens) + rest > budget
        turns += [item.turn for item in batch]
    assert turns == sorted(turns)
    assert len(turns) == sum(map(len, lists))
    assert queue.tokens == 0


def take_one(queue: FairQueue) -> int | None:
    """The tokens of the item whose turn is next, which stays; None if there is none."""
    return queue._order[0].tokens if len(queue) else None


def test_unlike_lengths_share_a_batch_where_padding_is_not_computed() -> None:
    """510 tokens fit into a budget of 512, though four times the longest would not."""
    queue = queue_of(items_of(5, 480, 20, 5, 8))
    batch = take(queue, max_tokens=512, max_padding=None)
    assert [item.tokens for item in batch] == [5, 480, 20, 5]
