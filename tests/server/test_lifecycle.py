"""A real process, from its start to the last answer after SIGTERM."""

import json
import signal
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import httpx2
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app.cli.command import main
from app.server.arrivals import bind
from app.server.run import Server
from tests.conftest import FLAGS
from tests.support.serving import (
    HEAD,
    STUCK_COMMAND,
    Process,
    connect,
    environment,
    eventually,
    metric,
    patched,
    read_all,
    statuses,
)


def test_it_answers_as_soon_as_it_says_so(bundle: Path) -> None:
    """One line names the model, its device and the address; from then on the service is ready."""
    with Process("--model", str(bundle), "--runners", "3", "--threads", "1") as process:
        for word in ("tiny", "fp32", "CPUExecutionProvider", "runners 3 x threads 1", process.url):
            assert word in process.first_lines
        assert httpx2.get(f"{process.url}/health/ready").status_code == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_success(bundle: Path, number: int) -> None:
    """The exit code is 0 and the log has two lines, even with a connection left open."""
    with Process("--model", str(bundle)) as process, httpx2.Client() as client:
        assert client.get(f"{process.url}/health").status_code == 200  # stays connected
        process.signal(number)
        code, log = process.wait()
    assert code == 0
    messages = [json.loads(line)["message"] for line in log.splitlines()]
    assert messages == ["shutting down", "stopped"]


def test_sigterm_ends_a_start() -> None:
    """SIGTERM ends a process that is still starting, even as process 1 of a container."""
    loading = "import app.main; app.main.create_app = lambda *_: print('loading', flush=True) or "
    command = [*patched(loading + "time.sleep(60)"), "serve", "--port", "0"]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM


def test_the_signal_itself_ends_readiness(client: TestClient) -> None:
    """At SIGTERM, readiness fails at once, while connections are still accepted."""
    app = cast(FastAPI, client.app)
    with bind("127.0.0.1", 0) as listener:
        server = Server({listener: app}, app.state.service, [])
    server.handle_exit(signal.SIGTERM, None)
    assert server.should_exit
    assert client.get("/health/ready").json()["code"] == "shutting_down"


HALF_A_REQUEST = HEAD + b"content-length: 100\r\n\r\n"


def test_a_client_that_dawdles_cannot_hold_the_process(bundle: Path) -> None:
    """When drain-ms ends, unfinished requests get 503, and the exit code is still 0."""
    with (
        Process("--model", str(bundle), "--drain-ms", "500") as process,
        connect(process.port, HALF_A_REQUEST) as dawdler,
        httpx2.Client(base_url=process.url) as client,
    ):
        eventually(lambda: metric(client, "sentiment_http_requests_in_flight") == 2)
        process.terminate()
        assert statuses(read_all(dawdler)) == [503]


def test_a_second_ctrl_c_ends_it_at_once(bundle: Path) -> None:
    """A second Ctrl-C ends the process at once, without waiting for drain-ms."""
    with (
        Process("--model", str(bundle), "--drain-ms", "600000") as process,
        connect(process.port, HALF_A_REQUEST),
        httpx2.Client(base_url=process.url) as client,
    ):
        eventually(lambda: metric(client, "sentiment_http_requests_in_flight") == 2)
        process.signal(signal.SIGINT)
        process.read_until("shutting down")
        process.signal(signal.SIGINT)
        code, log = process.wait()
    assert code == 130
    assert "Traceback" not in log


def test_a_taken_port_is_said_in_one_line(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line names the address that is in use and the flag, before the models are loaded."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags = ["--model", str(bundle), "--port", str(port), "--log-format", "human"]
        assert main(["serve", *flags]) == 1
    assert capsys.readouterr().err == (
        f"sentiment: cannot listen on 127.0.0.1 port {port}: Address already in use; "
        "choose another with --port (--metrics-port, --grpc-port)\n"
    )


def test_a_stuck_batch_cannot_hold_or_break_the_exit(bundle: Path) -> None:
    """When drain-ms ends, the client gets 503, the log names the cause, the exit code is 1."""
    # Set, so that nothing is measured: the batches of a measurement would hang, too.
    flags = ["--drain-ms", "500", *FLAGS]
    with (
        Process("--model", str(bundle), *flags, command=STUCK_COMMAND) as process,
        ThreadPoolExecutor(1) as pool,
        httpx2.Client(base_url=process.url) as client,
    ):
        answer = pool.submit(httpx2.post, f"{process.url}/classify", json={"inputs": "love"})
        eventually(lambda: metric(client, "sentiment_http_requests_in_flight") == 2)
        process.signal(signal.SIGTERM)
        code, log = process.wait()
        assert answer.result().status_code == 503
    assert code == 1
    assert "the thread of a runner had not ended" in log
    assert "Traceback" not in log
