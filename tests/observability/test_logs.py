"""The log: what it says about a request, and what it must never contain."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.api.test_stream import FLAGS
from tests.support.serving import COMMAND, ROOT, Process, environment, exchange

TEXT = "xyzzy-plugh"
TRACE = "0af7651916cd43dd8448eb211c80319c"


def _lines(log: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.splitlines()]


def _served(bundle: Path, *flags: str) -> Process:
    return Process("--model", str(bundle), *FLAGS, "--access-log", "on", *flags)


def test_a_request_is_a_line_with_its_stages(bundle: Path) -> None:
    """Id, trace, route, status and the time of each stage are separate fields."""
    with _served(bundle) as process:
        headers = {"x-request-id": "find-me", "traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
        httpx2.post(f"{process.url}/classify", json={"inputs": "love"}, headers=headers)
        httpx2.get(f"{process.url}/v2/models/nowhere")
        process.signal(signal.SIGTERM)
        _, log = process.wait()
    first, second = (line for line in _lines(log) if line["logger"] == "access")
    assert (first["request_id"], first["trace_id"]) == ("find-me", TRACE)
    assert (first["method"], first["route"], first["status"]) == ("POST", "/classify", 200)
    stages = ("tokenize_ms", "queue_ms", "inference_ms")
    assert sum(first[stage] for stage in stages) <= first["duration_ms"]
    assert (second["route"], second["status"]) == ("/v2/models/{name}", 404)
    assert "trace_id" not in second
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["time"])


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "garbage",
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-{TRACE.upper()}-b7ad6b7169203331-01",
    ],
)
def test_an_odd_traceparent_is_no_trace(bundle: Path, parent: str) -> None:
    """An invalid header is ignored, as the specification requires."""
    with _served(bundle) as process:
        httpx2.get(f"{process.url}/health", headers={"traceparent": parent})
        process.signal(signal.SIGTERM)
        _, log = process.wait()
    (line,) = (line for line in _lines(log) if line["logger"] == "access")
    assert "trace_id" not in line


def test_no_text_of_a_user_gets_into_the_log(bundle: Path) -> None:
    """No text is logged, whether it is classified, refused, sent in a wrong place or fails."""
    with _served(bundle, "--log-level", "debug") as process:
        url = process.url
        for inputs in (TEXT, [TEXT, ""], f"{TEXT}\0", f"{TEXT} nan", f"{TEXT} " * 20):
            httpx2.post(f"{url}/classify", json={"inputs": inputs})
            httpx2.post(f"{url}/explain", json={"inputs": inputs})
            httpx2.post(f"{url}/predict", json={"inputs": inputs, "truncate": False})
            httpx2.post(url, json={"inputs": inputs, TEXT: TEXT})
            httpx2.post(f"{url}/v1/classify", json={"input": inputs, "model": TEXT})
        content = json.dumps({"id": TEXT, "text": TEXT}) + f"\n{TEXT}\n"
        headers = {"content-type": "application/x-ndjson"}
        httpx2.post(f"{url}/classify/stream", content=content, headers=headers)
        httpx2.get(f"{url}/{TEXT}?text={TEXT}", headers={"x-text": TEXT})
        httpx2.post(f"{url}/classify", content=TEXT, headers={"content-type": TEXT})
        exchange(process.port, f"{TEXT}\r\n\r\n".encode())
        process.signal(signal.SIGTERM)
        _, log = process.wait()
    assert len([line for line in _lines(log) if line["logger"] == "access"]) >= 28
    assert TEXT not in log


def test_every_line_has_one_form(bundle: Path) -> None:
    """uvicorn's lines have the same fields as ours."""
    with _served(bundle) as process:
        with socket.create_connection(("127.0.0.1", process.port)) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\n")
            connection.sendall(b"connection: upgrade\r\n\r\n")
            connection.recv(100)
        process.signal(signal.SIGTERM)
        _, log = process.wait()
    started = _lines(process.first_lines)
    assert started[-1]["message"].startswith("serving tiny")
    for line in started + _lines(log):
        assert {"time", "level", "logger", "message"} <= set(line)


def test_the_access_log_can_be_switched_off(bundle: Path) -> None:
    """The other lines are still logged."""
    with _served(bundle, "--access-log", "off") as process:
        httpx2.get(f"{process.url}/health")
        process.signal(signal.SIGTERM)
        _, log = process.wait()
    assert [line["message"] for line in _lines(log)] == ["shutting down", "stopped"]


def test_a_terminal_gets_words(bundle: Path) -> None:
    """At a terminal, a line is text for people, not JSON."""
    terminal, inside = pty.openpty()
    command = [*COMMAND, "serve", "--port", "0", "--model", str(bundle), *FLAGS]
    with subprocess.Popen(command, cwd=ROOT, env=environment(), stderr=inside) as process:
        os.close(inside)
        with os.fdopen(terminal, encoding="utf-8") as lines:
            while "serving tiny" not in (line := lines.readline()):
                assert line
        process.send_signal(signal.SIGTERM)
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO serving tiny", line)
