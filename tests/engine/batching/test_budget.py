"""The budget of a batch: what live batches may change about it, and what they may not."""

from collections.abc import Callable, Mapping

import pytest

from app.engine.batching.budget import BESIDE, TRIALS, TRY_EVERY, TokenBudget

ENOUGH = 4 * TRY_EVERY * TRIALS  # batches for one decision


def _budget(tokens: int = 256, changes: list[int] | None = None) -> TokenBudget:
    changes = [] if changes is None else changes
    return TokenBudget(tokens, fixed=False, least=32, most=512, on_change=changes.append)


def _learn(budget: TokenBudget, size: int, speed: float) -> None:
    budget.learn(size, texts=8, longest=size // 8, tokens=size, seconds=size / speed)


def _live(
    budget: TokenBudget,
    speeds: Mapping[int, float],
    batches: int,
    drift: Callable[[int], float] = lambda number: 1.0,
) -> None:
    """Live batches under load: each size computes these tokens per second, plus or minus 1/3."""
    for number in range(batches):
        size = budget.next(waiting=10_000)
        noise = (0.7, 1.0, 1.3)[number % 3]
        _learn(budget, size, speeds[size] * noise * drift(number))


def test_it_goes_where_batches_compute_more(caplog: pytest.LogCaptureFixture) -> None:
    """The budget moves step by step to the best size from any start.

    Each step is announced, and logged with the old size and the new one.
    """
    caplog.set_level("INFO", logger="app.engine.batching.budget")
    speeds = {16: 1, 32: 50, 64: 70, 128: 80, 256: 60, 512: 50, 1024: 1}
    for start, steps in ((256, [128]), (32, [64, 128]), (512, [256, 128])):
        changes: list[int] = []
        budget = _budget(start, changes)
        _live(budget, speeds, 4 * ENOUGH)
        assert changes == steps
        assert budget.tokens == 128
    first = "batches have at most 128 tokens from now on, not 256"
    assert first in caplog.messages[0]
    assert len(caplog.messages) == 5


def test_noise_changes_nothing() -> None:
    """Differences smaller than the noise change nothing."""
    changes: list[int] = []
    _live(_budget(256, changes), {128: 102, 256: 100, 512: 103}, 20 * ENOUGH)
    assert changes == []


def test_a_machine_that_drifts_changes_nothing() -> None:
    """A neighbour that slows everything down for a while does not change the budget."""
    changes: list[int] = []
    speeds = dict.fromkeys((128, 256, 512), 100.0)
    _live(_budget(256, changes), speeds, 20_000, lambda n: 0.85 if n % 400 < 60 else 1.0)
    assert changes == []


def test_it_stays_within_its_bounds() -> None:
    """The budget stays within its bounds, even if sizes beyond them would be faster."""
    for best in (16, 1024):
        budget = _budget(128)
        tried = set()
        for _ in range(4 * ENOUGH):
            size = budget.next(waiting=10_000)
            tried.add(size)
            _learn(budget, size, 1 / abs(size - best))
        assert (min(tried), max(tried)) == ((32, 256) if best == 16 else (64, 512))


def test_other_sizes_are_tried_only_where_they_cost_little() -> None:
    """One batch in eight tries another size, and none does while less than two batches wait."""
    budget = _budget()
    sizes = [budget.next(waiting=10_000) for _ in range(10 * TRY_EVERY)]
    assert sizes.count(256) == len(sizes) - 10
    assert {*sizes} == {128, 256, 512}
    assert {budget.next(waiting=511) for _ in range(100)} == {256}


@pytest.mark.parametrize(
    "batches",
    [
        # They are not full: small because little waited.
        [(256, 2, 95, 180, 1.0), (128, 2, 45, 90, 0.01)],
        # Smaller batches cannot have such long texts, which make them slow.
        [(256, 1, 250, 250, 10.0), (256, 1, 400, 400, 10.0), (128, 8, 16, 128, 0.128)],
        # The clock did not move, and nothing is divided by zero.
        [(256, 8, 32, 256, 0.0)],
    ],
)
def test_batches_that_say_nothing_about_their_size(
    batches: list[tuple[int, int, int, int, float]],
) -> None:
    """Such batches do not count, whatever seconds they took."""
    budget = _budget()
    for size, texts, longest, tokens, seconds in batches * 4 * TRIALS:
        budget.learn(size, texts=texts, longest=longest, tokens=tokens, seconds=seconds)
    assert budget.tokens == 256


def test_what_is_fixed_stays() -> None:
    """A budget set by hand, or chosen for a target latency, does not change."""
    budget = TokenBudget(256)
    for _ in range(4 * TRIALS):
        assert budget.next(waiting=10_000) == 256
        _learn(budget, 256, 1.0)
        _learn(budget, 128, 9.0)
    assert budget.tokens == 256


def test_another_model_learns_for_itself() -> None:
    """After a reload, the new model starts with the same budget and learns on its own."""
    changes: list[int] = []
    budget = _budget(256, changes)
    other = budget.again()
    _live(other, {128: 90.0, 256: 60.0, 512: 60.0, 64: 1.0}, 2 * ENOUGH)
    assert (other.tokens, budget.tokens) == (128, 256)
    assert changes == []


# Where memory runs out


def test_memory_that_ran_out_lowers_the_budget_for_good(caplog: pytest.LogCaptureFixture) -> None:
    """The budget is halved until it is smaller than the batch; faster sizes do not raise it.

    One line has both budgets, the cure and ONNX Runtime's reason. No change is announced, so none
    is kept for the next start. A reloaded model starts with the lowered budget, which does not
    grow either.
    """
    changes: list[int] = []
    budget = _budget(512, changes)
    budget.lower(500, "CUDA failure 2: out of memory")
    assert budget.tokens == 256
    [line] = caplog.messages
    assert "memory ran out in a batch of 500 tokens" in line
    assert "batches have at most 256 tokens, not 512" in line
    assert "start with --max-batch-tokens 256" in line
    assert line.endswith(": CUDA failure 2: out of memory")
    budget.lower(130, "out of memory")
    for one in (budget, budget.again()):
        assert (one.tokens, one.lowered) == (128, True)
        _live(one, {64: 1.0, 128: 60.0, 256: 90.0}, 2 * ENOUGH)
        assert one.tokens == 128
    budget.lower(128, "out of memory")
    _live(budget, {32: 90.0, 64: 60.0, 128: 1.0}, 2 * ENOUGH)
    assert budget.tokens == 32
    assert changes == []


def test_a_larger_size_that_does_not_fit_is_not_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """If memory runs out in a trial of twice the budget, the budget stays, and is the largest.

    The log has both sizes.
    """
    budget = _budget(128)
    budget.lower(250, "out of memory")
    assert budget.tokens == 128
    assert "batches have at most 128 tokens, not 512" in caplog.text
    assert {budget.next(waiting=10_000) for _ in range(10 * TRY_EVERY)} == {64, 128}


def test_a_batch_formed_before_memory_ran_out_changes_nothing() -> None:
    """Large batches that end well after the budget was lowered do not raise it."""
    budget = _budget(256)
    for _ in range(BESIDE):
        _learn(budget, 256, 10.0)
    budget.lower(256, "out of memory")
    for _ in range(4 * TRIALS):
        _learn(budget, 128, 10.0)
        _learn(budget, 256, 90.0)
    assert budget.tokens == 128


def test_a_budget_that_is_set_is_lowered_too() -> None:
    """The operator's value is lowered as well, but not below one token."""
    budget = TokenBudget(100)
    budget.lower(60, "out of memory")
    assert (budget.tokens, budget.next(waiting=10_000)) == (50, 50)
    budget.lower(1, "out of memory")
    assert budget.tokens == 1
