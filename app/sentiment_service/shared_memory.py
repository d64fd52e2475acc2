"""Memory that all workers of a service read, and of which each worker writes only its own part.

There are no locks, so a worker that is killed or stopped cannot hold one. Each number has one
writer, and the 8 bytes of a number are read and written as a whole. The part of a worker outlives
its process: the next worker of that number goes on with it, so counters never fall. Only what a
worker has at the moment is cleared when it ends.

``Board`` has the parts, ``WorkerStatus`` is what is known of a worker's process, and ``HitLimit``
a limit of hits that holds for all workers together.
"""

import hashlib
import mmap
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from enum import IntEnum
from struct import Struct
from typing import TypeAlias

Numbers: TypeAlias = "memoryview[float]"
NUMBER_BYTES = 8
# Bytes of each section of a worker's part. The kernel gives memory to pages that are written only.
SECTIONS = {
    "status": 4096,  # what the worker says of itself
    "bodies": 4096,  # the bytes of request bodies that it holds
    "streams": 4096,  # and those of streams
    "hits": 2 * 2**20,  # the latest requests that its rate limit accepted
    "series": 4 * 2**20,  # the names of its metrics' series ...
    "counts": 2 * 2**20,  # ... and their numbers: of counters and histograms,
    "gauges": 64 * 2**10,  # and of gauges
}
# What a worker has at the moment. Nobody has it once the worker has ended.
PRESENT = ("bodies", "streams", "gauges")
_PART = sum(SECTIONS.values())
_NUMBERS = 11  # of the section status, which WorkerStatus names
HIT = Struct("=d16s")  # seconds of time.monotonic, which is one clock for all processes; the key
KEYS = 20_000  # a key's hits are counted, unless so many others were accepted after it


class Board:
    """The parts of ``workers`` workers in the shared memory ``memory``.

    ``number`` is the worker of this process, counted from 0; the supervisor has none.
    """

    def __init__(self, workers: int, memory: mmap.mmap, number: int | None) -> None:
        self.workers = workers
        self.number = number
        self._memory = memoryview(memory)

    @classmethod
    def alone(cls) -> "Board":
        return cls(1, mmap.mmap(-1, _PART), 0)

    @classmethod
    def create(cls, workers: int) -> tuple["Board", int]:
        """A new board for the supervisor, and the file descriptor by which its workers open it."""
        descriptor = os.memfd_create("sentiment-board")
        os.ftruncate(descriptor, workers * _PART)
        return cls(workers, mmap.mmap(descriptor, workers * _PART), None), descriptor

    @classmethod
    def open(cls, descriptor: int, workers: int, number: int) -> "Board":
        """The same board in the process of worker ``number``."""
        return cls(workers, mmap.mmap(descriptor, workers * _PART), number)

    def section(self, name: str, worker: int) -> memoryview:
        """A section of a worker's part, as bytes. Only that worker may write it."""
        start = worker * _PART
        for section, size in SECTIONS.items():
            if section == name:
                return self._memory[start : start + size]
            start += size
        raise KeyError(name)

    def parts(self, name: str) -> list[memoryview]:
        """A section of every worker's part: first this worker's own, then those of the others."""
        own_first = sorted(range(self.workers), key=lambda worker: worker != self.number)
        return [self.section(name, worker) for worker in own_first]

    def clear_present(self, worker: int) -> None:
        """Forget what a worker had. The supervisor calls this after each end of a worker."""
        for name in PRESENT:
            self.section(name, worker)[:] = bytes(SECTIONS[name])


class WorkerPhase(IntEnum):
    """What a worker is doing. The ranks of the phases, too: connections go to the lowest first."""

    READY = 1
    NOT_READY = 2  # it answers, but inference fails
    STOPPING = 3
    STARTING = 4
    HOPELESS = 5  # only a new process can help
    ENDED = 6


class _Number:
    """A whole number of the status section, at its place in the class."""

    def __init__(self, index: int) -> None:
        self._index = index

    def __get__(self, status: "WorkerStatus", owner: type) -> int:
        return int(status.numbers[self._index])

    def __set__(self, status: "WorkerStatus", value: int) -> None:
        status.numbers[self._index] = value


class WorkerStatus:
    """The status of worker ``number``. The comments say who writes each number."""

    pid = _Number(0)  # supervisor; 0 if there is no process
    restarts = _Number(1)  # supervisor: how often a new process took the place of an ended one
    dealt = _Number(2)  # supervisor: connections that this process has been given
    closed = _Number(3)  # worker: those of them that have ended
    phase_number = _Number(4)  # worker, but the supervisor while there is no process
    beats = _Number(5)  # worker: grows while its event loop runs
    connections = _Number(6)  # worker: open now
    in_flight = _Number(7)  # worker: requests being answered
    answered = _Number(8)  # worker: requests answered since its start
    models = _Number(9)  # worker: a digest of the models that it serves
    silent = _Number(10)  # supervisor: 1 while it hangs, so that it gets no new connections

    def __init__(self, board: Board, number: int) -> None:
        self.number = number
        self.numbers = board.section("status", number).cast("d")

    @property
    def phase(self) -> WorkerPhase:
        return WorkerPhase(self.phase_number or WorkerPhase.STARTING)

    @property
    def stage(self) -> str:
        return "silent" if self.silent and self.pid else self.phase.name.lower()

    @property
    def open(self) -> int:
        """Connections that were dealt to the worker and have not ended."""
        return self.dealt - self.closed

    def begin(self, pid: int) -> None:
        for index in range(2, _NUMBERS):
            self.numbers[index] = 0
        self.phase_number, self.pid = WorkerPhase.STARTING, pid

    def end(self) -> None:
        self.phase_number, self.pid = WorkerPhase.ENDED, 0


def statuses(board: Board) -> list[WorkerStatus]:
    return [WorkerStatus(board, number) for number in range(board.workers)]


class HitLimit:
    """Allows at most ``most`` hits of each key in ``seconds``, which begin with its first hit.

    Each worker writes the hits that it accepts into a ring in its part of the shared memory, and
    reads those of the others; ``parts`` are all of them, with this one's first. Nobody waits for
    anybody: of N workers that accept a hit at the same time, at most N - 1 are too many.
    """

    def __init__(
        self,
        most: int,
        seconds: float,
        parts: Sequence[memoryview],
        *,
        keys: int = KEYS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self._seconds = most, seconds
        self._keys, self._clock = keys, clock
        self._shared = SharedHits(parts)
        # When the time of each key began, and its hits since, by the key's digest. The key that was
        # accepted last is at the end.
        self._hits: OrderedDict[bytes, tuple[float, int]] = OrderedDict()
        self.catch_up()

    def catch_up(self) -> None:
        """Count the hits that other workers have accepted since the last call."""
        for at, key in self._shared.new():
            self._count(key, at)

    def hit(self, key: str) -> float:
        """Count a hit and return 0. After too many, return the seconds until the next may come."""
        self.catch_up()
        name, now = digest(key), self._clock()
        began, count = self._current(name, now)
        if count >= self._most:
            return began + self._seconds - now
        self._count(name, now)
        self._shared.write(now, name)
        return 0.0

    def _count(self, key: bytes, at: float) -> None:
        began, count = self._current(key, at)
        self._hits[key] = began, count + 1
        self._hits.move_to_end(key)
        if len(self._hits) > self._keys:
            self._hits.popitem(last=False)

    def _current(self, key: bytes, at: float) -> tuple[float, int]:
        began, count = self._hits.get(key, (at, 0))
        return (began, count) if at < began + self._seconds else (at, 0)


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
