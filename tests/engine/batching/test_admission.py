"""Which requests the batcher admits, and when it tells the others to come back."""

import asyncio
from collections.abc import Sequence

import pytest
from sentiment_service.engine.batching.fair_queue import CAUTION
from sentiment_service.errors import Overloaded, ServiceError

from tests.support.batching import Clock, Gate, ask, batching, begun, capitals, measured, queued


async def test_a_full_queue_refuses_at_once_and_tells_when_to_come_back() -> None:
    """A request that would exceed the queue's limit is refused; one that just fits is admitted.

    Retry-After is the time in which the excess tokens are computed.
    """
    clock = Clock()
    async with measured(clock, max_queue_tokens=40) as (batcher, gate):
        tasks = [await begun(batcher, gate, "x")]
        tasks += [await queued(batcher, "x" * 15), await queued(batcher, "x" * 15)]
        with pytest.raises(Overloaded, match=r"30 tokens are waiting.* limit of 40") as refusal:
            await ask(batcher, "x" * 15, "x" * 5)
        assert refusal.value.rejection == "queue_full"
        assert refusal.value.retry_after_s == pytest.approx(1.0)
        assert (len(batcher.queue), batcher.queue.tokens) == (2, 30)
        tasks += [await queued(batcher, "x" * 10)]
        gate.open()
        expected = [["X" * tokens] for tokens in (1, 15, 15, 10)]
        assert await asyncio.gather(*tasks) == expected


@pytest.mark.parametrize(("runners", "wait_s"), [(1, 7.1 * CAUTION), (2, 4.05 * CAUTION)])
async def test_a_request_that_cannot_make_its_deadline_is_refused(
    runners: int, wait_s: float
) -> None:
    """A request is refused if its predicted wait, at the speed of all runners, exceeds its time.

    Tokens ahead count twice, because as many again may overtake to fill batches. The request's own
    batch, of one second here, must end in time as well.
    """
    clock = Clock()
    async with measured(clock, runners=runners) as (batcher, gate):
        tasks = [await begun(batcher, gate, "x") for _ in range(runners)]
        tasks += [await queued(batcher, "x" * 30)]
        with pytest.raises(Overloaded, match="30 tokens are ahead of this request") as refusal:
            await ask(batcher, "x", timeout_s=wait_s - 0.5)
        assert refusal.value.rejection == "deadline"
        assert refusal.value.retry_after_s == pytest.approx(0.5)
        tasks += [await queued(batcher, "x", timeout_s=wait_s + 20)]
        gate.open()
        assert await tasks[-1] == ["X"]
        await asyncio.gather(*tasks)


async def test_the_predicted_wait_follows_the_latest_speed() -> None:
    """When inference becomes slower, the prediction rises; failed batches do not count."""
    clock = Clock()
    pace = 0.1

    def infer(items: Sequence[str]) -> list[str | ServiceError]:
        clock.now += pace * sum(map(len, items))
        if "bad" in items:
            raise ValueError
        return capitals(items)

    gate = Gate(infer)
    gate.open(103)
    async with batching(gate, clock=clock) as batcher:
        await ask(batcher, "x" * 10)
        pace = 1.0
        for _ in range(100):
            await ask(batcher, "x" * 10)
        pace = 100.0
        await ask(batcher, "bad")
        await ask(batcher, "bad")
        for _ in range(103):
            await gate.entered()
        tasks = [await begun(batcher, gate, "x"), await queued(batcher, "x" * 10)]
        with pytest.raises(Overloaded) as refusal:
            await ask(batcher, "x", timeout_s=1.0)
        assert refusal.value.retry_after_s == pytest.approx(31 * CAUTION - 1, rel=0.01)
        pace = 0.1
        gate.open()
        await asyncio.gather(*tasks)


async def test_a_single_text_is_admitted_beside_a_long_list() -> None:
    """A single text is admitted by the wait for its own turn, not for everything that waits."""
    clock = Clock()
    async with measured(clock, max_batch_tokens=10) as (batcher, gate):
        running = await begun(batcher, gate, "x")
        bulk = await queued(batcher, *["x" * 10] * 40)  # 40 s of work
        single = await queued(batcher, "x", timeout_s=25)
        assert len(batcher.queue) == 41
        gate.open()
        assert await single == ["X"]
        bulk.cancel()  # on this clock its deadline has passed, but no timer will tell
        await asyncio.wait([running, bulk])
