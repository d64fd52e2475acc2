"""Faults around the service: too little memory or CPU, and a trace collector that is of no use."""

import os
import resource
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from tests.conftest import FLAGS, Start
from tests.support.serving import COMMAND, Process, run_program

TOO_LITTLE_KB = 200_000  # the libraries do not fit
SPARE_BYTES = 20_000_000
LARGE = ["love " * 300] * 1_000


SERVE = ["serve", "--port", "0", *FLAGS, "--model"]
# Nobody has this address: where so little memory does suffice, the start ends there.
NOWHERE = ["serve", "--host", "192.0.2.1", *SERVE[1:]]
CLASSIFY = ["classify", "love", "--model"]


@pytest.mark.parametrize(
    ("limit", "words", "says"),
    [
        *((f"-v {kilobytes}", SERVE, "") for kilobytes in (100_000, TOO_LITTLE_KB)),
        *((f"-n {files}", SERVE, "files and connections open") for files in (8, 12)),
        # Between two imports: a package does not fit, or the log's last thread.
        *((f"-v {kilobytes}", NOWHERE, "") for kilobytes in (250_000, 300_000, 350_000)),
        *((f"-v {kilobytes}", CLASSIFY, "") for kilobytes in (80_000, 100_000, 120_000)),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else value,
)
def test_a_start_without_enough_memory_or_files_ends(
    bundle: Path, limit: str, words: list[str], says: str
) -> None:
    """The exit code reports it, so an orchestrator does not wait for a port that never opens.

    The last line says why, and no traceback hides it. Between two imports, and in ``classify``, a
    library in C may end the process itself.
    """
    limited = ["bash", "-c", f'ulimit {limit}; exec "$@"', "-", *COMMAND]
    done = run_program(*limited, *words, str(bundle))
    assert done.returncode if words is not SERVE else done.returncode > 0
    assert done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_start_without_threads_ends() -> None:
    """One line says why. Root has no such limit, so threads refuse to start here."""
    program = """if True:
        import sys, threading
        from sentiment_service.cli.command import main
        def refuse(thread):
            raise RuntimeError("can't start new thread")
        threading.Thread.start = refuse
        sys.exit(main(["serve", "--port", "0"]))
    """
    done = run_program(sys.executable, "-c", program)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, "can't start new thread; raise" in line) == (1, True)


def _outcome(client: httpx2.Client, inputs: str | list[str]) -> int | None:
    """The status of the answer; None if the process ended instead."""
    try:
        return client.post("/classify", json={"inputs": inputs}).status_code
    except (httpx2.RemoteProtocolError, httpx2.ConnectError, httpx2.ReadError):
        return None


def test_memory_that_runs_out_hangs_nobody(start: Start) -> None:
    """Each client gets an answer or sees the process end; a process that does not end serves on.

    Libraries in C++ and Rust end the process when they get no memory. Its supervisor must then
    start it again.
    """
    process = start()
    pages = Path(f"/proc/{process.pid}/statm").read_text(encoding="utf-8").split()[0]
    soft, hard = resource.prlimit(process.pid, resource.RLIMIT_AS)
    limit = int(pages) * resource.getpagesize() + SPARE_BYTES
    resource.prlimit(process.pid, resource.RLIMIT_AS, (limit, hard))
    outcomes = [_outcome(process.client, inputs) for inputs in ("love", LARGE, "love")]
    assert outcomes[0] == 200
    if None in outcomes:
        code, log = process.wait()
        assert code < 0
        assert "memory" in log
    else:
        resource.prlimit(process.pid, resource.RLIMIT_AS, (soft, hard))
        assert _outcome(process.client, "love") == 200


def test_one_cpu_serves_everybody(bundle: Path) -> None:
    """Self-tuning chooses one runner with one thread, and many concurrent requests are answered."""
    pinned = ["taskset", "-c", str(min(os.sched_getaffinity(0))), *COMMAND]
    with Process("--model", str(bundle), command=pinned) as process, ThreadPoolExecutor(16) as pool:
        assert "runners 1 x threads 1" in process.first_lines
        url = f"{process.url}/classify"
        asked = [
            pool.submit(httpx2.post, url, json={"inputs": "love"}, timeout=30) for _ in range(64)
        ]
        assert {answer.result().status_code for answer in asked} == {200}
        assert httpx2.get(f"{process.url}/health/ready").status_code == 200


def test_a_trace_collector_that_hangs_holds_up_nobody(start: Start) -> None:
    """The collector never answers; requests are answered all the same, and the process ends."""
    with socket.create_server(("127.0.0.1", 0)) as collector:
        process = start("--otlp-endpoint", f"http://127.0.0.1:{collector.getsockname()[1]}")
        # 512 spans are sent at once; each request makes five, its own and those of its stages.
        for _ in range(120):
            assert process.client.post("/classify", json={"inputs": "love"}).status_code == 200
        process.terminate()
        # It did hang: something was sent, and never taken.
        collector.settimeout(30)
        connection, _ = collector.accept()
        with connection:
            assert connection.recv(100).startswith(b"POST /v1/traces ")


def test_a_trace_collector_that_is_gone_harms_nobody(start: Start) -> None:
    """No program listens there; requests are answered all the same, and the process ends."""
    process = start("--otlp-endpoint", "http://127.0.0.1:9")
    assert process.client.post("/classify", json={"inputs": "love"}).status_code == 200
    process.terminate()
