"""Many clients that misbehave at once: other clients are answered, and memory is bounded."""

import resource
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx2
import pytest

from tests.api.routes.test_stream import FLAGS
from tests.server.test_http_protocol import HEAD
from tests.support.serving import COMMAND, Process, eventually

IDLE = 5_000
FILES = 128  # that a process may open; some forty are open when it serves
BODY = b'{"inputs": [%b"love"]}' % (b'"love", ' * 999)
SCRAPE = b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture(scope="module")
def process(bundle: Path) -> Iterator[Process]:
    """A real server."""
    with Process("--model", str(bundle), *FLAGS) as process:
        yield process


def _memory_bytes(process: Process) -> int:
    pages = Path(f"/proc/{process.pid}/statm").read_text(encoding="utf-8").split()[1]
    return int(pages) * resource.getpagesize()


def _connect(port: int) -> socket.socket:
    """Connect with a very small receive buffer."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    connection.connect(("127.0.0.1", port))
    return connection


def _answers(process: Process) -> bool:
    """Whether a request on a new connection is answered."""
    answer = httpx2.post(f"{process.url}/classify", json={"inputs": "love"}, timeout=30)
    label: str = answer.json()["results"][0]["label"]
    return label == "positive"


def test_clients_that_never_read_hold_up_nobody(process: Process) -> None:
    """The server stops reading their requests instead of keeping their answers in memory."""
    before = _memory_bytes(process)
    request = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
    with ExitStack() as stack:
        silent = [stack.enter_context(_connect(process.port)) for _ in range(10)]
        left = {connection: memoryview(request * 3_000) for connection in silent}
        for connection in silent:
            connection.setblocking(False)
        for _ in range(30):
            for connection in silent:
                with suppress(BlockingIOError):
                    while left[connection]:
                        left[connection] = left[connection][connection.send(left[connection]) :]
            time.sleep(0.05)
        assert all(left.values())
        assert _answers(process)
        assert _memory_bytes(process) < before + 100_000_000
    eventually(lambda: _answers(process))


def test_thousands_of_idle_connections_hold_up_nobody(bundle: Path) -> None:
    """Each takes some kilobytes; other clients are answered, and the process ends normally."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(IDLE, hard - 500)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the server inherits it
    try:
        with Process("--model", str(bundle), *FLAGS) as process, ExitStack() as stack:
            before = _memory_bytes(process)
            for number in range(count):
                connection = stack.enter_context(_connect(process.port))
                if number % 2:
                    connection.sendall(b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n")
            open_files = Path(f"/proc/{process.pid}/fd")
            eventually(lambda: len(list(open_files.iterdir())) > count)
            assert _answers(process)
            assert _memory_bytes(process) < before + count * 40_000
            process.signal(signal.SIGTERM)
            code, log = process.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert code == 0
    assert "Traceback" not in log


def test_after_file_descriptors_ran_out_it_serves_on(bundle: Path) -> None:
    """Connected clients are answered meanwhile; new ones are, once connections have closed."""
    command = ["bash", "-c", f'ulimit -n {FILES}; exec "$@"', "-", *COMMAND]
    with (
        Process("--model", str(bundle), *FLAGS, command=command) as process,
        httpx2.Client(base_url=process.url, timeout=30) as connected,
    ):
        assert connected.get("/health/ready").status_code == 200
        with ExitStack() as stack:
            for _ in range(FILES):
                stack.enter_context(_connect(process.port))
            eventually(lambda: not _is_answered(process))
            assert connected.post("/classify", json={"inputs": "love"}).status_code == 200
            assert connected.get("/health/live").status_code == 200
        eventually(lambda: _is_answered(process))
        assert _answers(process)


def _is_answered(process: Process) -> bool:
    """Whether a new client is answered within a second."""
    with suppress(httpx2.HTTPError):
        return httpx2.get(f"{process.url}/health/live", timeout=1).status_code == 200
    return False


@pytest.mark.parametrize("own_port", [False, True], ids=["same port", "metrics port"])
def test_scrapers_that_hang_hold_up_nobody(bundle: Path, own_port: bool) -> None:
    """Scrapers hang during request or answer; other scrapes are answered, and the process ends."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = ["--metrics-port", str(port)] if own_port else []
    with Process("--model", str(bundle), *FLAGS, "--drain-ms", "500", *flags) as process:
        metrics = port if own_port else process.port
        with ExitStack() as stack:
            for part in (b"", SCRAPE[:10], SCRAPE):
                for _ in range(3):
                    stack.enter_context(_connect(metrics)).sendall(part)
            scraped = httpx2.get(f"http://127.0.0.1:{metrics}/metrics", timeout=30).text
            assert 'sentiment_model_ready{model="tiny"} 1.0' in scraped
            assert _answers(process)
            process.signal(signal.SIGTERM)
            code, _ = process.wait()
    assert code == 0
