"""The gate between the streams and the queue: they take turns there, and share a part of it."""

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import suppress

from app.engine.batching.batcher import Item, MicroBatcher, Result
from app.engine.batching.pending import Answer
from app.errors import Overloaded, ShuttingDown

# Before a queue that was full is asked again whether it takes more.
MIN_WAIT_S = 0.01
MAX_WAIT_S = 1.0
# Of a line, with its JSON: tweets in English have about four, and what is longer or in other
# scripts makes groups that are a little larger or smaller than they should be.
BYTES_PER_TOKEN = 4

# That fit together even of one stream: while one comes and goes, the others are computed.
LEAST_GROUPS = 4


class StreamGate:
    """Where groups of lines wait for room in the queue, first come, first served.

    ``max_tokens()`` is what all of them together may have in the queue and in batches: what waits
    here delays nobody else. A group has no deadline: it is admitted when its turn has come, and
    then computed however long that takes.
    """

    def __init__(self, max_tokens: Callable[[], int]) -> None:
        self._max_tokens = max_tokens
        self._tokens = 0  # admitted
        self._waiting = 0  # groups
        self._turn = asyncio.Lock()  # that of who came first
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def group_bytes(self) -> int:
        """How long the next group should be: all that wait, and some more, fit together."""
        return self._max_tokens() * BYTES_PER_TOKEN // (self._waiting + LEAST_GROUPS)

    async def submit(
        self,
        batcher: MicroBatcher[Item, Result],
        items: Sequence[Item],
        tag: object = None,
        *,
        admitted: asyncio.Event,
    ) -> Answer[Result]:
        """``batcher.submit`` when their turn has come; ``admitted`` is set then.

        Raises:
            TooManyTexts: they have more tokens than one request may queue.
            ShuttingDown: the gate or the batcher was closed before their turn.
        """
        tokens = sum(map(len, items))
        self._waiting += 1
        try:
            async with self._turn:
                while wait_s := self._wait_s(batcher, tokens):
                    self._changed.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(wait_s):
                            await self._changed.wait()
        finally:
            self._waiting -= 1
        # Nobody else has run since there was room.
        self._tokens += tokens
        admitted.set()
        try:
            return await batcher.submit(items, timeout_s=math.inf, tag=tag)
        finally:
            self._tokens -= tokens
            self._changed.set()

    def close(self) -> None:
        """Let nothing more pass; those that wait fail with ``ShuttingDown`` at once."""
        self._closed = True
        self._changed.set()

    def _wait_s(self, batcher: MicroBatcher[Item, Result], tokens: int) -> float:
        """Before there may be room; 0 where there is."""
        if self._closed:
            raise ShuttingDown()
        if self._tokens and self._tokens + tokens > self._max_tokens():
            return MAX_WAIT_S
        try:
            batcher.check_admission(tokens, timeout_s=math.inf)
        except Overloaded as error:
            return min(max(error.retry_after_s or MAX_WAIT_S, MIN_WAIT_S), MAX_WAIT_S)
        return 0.0
