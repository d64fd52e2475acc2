"""Two servers behind nginx, with the configuration in deploy/nginx. One may end at any time."""

import os
import shutil
import signal
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.api.routes.test_stream import FLAGS
from tests.support.serving import ROOT, SLOW_COMMAND, Process, eventually

CONFIG = ROOT / "deploy/nginx/nginx.conf"


@pytest.fixture
def nginx() -> str:
    """The path of nginx; in CI it must be installed."""
    path = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if path is None:
        give_up = pytest.fail if os.environ.get("CI") else pytest.skip
        give_up("this needs nginx: apt-get install nginx-light")
    return path


@pytest.fixture
def replicas(bundle: Path) -> Iterator[list[Process]]:
    """Two servers with slow batches, so that requests are running when one of them ends."""
    with ExitStack() as stack:
        flags = ["--model", str(bundle), *FLAGS]
        yield [stack.enter_context(Process(*flags, command=SLOW_COMMAND)) for _ in range(2)]


@contextmanager
def _proxy(program: str, replicas: list[Process], directory: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = CONFIG.read_text(encoding="utf-8").replace("listen 8080", f"listen 127.0.0.1:{port}")
    for number, replica in enumerate(replicas, start=1):
        config = config.replace(f"sentiment-{number}:8000", f"127.0.0.1:{replica.port}")
    (directory / "nginx.conf").write_text(config, encoding="utf-8")
    settings = f"daemon off; pid {directory}/pid; error_log {directory}/log;"
    command = [program, "-p", str(directory), "-c", str(directory / "nginx.conf"), "-g", settings]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            eventually(lambda: _answers(url))
            yield url
        finally:
            process.terminate()


def _answers(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/health/ready").status_code == 200
    except httpx2.ConnectError:
        return False


@contextmanager
def _load(url: str) -> Iterator[Counter[str]]:
    """Clients that send requests all the time; yields the number of each kind of answer."""
    seen: Counter[str] = Counter()
    done = threading.Event()

    def ask() -> None:
        with httpx2.Client(base_url=url) as client:
            while not done.is_set():
                try:
                    answer = client.post("/classify", json={"inputs": ["love", "worst"]})
                    labels = [result["label"] for result in answer.json()["results"]]
                    seen["sound" if labels == ["positive", "negative"] else answer.text] += 1
                except (httpx2.HTTPError, KeyError, ValueError) as error:
                    seen[repr(error)] += 1

    with ThreadPoolExecutor(8) as pool:
        for _ in range(8):
            pool.submit(ask)
        try:
            yield seen
        finally:
            done.set()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_replica_that_goes_is_noticed_by_no_client(
    nginx: str, replicas: list[Process], tmp_path: Path, number: int
) -> None:
    """If a replica is killed or stopped, the other one answers its requests."""
    with _proxy(nginx, replicas, tmp_path) as url, _load(url) as seen:
        eventually(lambda: seen["sound"] > 50)
        replicas[0].signal(number)
        before = seen["sound"]
        eventually(lambda: seen["sound"] > before + 100)
    assert set(seen) == {"sound"}


def test_a_stream_goes_through_line_by_line(
    nginx: str, replicas: list[Process], tmp_path: Path
) -> None:
    """An answer arrives before the next line is sent. Routes for operators give 404."""
    with _proxy(nginx, replicas, tmp_path) as url:
        assert httpx2.get(f"{url}/metrics").status_code == 404
        assert httpx2.post(f"{url}/models/tiny/reload").status_code == 404
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as connection:
            connection.settimeout(30)
            head = "POST /classify/stream HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n"
            connection.sendall(f"{head}content-type: application/x-ndjson\r\n\r\n".encode())
            received = connection.makefile("rb")
            for number in range(3):
                line = b'{"id":%d,"text":"love"}\n' % number
                connection.sendall(b"%x\r\n%b\r\n" % (len(line), line))
                while not (answer := received.readline()).startswith(b'{"id":%d,' % number):
                    assert answer
