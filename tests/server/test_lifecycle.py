"""A real process, from its start to the last answer after SIGTERM."""

import asyncio
import json
import signal
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sentiment_service.cli.command import main
from sentiment_service.server.process import bind
from sentiment_service.server.server import Server

from tests.conftest import Start
from tests.support.raw_http import BODY, HEAD, connect, read_all, statuses
from tests.support.serving import (
    STUCK_COMMAND,
    Program,
    children_of,
    environment,
    eventually,
    metric,
    patched,
    runs,
)

# The server says that it waits for the body.
HALF_A_REQUEST = HEAD + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(BODY)


def test_it_answers_as_soon_as_it_says_so(start: Start) -> None:
    """One line names the model, its device and the address; from then on the service is ready."""
    process = start("--runners", "3")
    for word in ("tiny", "fp32", "CPUExecutionProvider", "runners 3 x threads 1", process.url):
        assert word in process.first_lines
    assert process.client.get("/health/ready").status_code == 200
    (status,) = process.client.get("/info").json()["workers"]
    assert (status["stage"], status["connections"], status["in_flight"]) == ("ready", 1, 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_success(start: Start, number: int) -> None:
    """The exit code is 0, even with a connection left open. Two lines are all that is logged.

    The request has no line, because the access log is off.
    """
    process = start("--access-log", "off")
    assert process.client.get("/info").status_code == 200  # stays connected
    process.signal(number)
    code, log = process.wait()
    assert code == 0
    messages = [json.loads(line)["message"] for line in log.splitlines()]
    assert messages == ["shutting down", "stopped"]


LOADING = """
from sentiment_service import main as made
create = made.create_app
def create_app(*given, **named):
    try:
        print("loading", flush=True)
        time.sleep(60)
    except SystemExit as ended:
        {}
    return create(*given, **named)
made.create_app = create_app
"""


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize(
    "meanwhile",
    [
        "raise",
        # as the import of a C extension
        "raise ImportError('initialization failed') from ended",
        "raise RuntimeError from ended",
        "pass",
    ],
)
def test_sigterm_ends_a_start(bundle: Path, workers: str, meanwhile: str) -> None:
    """SIGTERM while the model is loaded ends everything, even as process 1 of a container.

    No failure is logged, whatever a package that is being imported makes of it.
    """
    flags = ["--port", "0", "--workers", workers, "--model", str(bundle), "--log-format", "json"]
    command = [*patched(LOADING.format(meanwhile)), "serve", *flags]
    with Program(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "loading\n"
        children = children_of(process.pid)
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=30)
        assert process.returncode == 128 + signal.SIGTERM
    assert {json.loads(line)["level"] for line in log.splitlines()} == {"info"}
    assert len(children) == (workers == "2")
    assert not any(map(runs, children))


def test_the_signal_itself_ends_readiness(client: TestClient) -> None:
    """At SIGTERM, readiness fails at once, while connections are still accepted."""
    app = cast(FastAPI, client.app)
    with bind("127.0.0.1", 0) as listener:
        server = Server({listener: app}, app.state.service, asyncio.Event())
    server.handle_exit(signal.SIGTERM, None)
    assert server.should_exit
    assert client.get("/health/ready").json()["code"] == "shutting_down"


def test_a_client_that_dawdles_cannot_hold_the_process(start: Start) -> None:
    """When drain-ms ends, unfinished requests get 503, and the exit code is still 0."""
    process = start("--drain-ms", "500")
    with connect(process.port, HALF_A_REQUEST) as dawdler:
        assert b"100 Continue" in dawdler.recv(1_000)
        process.terminate()
        assert statuses(read_all(dawdler)) == [503]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_second_ctrl_c_ends_it_at_once(start: Start, workers: str) -> None:
    """A second Ctrl-C ends all its processes at once, without waiting for drain-ms."""
    process = start("--drain-ms", "600000", "--workers", workers)
    children = process.children()
    with connect(process.port, HALF_A_REQUEST) as begun:
        assert b"100 Continue" in begun.recv(1_000)
        process.signal(signal.SIGINT)
        process.read_until("shutting down")
        process.signal(signal.SIGINT)
        code, log = process.wait()
        eventually(lambda: not any(map(runs, children)))
    assert code == 130
    assert "Traceback" not in log


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("flag", ["--port", "--metrics-port", "--grpc-port"])
def test_a_taken_port_is_said_in_one_line(
    bundle: Path, capsys: pytest.CaptureFixture[str], flag: str, workers: str
) -> None:
    """One line names the address that is in use and the flags, before the models are loaded."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = {"--port": 0, flag: port}
        flags = [word for name, number in ports.items() for word in (name, str(number))]
        flags += ["--workers", workers, "--model", str(bundle), "--log-format", "human"]
        assert main(["serve", *flags]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"sentiment: cannot listen on 127.0.0.1 port {port}: Address already in use; "
        "choose another with --port (--metrics-port, --grpc-port)"
    )


@pytest.mark.parametrize("flag", ["--metrics-port", "--grpc-port"])
def test_one_port_for_both_is_wrong_usage(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    """A port that is given twice is refused with exit code 2, before anything is loaded."""
    assert main(["serve", "--port", "8765", flag, "8765"]) == 2
    assert f"{flag}: give another port" in capsys.readouterr().err


def test_a_stuck_batch_cannot_hold_or_break_the_exit(start: Start) -> None:
    """When drain-ms ends, the client gets 503, the log names the cause, the exit code is 1."""
    process = start("--drain-ms", "500", command=STUCK_COMMAND)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(process.client.post, "/classify", json={"inputs": "love"})
        eventually(lambda: metric(process.client, "sentiment_http_requests_in_flight") == 2)
        process.signal(signal.SIGTERM)
        code, log = process.wait()
        assert answer.result().status_code == 503
    assert code == 1
    assert "the thread of a runner had not ended" in log
    assert "Traceback" not in log
