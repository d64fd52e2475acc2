"""Memory that all workers of a service read, and of which each worker writes only its own part.

There are no locks, so a worker that is killed or stopped cannot hold one. Each number has one
writer, and the 8 bytes of a number are read and written as a whole. The part of a worker outlives
its process: the next worker of that number goes on with it, so counters never fall. Only what a
worker has at the moment is cleared when it ends.
"""

import mmap
import os
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
        """The board of a service that is one process."""
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


_PART = sum(SECTIONS.values())
