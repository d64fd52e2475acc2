"""Runs a server in a separate process and reads its CPU time and memory, and our metrics.

The checks use it as well.
"""

import json
import os
import re
import socket
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from sentiment_service.cli.bench_service import WAIT_S, sums
from sentiment_service.cli.bench_service import Server as BareServer

ROOT = Path(__file__).parents[1]
TICKS = os.sysconf("SC_CLK_TCK")


class Server(BareServer):
    """A server whose log is kept, and whose CPU time and memory are read."""

    def __init__(self, *command: str, **options: Any) -> None:
        started = time.perf_counter()
        self._lines: list[str] = []  # of its log, after the first ones
        self._taken = 0
        super().__init__(*command, **options)
        self.start_seconds = time.perf_counter() - started
        self.pid = self._process.pid

    def _read(self, log: IO[str]) -> None:
        with log:
            self._lines.extend(log)

    @property
    def log(self) -> str:
        """What it has logged until now."""
        return self.first_lines + "".join(self._lines)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self) -> tuple[int, str]:
        """Wait for the end; the exit code, and what was logged after the first lines."""
        code = self._process.wait(WAIT_S)
        self._reading.join(WAIT_S)
        return code, "".join(self._lines[self._taken :])

    def processes(self) -> list[int]:
        """The process and its workers, by their ids."""
        return [self.pid, *descendants(self.pid)]

    def cpu_seconds(self) -> float:
        """CPU time of the process and its workers until now."""
        ticks = 0
        for pid in self.processes():
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(stat[11]) + int(stat[12])
        return ticks / TICKS

    def event_loop_ns(self) -> int:
        """CPU time of the main thread, which runs the event loop, until now."""
        stat = Path(f"/proc/{self.pid}/task/{self.pid}/schedstat").read_text()
        return int(stat.split()[0])

    def memory_mb(self) -> dict[str, float]:
        """Resident and proportional set size of the process, in MB."""
        rollup = Path(f"/proc/{self._process.pid}/smaps_rollup").read_text()
        fields = re.findall(r"^(Rss|Pss): +(\d+) kB", rollup, re.MULTILINE)
        return {name: int(kb) * 1024 / 1e6 for name, kb in fields}


class Service(Server):
    """``sentiment serve`` on a free port, with the access log off unless a flag says otherwise.

    ``program`` runs in its place if given; it takes the same arguments.
    """

    def __init__(
        self,
        bundle: Path,
        *flags: str,
        program: Sequence[str] = (sys.executable, "-m", "sentiment_service"),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        where = ("--port", "0", "--model", str(bundle))
        command = (*program, "serve", *where, "--access-log", "off", *flags)
        super().__init__(*command, environment=os.environ | dict(variables or {}))

    def info(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._get("/info"))
        return found

    def metrics(self) -> Mapping[str, float]:
        """The value of each metric, summed over its labels."""
        return sums(self._get("/metrics"))

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"{self.url}{path}") as answer:  # noqa: S310
            text: str = answer.read().decode()
        return text


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def descendants(process: int) -> list[int]:
    """Its children, their children and so on, the earliest first; none if it has ended."""
    children: list[int] = []
    for listed in sorted(Path(f"/proc/{process}/task").glob("*/children")):  # by thread
        with suppress(OSError):
            children += map(int, listed.read_text().split())
    return [one for child in children for one in (child, *descendants(child))]
