"""A limit of hits in a period of time, which holds for all workers of a service together.

Each worker writes the hits that it accepts into a ring in its part of the shared memory, and reads
those of the others. Nobody waits for anybody: of N workers that accept a hit at the same time, none
knows of the others, so at most N - 1 hits too many are accepted.
"""

import hashlib
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from struct import Struct

from sentiment_service.shared_memory.board import NUMBER_BYTES

HIT = Struct("=d16s")  # seconds of time.monotonic, which is one clock for all processes; the key
# A key's hits are stored, unless so many others were accepted after it. They take 20 MB.
KEYS = 20_000


class MovingWindow:
    """Allows at most ``most`` hits of each key in any ``seconds``, by a monotonic clock.

    The hits of all workers count; ``parts`` are where they write them, with this one's first. The
    package ``limits`` uses the time of day. When that is set back, a client that has used up its
    hits waits longer by the same time.
    """

    def __init__(self, most: int, seconds: float, parts: Sequence[memoryview]) -> None:
        self._most = most
        self._seconds = seconds
        self._shared = SharedHits(parts)
        # The times of accepted hits, in order, by the digest of the key. The key that was accepted
        # last is at the end.
        self._hits: OrderedDict[bytes, deque[float]] = OrderedDict()
        self.catch_up()

    def catch_up(self) -> None:
        """Count the hits that other workers have accepted since the last call."""
        for at, key in self._shared.new():
            self._count(key, at)

    def hit(self, key: str) -> float:
        """Count a hit and return 0. After too many, return the seconds until the next may come."""
        self.catch_up()
        name, now = digest(key), time.monotonic()
        wait_s = self._wait_s(name, now)
        if not wait_s:
            self._count(name, now)
            self._shared.write(now, name)
        return wait_s

    def _count(self, key: bytes, at: float) -> None:
        hits = self._hits.setdefault(key, deque(maxlen=self._most))
        # A worker that was stopped between a hit and its report reports it late.
        hits.append(max(at, hits[-1]) if hits else at)
        self._hits.move_to_end(key)
        if len(self._hits) > KEYS:
            self._hits.popitem(last=False)

    def _wait_s(self, key: bytes, now: float) -> float:
        while self._hits and next(iter(self._hits.values()))[-1] + self._seconds <= now:
            self._hits.popitem(last=False)
        hits = self._hits.get(key)
        if hits is None or len(hits) < self._most:
            return 0.0
        return max(0.0, hits[0] + self._seconds - now)


class SharedHits:
    """Times and keys that all workers read. A worker that is alone writes nothing."""

    def __init__(self, parts: Sequence[memoryview]) -> None:
        self._rings = [part[NUMBER_BYTES:] for part in parts]
        # How many hits each worker has written so far, and how many of them were read here.
        self._written = [part[:NUMBER_BYTES].cast("q") for part in parts]
        self._read = [0] * len(parts)
        self._room = len(self._rings[0]) // HIT.size

    def new(self) -> list[tuple[float, bytes]]:
        """Times and keys of the hits that others wrote since the last call, in order of time.

        The first call also has those of an earlier process of this worker. Each worker's ring has
        its latest hits only: 87,000 of the rate limit.
        """
        hits: list[tuple[float, bytes]] = []
        for number, ring in enumerate(self._rings):
            written = self._written[number][0]
            unread = range(max(self._read[number], written - self._room), written)
            hits += (HIT.unpack_from(ring, hit % self._room * HIT.size) for hit in unread)
            self._read[number] = written
        return sorted(hits)

    def write(self, at: float, key: bytes) -> None:
        """Show the others a hit. ``new`` must have been called before the first one."""
        if len(self._rings) == 1:
            return
        written = self._written[0][0]
        HIT.pack_into(self._rings[0], written % self._room * HIT.size, at, key)
        self._written[0][0] = self._read[0] = written + 1


def digest(key: str) -> bytes:
    """Sixteen bytes that stand for the key in all workers."""
    return hashlib.blake2b(key.encode(), digest_size=16).digest()
