"""How much of the CPUs other programs use. While they use much, answers may be late."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from checks.soak.measuring.watch import processes

INTERVAL_S = 1.0
MUCH = 0.15  # of all CPUs
TICKS = os.sysconf("SC_CLK_TCK")
# Of a line of /proc/stat: user, nice, system, irq, softirq, and what other machines took.
BUSY = (1, 2, 3, 6, 7, 8)


class Neighbours:
    """Watches them beside the service ``pid``; calls ``on_much`` each time they use much."""

    def __init__(self, pid: int, on_much: Callable[[], None]) -> None:
        self._pid = pid
        self._on_much = on_much
        self._shares: list[float] = []

    @property
    def share(self) -> float:
        """Their mean share of the CPUs."""
        return sum(self._shares) / max(1, len(self._shares))

    async def run(self) -> None:
        """Look every second."""
        loop = asyncio.get_running_loop()
        before, at = self._seconds(), loop.time()
        while True:
            await asyncio.sleep(INTERVAL_S)
            now, until = self._seconds(), loop.time()
            cpus = len(os.sched_getaffinity(0))
            self._shares.append(max(0.0, (now - before) / (until - at) / cpus))
            if self._shares[-1] > MUCH:
                self._on_much()
            before, at = now, until

    def _seconds(self) -> float:
        """CPU time of our CPUs, less that of the service and of this process."""
        ours = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        lines = (line.split() for line in Path("/proc/stat").read_text().splitlines())
        busy = sum(int(line[field]) for line in lines if line[0] in ours for field in BUSY)
        for process in processes(self._pid):
            times = (process / "stat").read_text().rpartition(")")[2].split()[11:15]
            busy -= sum(map(int, times))  # with those of its children that have ended
        own = os.times()
        return busy / TICKS - own.user - own.system
