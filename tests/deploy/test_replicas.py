"""Two servers behind nginx, with the configuration in deploy/nginx. One may end at any time."""

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from benchmarks.service import free_port
from checks.support.load import constant_load
from tests.conftest import Start
from tests.support.raw_http import connect, port_of
from tests.support.serving import ROOT, SLOW_COMMAND, Process, eventually, installed
from tests.support.streams import STREAM_HEAD, ask_line

NGINX_S = 2  # until nginx uses a replica that is back, as deploy/nginx/nginx.conf says
CONFIG = ROOT / "deploy/nginx/nginx.conf"


@pytest.fixture
def nginx() -> str:
    """The path of nginx."""
    return installed("nginx", "nginx-light")


@pytest.fixture
def replicas(start: Start) -> list[Process]:
    """Two servers with slow batches, so that requests are running when one of them ends."""
    return [start(command=SLOW_COMMAND) for _ in range(2)]


@contextmanager
def _proxy(program: str, replicas: list[Process], directory: Path) -> Iterator[str]:
    port = free_port()
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


def _is_sound(document: Any) -> bool:
    return [result["label"] for result in document["results"]] == ["positive", "negative"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_replica_that_goes_is_noticed_by_no_client(
    nginx: str, replicas: list[Process], tmp_path: Path, number: int
) -> None:
    """If a replica is killed or stopped, the other one answers its requests."""
    clients = [["love", "worst"]] * 8
    with (
        _proxy(nginx, replicas, tmp_path) as url,
        constant_load(url, clients, _is_sound) as seen,
    ):
        eventually(lambda: seen[True] > 50)
        replicas[0].signal(number)
        before = seen[True]
        eventually(lambda: seen[True] > before + 100)
    assert set(seen) == {True}


def test_a_rollout_is_noticed_by_no_client(nginx: str, start: Start, tmp_path: Path) -> None:
    """The next replica is stopped when nginx uses the new one, as docs/upgrade.md says."""
    replicas = [start(), start()]
    with (
        _proxy(nginx, replicas, tmp_path) as url,
        constant_load(url, [["love", "worst"]] * 8, _is_sound) as seen,
    ):
        eventually(lambda: seen[True] > 50)
        for replica in replicas:
            replica.terminate()
            start("--port", str(replica.port))
            time.sleep(NGINX_S)
    assert set(seen) == {True}


def test_a_stream_goes_through_line_by_line(
    nginx: str, replicas: list[Process], tmp_path: Path
) -> None:
    """An answer arrives before the next line is sent. Routes for operators give 404."""
    with _proxy(nginx, replicas, tmp_path) as url:
        assert httpx2.get(f"{url}/metrics").status_code == 404
        for order in ("reload", "promote"):
            refused = httpx2.post(f"{url}/models/tiny/{order}")
            assert (refused.status_code, refused.headers["server"][:5]) == (404, "nginx")
        with (
            connect(port_of(url), STREAM_HEAD) as connection,
            connection.makefile("rb") as received,
        ):
            for number in range(3):
                ask_line(connection, received, number)
