"""Runs a server in a separate process and reads its CPU time and memory, and our metrics.

The checks use it as well.
"""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parents[1]
TICKS = os.sysconf("SC_CLK_TCK")
WAIT_S = 60.0  # for the end of a process


class Server:
    """A server that logs its address to standard error. The end of the ``with`` block stops it.

    ``first_lines`` is what it logged up to its address; ``environment`` is in the place of ours.
    """

    def __init__(self, *command: str, environment: Mapping[str, str] | None = None) -> None:
        started = time.perf_counter()
        self._process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=environment
        )
        assert self._process.stderr is not None
        self._lines: list[str] = []
        while not (address := re.search(r"http://[\d.\[:\]]+:(\d+)", self.log)):
            line = self._process.stderr.readline()
            if not line:
                self._process.communicate()
                raise RuntimeError(f"the server did not start: {self.log}")
            self._lines.append(line)
        self.start_seconds = time.perf_counter() - started
        self.first_lines = self.log
        self._taken = len(self._lines)
        self.port = int(address[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self.pid = self._process.pid
        # If nobody read the pipe, it would fill up and block the server.
        self._reading = threading.Thread(target=self._read_log, daemon=True)
        self._reading.start()

    @property
    def log(self) -> str:
        """What it has logged until now."""
        return "".join(self._lines)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self.wait()

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            self._lines.extend(lines)

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        self._process.send_signal(number)

    def wait(self) -> tuple[int, str]:
        """Wait for the end; the exit code, and what was logged after the first lines."""
        code = self._process.wait(WAIT_S)
        self._reading.join()
        return code, "".join(self._lines[self._taken :])

    def processes(self) -> list[int]:
        """The process and its workers, by their ids."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [self.pid, *map(int, children)]

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
        program: Sequence[str] = (sys.executable, "-m", "app"),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        where = ("--port", "0", "--model", str(bundle))
        command = (*program, "serve", *where, "--access-log", "off", *flags)
        super().__init__(*command, environment=os.environ | dict(variables or {}))

    def info(self) -> dict[str, Any]:
        """The answer of ``GET /info``."""
        found: dict[str, Any] = json.loads(self._get("/info"))
        return found

    def metrics(self) -> dict[str, float]:
        """The value of each metric, summed over its labels."""
        sums: dict[str, float] = defaultdict(float)
        for family in text_string_to_metric_families(self._get("/metrics")):
            for sample in family.samples:
                sums[sample.name.removeprefix("sentiment_")] += sample.value
        return sums

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"{self.url}{path}") as answer:  # noqa: S310
            text: str = answer.read().decode()
        return text


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
