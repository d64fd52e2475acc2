"""A Ray cluster of processes on this machine, and runs of ``sentiment classify`` on it."""

import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.service import ROOT, descendants, free_port
from checks.support.waiting import wait

# The command with parts of the size that the first argument says.
COMMAND = """
import sys
import sentiment_service
from sentiment_service.cli.command import main
from sentiment_service.files.run import parts
parts.PART_ROWS = int(sys.argv.pop(1))
exec(sys.argv.pop(1))
sys.exit(main())
"""
# The cluster is only for those who know the token.
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
# Of the object store, which accepts any key.
KEYS = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
ENVIRONMENT = {
    **os.environ,
    **TOKEN,
    **KEYS,
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONPATH": str(ROOT),
}


class Cluster:
    """A head and worker nodes of Ray, as processes. Each worker has one CPU."""

    def __init__(self, python: Path, folder: Path) -> None:
        self._ray = python.with_name("ray")
        self._folder = folder
        self._nodes: list[subprocess.Popen[bytes]] = []
        self._port = free_port()
        self._client_port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        self.client_address = f"ray://127.0.0.1:{self._client_port}"

    def start(self) -> None:
        """Start the head and two workers."""
        self._start(
            "--head",
            f"--port={self._port}",
            "--num-cpus=0",
            "--include-dashboard=false",
            f"--ray-client-server-port={self._client_port}",
            f"--temp-dir={self._folder}/ray",
        )
        self.workers = [self.add_worker(), self.add_worker()]

    def add_worker(self) -> "subprocess.Popen[bytes]":
        """Start a worker and wait until it has joined."""
        return self._start(f"--address={self.address}", "--num-cpus=1")

    def kill(self, node: "subprocess.Popen[bytes]") -> None:
        """End all processes of a node at once, as a power failure does."""
        for process in [node.pid, *descendants(node.pid)]:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        node.wait()

    def close(self) -> None:
        """End all nodes."""
        for node in reversed(self._nodes):
            self.kill(node)

    def _start(self, *options: str) -> "subprocess.Popen[bytes]":
        log = self._folder / f"node-{len(self._nodes)}.log"
        command: list[str | Path] = [
            self._ray,
            "start",
            *options,
            "--block",
            "--disable-usage-stats",
            # Ports that are free, so that clusters on the same machine do not meet.
            "--min-worker-port=0",
            "--max-worker-port=0",
            "--dashboard-agent-listen-port=0",
            "--object-store-memory=100000000",
        ]
        with log.open("wb") as output:
            node = subprocess.Popen(command, env=ENVIRONMENT, stdout=output, stderr=output)
        self._nodes.append(node)
        wait_while(
            node, lambda: "Ray runtime started" in log.read_text(), 60, "a node of Ray starts"
        )
        return node


class Run:
    """A run of ``sentiment classify``."""

    def __init__(self, python: Path, arguments: Sequence[str], first: str = "") -> None:
        """Start it with the rows of a part and its arguments. It runs the code ``first`` before."""
        rows, *others = arguments
        command: list[str | Path] = [python, "-c", COMMAND, rows, first, "classify", *others]
        self.process = subprocess.Popen(
            command,
            cwd="/",  # Ray has the workers import from this directory, too
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def result(self) -> str:
        """Wait for its end and return its summary, which must be all that it writes."""
        errors, _ = self.process.communicate(timeout=1_800)
        assert self.process.returncode == 0, errors
        lines = errors.splitlines()
        assert " rows in " in lines[0], errors
        return "; ".join(" ".join(line.split()) for line in lines)

    def error(self) -> str:
        """Wait for its end and return the line that says why it failed; there must be no other."""
        errors, _ = self.process.communicate(timeout=180)
        assert self.process.returncode == 1, errors
        (line,) = errors.splitlines()
        assert line.startswith("sentiment: "), errors
        return line


def wait_while(
    process: "subprocess.Popen[Any]", condition: Callable[[], bool], seconds: float, what: str
) -> None:
    """Wait until the condition is met while the process runs."""

    def met() -> bool:
        if condition():
            return True
        assert process.poll() is None, f"the process ended before: {what}"
        return False

    wait(met, seconds, what)
