"""Samples the memory, open files and threads of a process over time."""

import asyncio
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

INTERVAL_S = 10.0
MEASURES = ("memory_mb", "files", "threads")
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample of the process, ``seconds`` after the start."""

    seconds: float
    memory_mb: float  # resident
    files: int  # open
    threads: int


@dataclass
class Watch:
    """Takes samples of a process."""

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
        process = Path(f"/proc/{self.pid}")
        return Sample(
            seconds=round(time.monotonic() - self._began, 1),
            memory_mb=round(int((process / "statm").read_text().split()[1]) * PAGE / 1e6, 1),
            files=len(list((process / "fd").iterdir())),
            threads=len(list((process / "task").iterdir())),
        )

    def per_hour(self, what: str, *, after_s: float) -> float:
        """The slope of a straight line through the samples after ``after_s`` seconds."""
        late = [sample for sample in self.samples if sample.seconds >= after_s]
        if len(late) < 2:
            return float("nan")
        hours = [sample.seconds / 3600 for sample in late]
        return float(np.polyfit(hours, [getattr(sample, what) for sample in late], 1)[0])
