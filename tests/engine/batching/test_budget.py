"""The budget of a batch, where memory runs out."""

import pytest
from sentiment_service.engine.batching.fair_queue import TokenBudget
from sentiment_service.errors import OutOfMemory

NO_MEMORY = OutOfMemory("CUDA failure 2: out of memory")


def test_memory_that_ran_out_lowers_the_budget_for_good(caplog: pytest.LogCaptureFixture) -> None:
    """The budget is halved until it is smaller than the batch, but not below one token.

    One line has both budgets, the cure and ONNX Runtime's reason. A reloaded model starts with the
    lowered budget, and lowers only its own.
    """
    budget = TokenBudget(512)
    budget.lower([250, 100], NO_MEMORY)
    assert (budget.tokens, budget.start) == (256, 512)
    [line] = caplog.messages
    assert "memory ran out in a batch of 500 tokens" in line
    assert "batches have at most 256 tokens, not 512" in line
    assert "start with --max-batch-tokens 256" in line
    assert line.endswith(": CUDA failure 2: out of memory")
    budget.lower([65, 65], NO_MEMORY)
    assert budget.tokens == 128
    reloaded = budget.copy()
    assert (reloaded.tokens, reloaded.start) == (128, 512)
    reloaded.lower([1, 1], NO_MEMORY)
    assert (reloaded.tokens, budget.tokens) == (1, 128)


def test_padding_counts_if_it_is_computed() -> None:
    """Three texts take their tokens of the budget, and with padding three times the longest."""
    assert TokenBudget(512).taken_by([3, 500, 7]) == 1500
    assert TokenBudget(512, max_padding=None).taken_by([3, 500, 7]) == 510


def test_a_batch_formed_before_memory_ran_out_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A larger batch of another runner that fails later says nothing new, and is not logged."""
    budget = TokenBudget(256)
    budget.lower([100, 100], NO_MEMORY)
    budget.lower([125, 125], NO_MEMORY)
    assert budget.tokens == 128
    assert len(caplog.messages) == 1
