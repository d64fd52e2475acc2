"""The gate between streams and the queue. Streams take turns at it and share part of the queue."""

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic

from sentiment_service.engine.batching.batcher import MicroBatcher
from sentiment_service.engine.batching.fair_queue import Answer, Item, Result
from sentiment_service.errors import Overloaded, ShuttingDown

# The shortest and longest wait before a full queue is asked again whether it has room.
MIN_WAIT_S = 0.01
MAX_WAIT_S = 1.0
# Bytes per token of a line, its JSON included. Tweets in English have about four. With longer texts
# or other scripts, groups become a little larger or smaller than they should be.
BYTES_PER_TOKEN = 4

# So many groups fit at the same time, even if all come from one stream: while one group arrives or
# leaves, the others are computed.
LEAST_GROUPS = 4


class StreamGate(Generic[Item, Result]):
    """Groups of lines wait here for room in the batcher's queue, first come, first served.

    ``max_tokens()`` is the number of tokens that all streams together may have in the queue and in
    batches. Groups that wait here delay no other request. A group has no deadline: it is admitted
    when its turn has come, and then computed, however long that takes.
    """

    def __init__(self, batcher: MicroBatcher[Item, Result], max_tokens: Callable[[], int]) -> None:
        self._batcher = batcher
        self._max_tokens = max_tokens
        self._tokens = 0  # of admitted groups
        self._waiting = 0  # number of groups
        self._turn = asyncio.Lock()  # held by the group that came first
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def group_bytes(self) -> int:
        """The size in bytes of the next group, so that all waiting groups and some more fit."""
        return self._max_tokens() * BYTES_PER_TOKEN // (self._waiting + LEAST_GROUPS)

    async def submit(
        self, items: Sequence[Item], *, tag: object = None, admitted: asyncio.Event
    ) -> Answer[Result]:
        """Wait for the items' turn, then submit them. ``admitted`` is set in between.

        Raises:
            TooManyTexts: the items have more tokens than one request may queue.
            ShuttingDown: the gate or the batcher was closed before their turn.
        """
        tokens = sum(map(len, items))
        self._waiting += 1
        try:
            async with self._turn:
                while wait_s := self._wait_s(tokens):
                    self._changed.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(wait_s):
                            await self._changed.wait()
        finally:
            self._waiting -= 1
        # There is still room: no other task has run since the check.
        self._tokens += tokens
        admitted.set()
        try:
            return await self._batcher.submit(items, timeout_s=math.inf, tag=tag)
        finally:
            self._tokens -= tokens
            self._changed.set()

    def close(self) -> None:
        """Admit no more groups. Waiting groups fail with ``ShuttingDown`` at once."""
        self._closed = True
        self._changed.set()

    def _wait_s(self, tokens: int) -> float:
        """Seconds until there may be room; 0 if there is room now."""
        if self._closed:
            raise ShuttingDown()
        if self._tokens and self._tokens + tokens > self._max_tokens():
            return MAX_WAIT_S
        try:
            self._batcher.check_admission(tokens, timeout_s=math.inf)
        except Overloaded as error:
            return min(max(error.retry_after_s or MAX_WAIT_S, MIN_WAIT_S), MAX_WAIT_S)
        return 0.0
