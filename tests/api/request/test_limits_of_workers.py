"""Limits of several workers: they hold for the service, whichever worker gets a request."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sentiment_service import shared_memory
from sentiment_service.requests.limits import InflightBytes
from sentiment_service.shared_memory import SECTIONS, Board, HitLimit

from tests.support.boards import boards, shared_board

HITS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from("abc"), st.floats(0, 4)), min_size=1, max_size=60
)


@given(hits=HITS, most=st.integers(1, 4))
@example(hits=[(2, "a", 0.0), (1, "a", 1.0), (0, "a", 1.0)], most=2)
def test_limits_of_workers_are_one_limit(hits: list[tuple[int, str, float]], most: int) -> None:
    """Hits one after another get the same answers, whichever of three workers each comes to."""
    now = 100.0
    one, *workers = (
        HitLimit(most, 10, board.parts("hits"), clock=lambda: now)
        for board in (Board.alone(), *boards(3))
    )
    for worker, key, passed_s in hits:
        now += passed_s
        assert workers[worker].hit(key) == one.hit(key)


def test_a_successor_knows_the_hits_before_it() -> None:
    """A worker that takes the place of another begins with the hits of all workers."""
    with shared_board(2) as (supervisor, descriptor):
        first, second = (Board.open(descriptor, 2, number) for number in (0, 1))
        limits = [HitLimit(2, 1000, board.parts("hits")) for board in (first, second)]
        assert [limit.hit("key") for limit in limits] == [0, 0]
        supervisor.clear_present(1)
        successor = HitLimit(2, 1000, Board.open(descriptor, 2, 1).parts("hits"))
        assert successor.hit("key") > 0
        assert successor.hit("other key") == 0
        assert limits[0].hit("other key") == 0
        assert limits[0].hit("other key") > 0


def test_a_ring_begins_anew_when_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """More hits than the ring has room for: those who read often miss none, others the oldest."""
    monkeypatch.setitem(SECTIONS, "hits", 8 + 24 * 10)
    monkeypatch.setattr(shared_memory, "_PART", sum(SECTIONS.values()))
    with shared_board(2) as (_, descriptor):
        writer, often, seldom = (
            HitLimit(100, 1000, Board.open(descriptor, 2, number).parts("hits"))
            for number in (1, 0, 0)
        )
        for _ in range(35):
            writer.hit("key")
            often.catch_up()
        seldom.catch_up()
        (seen,), (kept,) = often._hits.values(), seldom._hits.values()
        assert [count for _, count in (seen, kept)] == [35, 10]


def test_alone_nothing_is_written() -> None:
    """A service of one worker keeps its hits to itself: nobody would read them."""
    board = Board.alone()
    HitLimit(2, 10, board.parts("hits")).hit("key")
    assert not any(board.section("hits", 0))


def test_bytes_in_flight_are_limited_together() -> None:
    """What one worker holds, another one cannot take, until it is given back or the worker ends."""
    with shared_board(2) as (supervisor, descriptor):
        all_, streams = [], []
        for number in (0, 1):
            board = Board.open(descriptor, 2, number)
            all_.append(InflightBytes(100, board.parts("bodies")))
            streams.append(InflightBytes(50, board.parts("streams"), within=all_[-1]))
        assert all_[0].take(60)
        assert not all_[1].take(41)
        assert all_[1].remaining == 40
        assert streams[1].take(40)
        assert not all_[0].take(1)
        all_[0].give(60)
        assert not streams[0].take(11)
        assert streams[0].take(10)
        assert [held.taken for held in all_ + streams] == [50] * 4
        supervisor.clear_present(1)
        assert [all_[0].taken, streams[0].taken] == [10, 10]
