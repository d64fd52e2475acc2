"""Streams take turns to have groups of lines admitted to the queue.

Items are strings here: a letter is a token, and the result is the string in capitals.
"""

import asyncio
from functools import partial

import pytest
from sentiment_service.engine.batching.batcher import BYTES_PER_TOKEN, LEAST_GROUPS, StreamGate
from sentiment_service.errors import ServiceError, ShuttingDown, TooManyTexts

from tests.support.batching import Gate, ask, batching, begun, queued


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
    """A group that can never fit is refused at once and does not wait at the gate."""
    async with batching(max_queue_tokens=40) as batcher:
        gate = StreamGate(batcher, lambda: 10)
        huge, large = await _come(gate, "a" * 21, "b" * 20)
        with pytest.raises(TooManyTexts):
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
