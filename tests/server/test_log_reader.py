"""The reader of standard error stops, leaves, or is missing from the start: the service goes on."""

import fcntl
import json
import logging
import os
import re
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import httpx2
import pytest
from sentiment_service.observability import logs

from benchmarks.service import free_port
from tests.conftest import FLAGS
from tests.support.raw_http import exchange
from tests.support.serving import (
    COMMAND,
    ROOT,
    Process,
    Program,
    environment,
    eventually,
    metric,
    patched,
    run_program,
)

# Few lines may wait, so that few requests are enough.
SMALL_QUEUE = patched("from sentiment_service.observability import logs\nlogs.MAX_WAITING = 50")
PIPE_BYTES = 8_192
REQUESTS = 150  # their lines fill the pipe and the queue


class Unread(Process):
    """A service whose log nobody reads until ``reader`` is set; when it is cleared, again not."""

    def __init__(self, bundle: Path, *more: str) -> None:
        self.reader = threading.Event()
        flags = ["--model", str(bundle), *FLAGS, "--access-log", "on", *more]
        super().__init__(*flags, command=SMALL_QUEUE)
        assert self._process.stderr is not None
        fcntl.fcntl(self._process.stderr, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def _read(self, log: IO[str]) -> None:
        self.reader.wait()
        with log:
            for line in log:
                self._lines.append(line)
                self.reader.wait()

    def __exit__(self, *exception: object) -> None:
        self.reader.set()
        super().__exit__(*exception)

    def leave(self) -> None:
        """Close the log's other end."""
        assert self._process.stderr is not None
        with Path(os.devnull).open() as nothing:
            os.dup2(nothing.fileno(), self._process.stderr.fileno())

    def end_unread(self) -> None:
        """SIGTERM ends it with code 0, although nobody reads its log."""
        self.signal(signal.SIGTERM)
        assert self._process.wait(30) == 0


def test_workers_are_replaced_while_nobody_reads(bundle: Path) -> None:
    """The workers and the supervisor share a full pipe, and none of them waits for its reader."""
    with Unread(bundle, "--workers", "2") as process:
        url = f"{process.url}/info"
        with httpx2.Client(timeout=30) as client, httpx2.Client(timeout=30) as other:
            for asked in (client, other):  # one at each worker
                assert {asked.get(url).status_code for _ in range(REQUESTS // 2)} == {200}
            killed = client.get(url).json()["workers"][0]["pid"]
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: process.are_ready(without=[killed]))
        process.end_unread()


def _ask(client: httpx2.Client, times: int) -> None:
    assert {client.get("/models").status_code for _ in range(times)} == {200}


def test_a_reader_that_stops_stops_nothing(bundle: Path) -> None:
    """All requests are answered; dropped lines are counted, and reported when the reader goes on.

    SIGTERM ends the service with code 0, although the pipe and the queue are full.
    """
    with Unread(bundle) as process:
        client = process.client
        assert metric(client, "sentiment_log_lines_dropped_total") == 0
        _ask(client, REQUESTS)
        process.reader.set()
        log = process.read_until("log lines were dropped")
        told = int(re.findall(r"(\d+) log lines were dropped", log)[0])
        assert told > 20
        assert metric(client, "sentiment_log_lines_dropped_total") == told
        client.get("/models", headers={"x-request-id": "the-last"})
        log += process.read_until("the-last")
        lines = [json.loads(line) for line in log.splitlines()]
        written = [line for line in lines if line["logger"] == "access"]
        assert len(written) + told == REQUESTS + 1  # the last
        process.reader.clear()
        _ask(client, REQUESTS)
        process.end_unread()


def test_a_reader_that_leaves_ends_nothing(bundle: Path) -> None:
    """Without a reader, lines are counted as dropped, requests are answered, the exit code is 0."""
    with Unread(bundle) as process:
        process.leave()
        _ask(process.client, 3)
        eventually(lambda: metric(process.client, "sentiment_log_lines_dropped_total") >= 3)
        process.end_unread()


@pytest.fixture(scope="module")
def bare(bundle: Path) -> Iterator[tuple[int, int]]:
    """Process id and port of a service started without standard files and with few descriptors."""
    port = free_port()
    shell = ["bash", "-c", 'ulimit -Sn 256; exec "$@" <&- >&- 2>&-', "bash", *COMMAND]
    command = [*shell, "serve", "--model", str(bundle), "--port", str(port), *FLAGS]

    def answers() -> bool:
        try:
            return httpx2.get(f"http://127.0.0.1:{port}/health/ready").status_code == 200
        except httpx2.ConnectError:
            assert process.poll() is None, "the service ended at its start"
            return False

    with Program(command, cwd=ROOT, env=environment()) as process:
        eventually(answers)
        yield process.pid, port
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_standard_files_that_are_closed_are_no_sockets(bare: tuple[int, int]) -> None:
    """The service serves without a log, and no connection gets the log's descriptor."""
    pid, port = bare
    opened = {number: str(Path(f"/proc/{pid}/fd/{number}").readlink()) for number in range(3)}
    assert not any(name.startswith("socket:") for name in opened.values()), opened
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client:
        _ask(client, 10)
    answer = exchange(port, b"GET /models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"logger" not in answer


def test_as_many_files_as_the_system_allows(bare: tuple[int, int]) -> None:
    """The service raises its soft limit of open files, because each connection takes one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with httpx2.Client(base_url=f"http://127.0.0.1:{bare[1]}") as client:
        assert metric(client, "process_max_fds") == min(hard, 65_536)


def test_a_pipe_that_does_not_wait() -> None:
    """If another process made the pipe non-blocking, log lines are still written whole."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    line = b"x" * 300_000
    thread = threading.Thread(target=logs._write, args=(line, writing))
    thread.start()
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read(len(line)) == line
    thread.join(30)
    assert not thread.is_alive()
    os.close(writing)


def test_python_s_warnings_are_lines_of_the_log() -> None:
    """Python's warnings appear as lines of the log, in its format, written by its thread."""
    code = (
        "import warnings; from sentiment_service.observability import logs; "
        "logs.configure('info', 'json'); "
        "warnings.warn('beware'); logs.close()"
    )
    done = run_program(sys.executable, "-c", code)
    document = json.loads(done.stderr)
    assert document["logger"] == "py.warnings"
    assert "beware" in document["message"]


def test_a_line_says_what_was_so_when_it_was_logged() -> None:
    """A line is formatted when it is logged: later changes of its values do not show."""
    handler = logs._Lines()
    handler.setFormatter(logs._Json())
    fields = {"status": 200}
    record = logging.makeLogRecord({"msg": "request", "levelname": "INFO", "fields": fields})
    handler.handle(record)
    fields["status"] = 500
    assert json.loads(handler.queue.get(timeout=5))["status"] == 200
