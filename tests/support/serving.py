"""Ways to run the service in a test, and to look into it."""

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPResponse
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

from app.engine.model.model import Model
from app.server.listener import bind
from app.server.run import Server

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "import sys; from app.__main__ import main; sys.exit(main())"]
SLOW_COMMAND = [
    sys.executable,
    "-c",
    """
import sys, time
from app.cli import main
from app.engine.model.model import Model
infer = Model.infer
Model.infer = lambda self, encodings: (time.sleep(0.05), infer(self, encodings))[1]
sys.exit(main())
""",
]

# Inference never returns, but for the two batches of the warm-up.
STUCK_COMMAND = [
    sys.executable,
    "-c",
    """
import sys, time
from itertools import count
from app.cli import main
from app.engine.model.model import Model
infer, calls = Model.infer, count()
stick = lambda: next(calls) > 1 and time.sleep(600)
Model.infer = lambda self, encodings: (stick(), infer(self, encodings))[1]
sys.exit(main())
""",
]


class Gate:
    """Inference that waits in front of it; ``seen`` has the token ids of every batch let in."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.reached = threading.Event()
        self.seen: list[list[list[int]]] = []
        self.fails = False

    def close(self) -> None:
        """Let nothing in; ``reached`` tells when a batch stands in front."""
        self.reached.clear()
        self.open.clear()

    def infer(self, model: Model, encodings: Sequence[Any]) -> Any:
        """Stands in for ``Model.infer``."""
        self.reached.set()
        assert self.open.wait(30), "the test never opened the gate"
        if self.fails:
            raise RuntimeError("secret of the runtime")
        self.seen.append([encoding.ids for encoding in encodings])
        return _infer(model, encodings)


_infer = Model.infer


@contextmanager
def listening(app: FastAPI, *, keep_alive_s: int = 5) -> Iterator[str]:
    """Serve the application on a real socket, from a thread; yields its URL."""
    listener = bind("127.0.0.1", 0)
    server = Server({listener: app}, app.state.service, [], keep_alive_s=keep_alive_s)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        eventually(lambda: server.started)
        yield url
    finally:
        server.should_exit = True
        thread.join()


class Process:
    """``sentiment serve`` in a process of its own, on a free port."""

    def __init__(
        self,
        *flags: str,
        command: Sequence[str] = COMMAND,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            # Nobody reads the log before the end: what a full pipe does not take may be dropped.
            [*command, "serve", "--port", "0", "--access-log", "off", *flags],
            cwd=ROOT,
            env=environment(**variables or {}),
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None
        self.first_lines = ""
        while not (match := re.search(r"http://[\d.\[:\]]+:(\d+)", self.first_lines)):
            line = self._process.stderr.readline()
            assert line, f"the service did not start: {self.first_lines}"
            self.first_lines += line
        self.port = int(match[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def signal(self, number: int) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def read_until(self, words: str) -> str:
        """Read the log until a line has these words; what was read."""
        assert self._process.stderr is not None
        log = ""
        while words not in (line := self._process.stderr.readline()):
            assert line, f"the process ended without saying {words!r}"
            log += line
        return log + line

    def stop_reading(self) -> None:
        """Close the log's other end."""
        assert self._process.stderr is not None
        with Path(os.devnull).open() as nothing:
            os.dup2(nothing.fileno(), self._process.stderr.fileno())

    def wait_unread(self) -> int:
        """The exit code, while nobody reads the log."""
        return self._process.wait(30)

    def wait(self) -> tuple[int, str]:
        """The exit code, and what was logged after the first line."""
        _, log = self._process.communicate(timeout=30)
        return self._process.returncode, log


def environment(**changes: str) -> dict[str, str]:
    """This process's environment without settings of the service, but for ``changes``."""
    ours = ("SENTIMENT_", "SAGEMAKER_", "AIP_", "AZUREML_")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(ours) and name != "PORT"
    }
    return kept | changes


def metric(client: httpx2.Client, name: str, **labels: str) -> float:
    """The value of one series, scraped."""
    found = [
        sample.value
        for family in text_string_to_metric_families(client.get("/metrics").text)
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    ]
    assert len(found) == 1, f"{name}{labels}: {found}"
    return found[0]


def exchange(port: int, *parts: bytes) -> bytes:
    """Send parts on a connection of their own; the server's answer until it closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        for part in parts:
            connection.sendall(part)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    return received


def read_answer(connection: socket.socket) -> tuple[int, bytes]:
    """Status and body of one answer, on a connection that stays open: no more is read."""
    with HTTPResponse(connection) as response:
        response.begin()
        return response.status, response.read()


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds."""
    for _ in range(3_000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen within 30 s")
