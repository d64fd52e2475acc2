"""The cache of results. ``compute`` gives each text results that no other text has."""

import asyncio
import tracemalloc
from collections.abc import Sequence

import pytest
from sentiment_service.engine.batching.fair_queue import Answer
from sentiment_service.engine.classifier import ResultCache
from sentiment_service.engine.model.model import Scored
from sentiment_service.engine.text.text_tokenizer import Encoding
from sentiment_service.errors import InferenceFailed, Overloaded, ServiceError

LABELS = 3
ENOUGH = 10**6  # bytes


def scored(encoding: Encoding) -> Scored:
    """Numbers that need all their bits."""
    logits = [number / 3 for number in (encoding.ids[0], len(encoding), 1e-300)]
    return logits, [-number for number in logits]


class Compute:
    """Notes what it was given; ids that begin with 0 fail."""

    def __init__(self) -> None:
        self.given: list[Encoding] = []

    async def __call__(self, encodings: Sequence[Encoding]) -> Answer[Scored]:
        self.given += encodings
        results: list[Scored | ServiceError] = [
            scored(encoding) if encoding.ids[0] else InferenceFailed("") for encoding in encodings
        ]
        return Answer(results, 1.0, 2.0)


class Lookups:
    """A cache and what it was asked."""

    def __init__(self, max_bytes: int = ENOUGH) -> None:
        self.counts: list[tuple[int, int]] = []
        self.compute = Compute()
        self.cache = ResultCache(
            max_bytes, labels=LABELS, on_lookup=lambda *counts: self.counts.append(counts)
        )

    def ask(self, *texts: Sequence[int]) -> Answer[Scored]:
        encodings = [Encoding.of(ids) for ids in texts]
        return asyncio.run(self.cache.answer(encodings, self.compute))

    @property
    def computed(self) -> list[list[int]]:
        return [encoding.ids for encoding in self.compute.given]


def test_a_text_that_comes_again_is_not_computed_again() -> None:
    """A known result is the same to the last bit, takes no time, and computes nothing."""
    lookups = Lookups()
    first = lookups.ask([1, 2])
    again = lookups.ask([1, 2])
    assert (first.queue_seconds, first.inference_seconds) == (1.0, 2.0)
    assert again == Answer(first.results, 0.0, 0.0)
    assert lookups.computed == [[1, 2]]
    assert lookups.counts == [(0, 1), (1, 0)]


def test_known_and_new_texts_keep_their_places() -> None:
    """Only what is missing is computed, and each result stands in the place of its text."""
    lookups = Lookups()
    lookups.ask([1], [2])
    texts = [[3], [2], [4, 4], [1], [3]]
    answer = lookups.ask(*texts)
    assert answer.results == [scored(Encoding.of(ids)) for ids in texts]
    assert (answer.queue_seconds, answer.inference_seconds) == (1.0, 2.0)
    assert lookups.computed == [[1], [2], [3], [4, 4], [3]]
    assert lookups.counts[-1] == (2, 3)


def test_ids_are_told_apart() -> None:
    """Texts whose ids differ in order, number or size have results of their own."""
    lookups = Lookups()
    texts = [[1, 2], [2, 1], [1], [1, 2, 0], [258], [1, 0, 2], [65_536]]
    lookups.ask(*texts)
    assert lookups.computed == texts
    assert lookups.ask(*texts).results == [scored(Encoding.of(ids)) for ids in texts]


def test_an_error_is_not_kept() -> None:
    """A text that failed is computed again; the texts beside it are kept."""
    lookups = Lookups()
    for _ in range(2):
        failed, fine = lookups.ask([0], [1]).results
        assert isinstance(failed, InferenceFailed)
        assert fine == scored(Encoding.of([1]))
    assert lookups.computed == [[0], [1], [0]]


def test_a_request_that_is_refused_keeps_nothing() -> None:
    """If computing raises an error, the error is the caller's, and nothing is kept."""
    lookups = Lookups()

    async def refuse(encodings: Sequence[Encoding]) -> Answer[Scored]:
        raise Overloaded("full", reason="queue_full", retry_after_s=1.0)

    with pytest.raises(Overloaded):
        asyncio.run(lookups.cache.answer([Encoding.of([1])], refuse))
    assert lookups.cache.size == 0
    lookups.ask([1])
    assert lookups.computed == [[1]]


def test_no_texts_compute_nothing() -> None:
    """A request without texts has an empty answer at once."""
    lookups = Lookups()
    assert lookups.ask() == Answer([], 0.0, 0.0)
    assert lookups.computed == []


def test_what_was_not_used_for_the_longest_time_goes_first() -> None:
    """A hit makes a result the latest."""
    lookups = Lookups()
    lookups.ask([1])
    room_for_three = 3 * lookups.cache.size
    lookups = Lookups(room_for_three)
    lookups.ask([1], [2], [3])
    lookups.ask([1])
    lookups.ask([4])
    assert lookups.cache.size == room_for_three
    lookups.ask([1], [3], [4])
    assert lookups.computed == [[1], [2], [3], [4]]
    lookups.ask([2])
    assert lookups.computed[-1] == [2]


@pytest.mark.parametrize("max_bytes", [200_000, 1_000_000])
def test_the_memory_stays_within_the_limit(max_bytes: int) -> None:
    """However many texts come, Python allocates at most the limit, and at least half of it."""
    lookups = Lookups(max_bytes)
    most = 3 * max_bytes // 200  # far more than fit
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        taken = []
        for first in range(1, most, 50):
            lookups.ask(*([number, 7] for number in range(first, first + 50)))
            lookups.compute.given.clear()
            lookups.counts.clear()
            taken.append(tracemalloc.get_traced_memory()[0] - before)
            assert lookups.cache.size <= max_bytes
    finally:
        tracemalloc.stop()
    assert max(taken) <= max_bytes
    assert taken[-1] >= max_bytes / 2
    assert lookups.cache.size > 0.99 * max_bytes
