"""The budget of a batch: what live batches may change about it, and what not."""

import threading
from collections.abc import Mapping
from itertools import count

import pytest

from app.budget import SAMPLES, TRY_EVERY, TokenBudget


def _budget(changes: list[int] | None = None) -> TokenBudget:
    return TokenBudget(
        256,
        fixed=False,
        least=32,
        most=512,
        on_change=(changes if changes is not None else []).append,
    )


def _live(budget: TokenBudget, speeds: Mapping[int, float], batches: int) -> None:
    """Batches under load; each size computes so many tokens a second, give or take a third."""
    for number in range(batches):
        size = budget.next(waiting=10_000)
        noise = (0.7, 1.0, 1.3)[number % 3]
        budget.learn(tokens=size, padded_tokens=size, seconds=size / (speeds[size] * noise))


def test_it_goes_where_batches_compute_more() -> None:
    """Step by step to the best size, however bad the start was; each step is announced."""
    changes: list[int] = []
    budget = _budget(changes)
    speeds = {16: 1, 32: 50, 64: 70, 128: 80, 256: 60, 512: 50, 1024: 1}
    _live(budget, speeds, 50 * SAMPLES)
    assert changes == [128]
    assert budget.tokens == 128

    changes.clear()
    budget = TokenBudget(32, fixed=False, least=32, most=512, on_change=changes.append)
    _live(budget, speeds, 100 * SAMPLES)
    assert changes == [64, 128]


def test_noise_changes_nothing() -> None:
    """Sizes that differ by less than can be told apart stay as they were."""
    changes: list[int] = []
    budget = _budget(changes)
    _live(budget, {128: 102, 256: 100, 512: 103}, 200 * SAMPLES)
    assert changes == []


def test_it_stays_within_its_bounds() -> None:
    """However well it may look beyond them."""
    for best in (16, 1024):
        budget = TokenBudget(128, fixed=False, least=32, most=512)
        tried = set()
        for _ in range(100 * SAMPLES):
            size = budget.next(waiting=10_000)
            tried.add(size)
            budget.learn(tokens=size, padded_tokens=size, seconds=size * abs(size - best))
        assert (min(tried), max(tried)) == ((32, 256) if best == 16 else (64, 512))


def test_other_sizes_are_tried_only_where_they_cost_little() -> None:
    """One batch in eight, and none while less than two batches wait: a lone text never meets it."""
    budget = _budget()
    sizes = [budget.next(waiting=10_000) for _ in range(10 * TRY_EVERY)]
    assert sizes.count(256) == len(sizes) - 10
    assert {*sizes} == {128, 256, 512}
    assert {budget.next(waiting=511) for _ in range(100)} == {256}


def test_batches_that_are_not_full_say_nothing() -> None:
    """A batch is small because little waited, and fast or slow for reasons of its own."""
    budget = _budget()
    for _ in range(10 * SAMPLES):
        budget.learn(tokens=180, padded_tokens=190, seconds=1.0)
        budget.learn(tokens=90, padded_tokens=95, seconds=0.01)
    assert budget.tokens == 256


def test_what_is_fixed_stays() -> None:
    """A budget set by hand, or for a target of latency."""
    budget = TokenBudget(256)
    for _ in range(10 * SAMPLES):
        assert budget.next(waiting=10_000) == 256
        budget.learn(tokens=128, padded_tokens=128, seconds=0.01)
    assert budget.tokens == 256


def test_runners_learn_at_the_same_time() -> None:
    """Reports of many threads are taken one by one: one change for one proof."""
    changes: list[int] = []
    budget = _budget(changes)
    numbers = count()

    def report() -> None:
        while next(numbers) < 8 * SAMPLES:
            budget.learn(tokens=256, padded_tokens=256, seconds=1.0)
            budget.learn(tokens=128, padded_tokens=128, seconds=0.1)

    threads = [threading.Thread(target=report) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert changes == [128]


def test_a_change_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever reads the log sees from which size to which, and what it brings."""
    with caplog.at_level("INFO", logger="app.budget"):
        _live(_budget(), {128: 60.0, 256: 60.0, 512: 90.0}, 50 * SAMPLES)
    assert "batches have at most 512 tokens from now on, not 256" in caplog.text
