"""The queue in front of a GPU, in virtual time. What batches cost is arithmetic, not measured."""

import asyncio
from collections.abc import Sequence

import pytest
from sentiment_service.cli.load_generator import tweet_lengths
from sentiment_service.engine.batching.batcher import MicroBatcher
from sentiment_service.engine.batching.fair_queue import TokenBudget
from sentiment_service.engine.tuning import (
    CUDA_BATCHES,
    CUDA_MAX_PADDING,
    RUNNERS_PER_GPU,
    TEXT_TOKENS,
    Cost,
    choose,
    queue_tokens,
)

from tests.support.batching import Hooks
from tests.support.virtual_time import Simulation

# RoBERTa-base on an H200: 170 MFLOP a token (the layers' weights, twice), at a fifth of the dense
# fp16 peak of 989 TFLOP/s; and 2 ms for a batch, to start its kernels.
TOKEN_S = 170e6 / (0.2 * 989e12)
BATCH_S = 0.002
CONNECTIONS, LIST, ROUNDS = 256, 64, 2
DEADLINE_S = 10.0
MEMORY_BYTES = 64 * 2**30


class _Gpu:
    """Computes one batch after the other, whichever runner brings it."""

    def __init__(self, simulation: Simulation, budget: TokenBudget) -> None:
        self._simulation = simulation
        self._budget = budget
        self._free_at = 0.0

    def infer(self, texts: Sequence[range]) -> Sequence[int]:
        now, tokens = self._simulation.now, self._budget.taken_by([*map(len, texts)])
        self._free_at = max(now, self._free_at) + BATCH_S + TOKEN_S * tokens
        self._simulation.work(self._free_at - now)
        return [len(text) for text in texts]


def _measured() -> Cost:
    """What the measurement at start would find: each runner waits for the other's batch, too."""
    alone = {texts: BATCH_S + TOKEN_S * texts * TEXT_TOKENS for texts in CUDA_BATCHES}
    seconds = {texts: RUNNERS_PER_GPU * one for texts, one in alone.items()}
    return Cost(RUNNERS_PER_GPU, 1, seconds, alone=alone[1])


@pytest.mark.parametrize(("max_padding", "busy"), [(CUDA_MAX_PADDING, 0.75), (None, 0.9)])
def test_many_connections_with_lists_keep_a_gpu_busy(
    max_padding: float | None, busy: float
) -> None:
    """256 connections with lists of 64 tweets get their answers, not 429.

    Three quarters of the time or more would be needed without padding and the start of kernels;
    nine tenths with a graph that computes no padding.
    """
    simulation, cost = Simulation(), _measured()
    budget = TokenBudget(TEXT_TOKENS * choose([cost], 0.0)[1], max_padding=max_padding)
    lengths = tweet_lengths(CONNECTIONS * LIST * ROUNDS)

    async def connection(batcher: MicroBatcher[range, int], number: int) -> None:
        for first in range(number * LIST, len(lengths), CONNECTIONS * LIST):
            texts = [range(length) for length in lengths[first : first + LIST]]
            answer = await batcher.submit(texts, timeout_s=DEADLINE_S)
            assert answer.results == [*map(len, texts)]

    async def play() -> None:
        batcher = MicroBatcher(
            _Gpu(simulation, budget).infer,
            Hooks(),
            runners=RUNNERS_PER_GPU,
            budget=budget,
            max_queue_tokens=queue_tokens(cost, MEMORY_BYTES),
        )
        await asyncio.gather(*(connection(batcher, number) for number in range(CONNECTIONS)))
        await batcher.drain(DEADLINE_S)

    simulation.run(play())
    without_padding_s = TOKEN_S * sum(lengths)
    assert without_padding_s > busy * simulation.now
