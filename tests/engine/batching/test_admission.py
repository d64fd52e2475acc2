"""Which requests the batcher admits, when it tells the others to come back, and what it batches.

test_batcher_simulation.py proves the rest of the batcher.
"""

import asyncio
from collections.abc import Sequence
from functools import partial

import pytest
from sentiment_service.engine.batching.batcher import BYTES_PER_TOKEN, LEAST_GROUPS, StreamGate
from sentiment_service.engine.batching.fair_queue import CAUTION
from sentiment_service.errors import Overloaded, ServiceError, ShuttingDown, TooManyTexts

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


async def test_texts_of_like_length_in_a_request_share_batches() -> None:
    """However far apart they stand in it; its results are in its own order."""
    gate = Gate()
    texts = ["x" * tokens for _ in range(8) for tokens in (4, 16, 8)]
    async with batching(gate, max_batch_tokens=32) as batcher:
        await begun(batcher, gate, "first")
        answer = await queued(batcher, *texts)
        gate.open()
        assert await answer == [text.upper() for text in texts]
    sizes = [(len(batch), {*map(len, batch)}) for batch in gate.batches[1:]]
    assert sizes == [(2, {16})] * 4 + [(4, {8})] * 2 + [(8, {4})]


# Streams take turns to have groups of lines admitted


class Group:
    """One text that waits at the stream gate; ``task`` gives its answer."""

    def __init__(self, gate: StreamGate[str, str], text: str) -> None:
        self.admitted = asyncio.Event()
        self.task = asyncio.create_task(self._results(gate, text))

    async def _results(self, gate: StreamGate[str, str], text: str) -> list[str | ServiceError]:
        return (await gate.submit([text], admitted=self.admitted)).results


async def _come(gate: StreamGate[str, str], *texts: str) -> list[Group]:
    groups = list(map(partial(Group, gate), texts))
    await _settle()
    return groups


async def _settle() -> None:
    """Let all tasks run as far as they can."""
    for _ in range(20):
        await asyncio.sleep(0)


def _admitted(groups: list[Group]) -> list[bool]:
    return [group.admitted.is_set() for group in groups]


async def test_groups_pass_in_the_order_in_which_they_came() -> None:
    """A group that does not fit holds back later groups, even those that would fit."""
    infer = Gate()
    async with batching(infer, max_batch_tokens=4) as batcher:
        gate = StreamGate(batcher, lambda: 10)
        groups = await _come(gate, "aaaa", "bbbb", "cccc", "d")
        assert _admitted(groups) == [True, True, False, False]
        await infer.entered()
        infer.open(1)
        assert await groups[0].task == ["AAAA"]
        await _settle()
        assert _admitted(groups) == [True] * 4
        infer.open()
        assert [await group.task for group in groups[1:]] == [["BBBB"], ["CCCC"], ["D"]]


async def test_a_group_waits_for_a_queue_that_others_have_filled() -> None:
    """A group waits as long as the queue is full; it is neither refused nor does it expire."""
    infer = Gate()
    async with batching(infer, max_queue_tokens=20) as batcher:
        gate = StreamGate(batcher, lambda: 10)
        first = await begun(batcher, infer, "first")
        others = [await queued(batcher, text) for text in ("x" * 10, "y" * 10)]
        (group,) = await _come(gate, "aaaa")
        await asyncio.sleep(0.05)  # it asks again
        assert not group.admitted.is_set()
        infer.open()
        assert await group.task == ["AAAA"]
        await asyncio.gather(first, *others)


async def test_the_closed_gate_turns_back_who_waits_and_nobody_else() -> None:
    """Closing the gate refuses waiting and later groups at once; admitted ones are computed."""
    infer = Gate()
    async with batching(infer) as batcher:
        gate = StreamGate(batcher, lambda: 10)
        inside, *waiting = await _come(gate, "aaaa", "b" * 8, "c" * 8, "d" * 8)
        gate.close()
        waiting += await _come(gate, "e")
        await _settle()
        for group in waiting:
            assert isinstance(group.task.exception(), ShuttingDown)
            assert not group.admitted.is_set()
        infer.open()
        assert await inside.task == ["AAAA"]


async def test_a_group_that_is_cancelled_leaves_its_place() -> None:
    """A cancelled group leaves its place, whether it waits for results, room or its turn."""
    infer = Gate()
    async with batching(infer) as batcher:
        gate = StreamGate(batcher, lambda: 10)
        *leaving, last = await _come(gate, "a" * 8, "b" * 8, "c" * 8, "d" * 8)
        for group in leaving:
            group.task.cancel()
        await _settle()
        assert last.admitted.is_set()
        infer.open()
        assert await last.task == ["D" * 8]


async def test_what_never_fits_is_refused_and_what_fits_alone_is_admitted() -> None:
    """A group that can never fit is refused at once and does not wait at the gate.

    The error names the setting that decides how much fits.
    """
    async with batching(max_queue_tokens=40) as batcher:
        gate = StreamGate(batcher, lambda: 10)
        huge, large = await _come(gate, "a" * 21, "b" * 20)
        with pytest.raises(
            TooManyTexts, match=r"than the 20 tokens .* half of --max-queue-tokens$"
        ):
            await huge.task
        assert await large.task == ["B" * 20]


async def test_groups_shrink_with_the_number_of_those_that_wait() -> None:
    """Groups become smaller as more streams wait, so that all fit; one stream can have several."""
    infer = Gate()
    async with batching(infer) as batcher:
        gate = StreamGate(batcher, lambda: 100)
        assert gate.group_bytes == 100 * BYTES_PER_TOKEN // LEAST_GROUPS
        groups = await _come(gate, "a" * 100, *"bcdefg")
        assert gate.group_bytes == 100 * BYTES_PER_TOKEN // (LEAST_GROUPS + 6)
        infer.open()
        await asyncio.gather(*(group.task for group in groups))
        assert gate.group_bytes == 100 * BYTES_PER_TOKEN // LEAST_GROUPS


async def test_others_find_room_beside_streams() -> None:
    """However much waits at the gate, its groups never take more than their share of the queue."""
    infer = Gate()
    async with batching(infer, max_queue_tokens=20) as batcher:
        gate = StreamGate(batcher, lambda: 10)
        groups = await _come(gate, *["a" * 5] * 10)
        request = await queued(batcher, "x" * 10)
        infer.open()
        assert await request == ["X" * 10]
        for group in groups:
            assert await group.task == ["AAAAA"]
        assert await ask(batcher, "y") == ["Y"]
