"""Samples the memory, open files and threads of a service over time."""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.service import descendants

INTERVAL_S = 10.0
MEASURES = {
    "memory_mb": "resident memory, MB",
    "oldest_mb": "of which the process that was never killed, MB",
    "files": "open files",
    "threads": "threads",
}
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample of all processes of the service, ``seconds`` after the start."""

    seconds: float
    memory_mb: float  # resident
    oldest_mb: float  # resident, of the first worker, or of the only process
    files: int  # open
    threads: int


@dataclass
class Watch:
    """Takes samples of the process ``pid`` and its children."""

    pid: int
    samples: list[Sample] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)

    async def run(self) -> None:
        """Take a sample every ten seconds."""
        while True:
            self.samples.append(self.look())
            await asyncio.sleep(INTERVAL_S)

    def look(self) -> Sample:
        """Take one sample now."""
        memory, files, threads = [], 0, 0
        for process in processes(self.pid):
            with suppress(OSError):  # a worker was killed
                pages = int((process / "statm").read_text().split()[1])
                memory.append(round(pages * PAGE / 1e6, 1))
                files += len(list((process / "fd").iterdir()))
                threads += len(list((process / "task").iterdir()))
        return Sample(
            seconds=round(time.monotonic() - self._began, 1),
            memory_mb=round(sum(memory), 1),
            oldest_mb=memory[:2][-1],
            files=files,
            threads=threads,
        )

    def per_hour(self, what: str, *, after_s: float) -> float:
        """The slope of a straight line through the samples after ``after_s`` seconds."""
        late = [sample for sample in self.samples if sample.seconds >= after_s]
        if len(late) < 2:
            return float("nan")
        hours = [sample.seconds / 3600 for sample in late]
        return float(np.polyfit(hours, [getattr(sample, what) for sample in late], 1)[0])


def processes(pid: int) -> Iterator[Path]:
    """The folders in /proc of a process and those below it, the earliest first."""
    for process in (pid, *descendants(pid)):
        yield Path(f"/proc/{process}")
