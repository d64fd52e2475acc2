"""Ways to run the service in a test, and to look into it."""

import asyncio
import os
import pty
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NoReturn

import httpx2
import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families
from sentiment_service.engine.model.model import Model
from sentiment_service.server.process import bind
from sentiment_service.server.server import Server

from benchmarks import service
from tests.support import forks

ROOT = Path(__file__).parents[2]
COMMAND = forks.COMMAND


def patched(code: str, *arguments: str) -> list[str]:
    """The command, after this code, which may take the arguments from ``sys.argv[1]`` on."""
    return [sys.executable, "-c", f"import sys, time\n{code}\n{forks.MAIN}", *arguments]


def before_inference(code: str) -> list[str]:
    """The command; the code comes before batch ``number`` of ``encodings`` is computed."""
    return patched(
        f"""
from itertools import count
from sentiment_service.engine.model.model import Model
infer, numbers = Model.infer, count()
def replacement(self, encodings):
    number = next(numbers)
    {code}
    return infer(self, encodings)
Model.infer = replacement
"""
    )


SLOW_COMMAND = before_inference("time.sleep(0.05)")
# Inference never returns, but for the two batches of the warm-up.
STUCK_COMMAND = before_inference("number > 1 and time.sleep(600)")


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
    server = Server({listener: app}, app.state.service, asyncio.Event(), keep_alive_s=keep_alive_s)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        eventually(lambda: server.started)
        yield url
    finally:
        server.should_exit = True
        thread.join()


class Program(forks.Popen):
    """A process that ends with its ``with`` block, which else would wait for it."""

    def __exit__(self, *exception: Any) -> None:
        self.kill()
        super().__exit__(*exception)


class Process(service.Server):
    """``sentiment serve`` on a free port, without settings from outside; killed in the end.

    ``client`` sends it requests, on connections that stay open. A test of what it imports, or
    does at its imports, has ``subprocess.Popen`` start it instead of a fork.
    """

    def __init__(
        self,
        *flags: str,
        command: Sequence[str] = COMMAND,
        variables: Mapping[str, str] | None = None,
        popen: type[subprocess.Popen[Any]] = Program,
    ) -> None:
        super().__init__(
            *(*command, "serve", "--port", "0", "--access-log", "off", *flags),
            environment=environment(**variables or {}),
            popen=popen,
        )
        self.client = httpx2.Client(base_url=self.url, timeout=30)

    def __exit__(self, *exception: object) -> None:
        self.client.close()
        self.signal(signal.SIGKILL)
        super().__exit__(*exception)

    def terminate(self) -> str:
        """Send SIGTERM; what is logged until the process has ended, which it does in order."""
        self.signal(signal.SIGTERM)
        code, log = self.wait()
        assert (code, "Traceback" in log) == (0, False), log
        return log

    def read_until(self, words: str) -> str:
        """Wait for a line of the log with these words; what is new in the log up to it."""

        def found() -> bool:
            new = self._lines[self._taken + len(seen) :]
            seen.extend(new[: next((n for n, line in enumerate(new, 1) if words in line), None)])
            return bool(seen) and words in seen[-1]

        seen: list[str] = []
        eventually(found)
        self._taken += len(seen)
        return "".join(seen)

    def memory_bytes(self) -> int:
        """Resident memory."""
        return int(self.memory_mb()["Rss"] * 1e6)

    def children(self) -> list[int]:
        """The ids of its workers."""
        return children_of(self.pid)

    def info(self) -> dict[str, Any]:
        """What a new connection is told by GET /info: a worker that was killed closes its own."""
        told: dict[str, Any] = httpx2.get(f"{self.url}/info").json()
        return told

    def are_ready(self, *, without: Iterable[int] = ()) -> bool:
        """Whether all workers are ready, and none is one of these processes."""
        former = {0, *without}
        workers = self.info()["workers"]
        return all(one["stage"] == "ready" and one["pid"] not in former for one in workers)


def environment(**changes: str) -> dict[str, str]:
    """This process's environment without settings of the service, but for ``changes``."""
    ours = ("SENTIMENT_", "SAGEMAKER_", "AIP_", "AZUREML_")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(ours) and name != "PORT"
    }
    return kept | changes


def children_of(pid: int) -> list[int]:
    """The ids of the processes that a process has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def state_of(pid: int) -> str:
    """T: the process is stopped. S: it sleeps. Z: it is a zombie, or gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def runs(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    return state_of(pid) != "Z"


def run_program(
    *command: str | Path,
    cwd: Path = ROOT,
    timeout_s: float = 60,
    stdin: int | IO[Any] = subprocess.DEVNULL,
    **variables: str,
) -> "subprocess.CompletedProcess[str]":
    """What a program wrote and its exit code. It has no standard input unless one is given."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    given = environment(**variables)
    with Program(command, cwd=cwd, env=given, stdin=stdin, **pipes) as process:
        written, said = process.communicate(timeout=timeout_s)
    return subprocess.CompletedProcess(command, process.returncode, written, said)


def installed(program: str, package: str) -> str:
    """The path of a program; without it, the test is skipped, but in CI it fails."""
    path = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")
    if path is None:
        _give_up(f"this test needs {program}: apt-get install {package}")
    return path


def terminal() -> tuple[int, int]:
    """Both ends of a terminal; without one, the test is skipped, but in CI it fails."""
    try:
        return pty.openpty()
    except OSError as error:
        _give_up(f"this system gives no terminal, for which /dev/pts is mounted: {error}")


def _give_up(reason: str) -> NoReturn:
    (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)


def metric(client: httpx2.Client, name: str, **labels: str) -> float:
    """The sum of the series that have these labels, scraped; at least one has."""
    found = [
        sample.value
        for family in text_string_to_metric_families(client.get("/metrics").text)
        for sample in family.samples
        if sample.name == name and sample.labels.items() >= labels.items()
    ]
    assert found, f"{name}{labels}"
    return sum(found)


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds."""
    until = time.monotonic() + 60  # however long it takes to look
    while time.monotonic() < until:
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen within 60 s")
