"""The hits that the workers of a service accepted lately, by which their rate limits hold for all.

Each worker writes its own hits into a ring in its part of the shared memory, and reads those of the
others. Nobody waits for anybody: of N workers that accept a hit at the same time, none knows of the
others, so at most N - 1 hits too many are accepted.
"""

import hashlib
from collections.abc import Sequence
from struct import Struct

from app.board import NUMBER_BYTES

HIT = Struct("=d16s")  # seconds of time.monotonic, which is one clock for all processes; the key


class SharedHits:
    """The hits of one limit. ``parts`` are where the workers write them, with this one's first."""

    def __init__(self, parts: Sequence[memoryview]) -> None:
        self._rings = [part[NUMBER_BYTES:] for part in parts]
        # How many hits each worker has written so far, and how many of them were read here.
        self._written = [part[:NUMBER_BYTES].cast("q") for part in parts]
        self._read = [0] * len(parts)
        self._room = len(self._rings[0]) // HIT.size

    def new(self) -> list[tuple[float, bytes]]:
        """Times and keys of the hits that others wrote since the last call, in order of time.

        The first call has those of an earlier process of this worker, too. Of each worker, the ring
        has the latest hits only: 87,380 of the rate limit.
        """
        hits: list[tuple[float, bytes]] = []
        for number, ring in enumerate(self._rings):
            written = self._written[number][0]
            unread = range(max(self._read[number], written - self._room), written)
            hits += (HIT.unpack_from(ring, hit % self._room * HIT.size) for hit in unread)
            self._read[number] = written
        return sorted(hits)

    def write(self, at: float, key: bytes) -> None:
        """Write a hit that this worker accepted. Call ``new`` before the first one."""
        written = self._written[0][0]
        HIT.pack_into(self._rings[0], written % self._room * HIT.size, at, key)
        self._written[0][0] = self._read[0] = written + 1


def digest(key: str) -> bytes:
    """Sixteen bytes that stand for the key in all workers."""
    return hashlib.blake2b(key.encode(), digest_size=16).digest()
