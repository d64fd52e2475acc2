"""Runs a server in a separate process and reads its CPU time and memory, and our metrics.

The checks use it as well.
"""

import json
import os
import re
import socket
import sys
import urllib.request
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from app.cli.bench import server

ROOT = Path(__file__).parents[1]
TICKS = os.sysconf("SC_CLK_TCK")


class Server(server.Server):
    """A server whose CPU time and memory are read."""

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
