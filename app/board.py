"""Memory that all workers of a service read, and of which each worker writes only its own part.

There are no locks, so a worker that is killed or stopped cannot hold one. Each number has one
writer, and the 8 bytes of a number are read and written as a whole. The part of a worker outlives
its process: the next worker of that number goes on with it, so counters never fall.
"""

import mmap
import os
from typing import TypeAlias

Numbers: TypeAlias = "memoryview[float]"
NUMBER_BYTES = 8
# Bytes of each section of a worker's part. The kernel gives memory to pages that are written only.
SECTIONS = {
    "status": 4096,  # what the worker says of itself
    "hits": 2 * 2**20,  # the latest hits of its rate limits
    "series": 4 * 2**20,  # the series of its metrics: their names ...
    "values": 2 * 2**20,  # ... and their values
}


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

    def numbers(self, name: str, worker: int) -> Numbers:
        """A section of a worker's part, as floating-point numbers."""
        return self.section(name, worker).cast("d")


_PART = sum(SECTIONS.values())
