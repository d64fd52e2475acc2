"""The log: what it says about a request, and what it must never contain."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.cli.command import main
from benchmarks.service import free_port
from tests.api.routes.test_stream import HEAD
from tests.conftest import FLAGS
from tests.support.serving import (
    COMMAND,
    ROOT,
    Process,
    connect,
    environment,
    eventually,
    exchange,
    metric,
)

TEXT = "xyzzy-plugh"
TRACE = "0af7651916cd43dd8448eb211c80319c"


def _lines(log: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.splitlines()]


def _served(bundle: Path, *flags: str, variables: Mapping[str, str] | None = None) -> Process:
    flags = ("--model", str(bundle), *FLAGS, "--access-log", "on", *flags)
    return Process(*flags, variables=variables)


def test_a_request_is_a_line_with_its_stages(bundle: Path) -> None:
    """Id, trace, route, status, the code of a problem, model, texts, tokens and stages are fields.

    A text without a result has no tokens. Each line of a stream is a text.
    """
    with _served(bundle) as process:
        headers = {"x-request-id": "find-me", "traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
        httpx2.post(f"{process.url}/classify", json={"inputs": "love"}, headers=headers)
        httpx2.get(f"{process.url}/v2/models/nowhere")
        batch = {"inputs": ["love", "", "love it"], "model": "tiny"}
        answer = httpx2.post(f"{process.url}/classify", json=batch).json()
        httpx2.post(f"{process.url}/classify", json={"inputs": ""})
        lines = '{"text": "love"}\n\n{"text": ""}\n'
        headers = {"content-type": "application/x-ndjson"}
        httpx2.post(f"{process.url}/classify/stream", content=lines, headers=headers)
        httpx2.post(f"{process.url}/tokenize", json={"inputs": "love"})
        log = process.terminate()
    accesses = [line for line in _lines(log) if line["logger"] == "access"]
    first, second, listed, refused, streamed, tokenized = accesses
    assert (first["request_id"], first["trace_id"]) == ("find-me", TRACE)
    assert (first["method"], first["route"], first["status"]) == ("POST", "/classify", 200)
    stages = ("tokenize_ms", "queue_ms", "inference_ms")
    assert sum(first[stage] for stage in stages) <= first["duration_ms"]
    assert (second["route"], second["status"]) == ("/v2/models/{name}", 404)
    assert "trace_id" not in second
    assert second["code"] == "model_not_found"
    assert "model" not in second
    tokens = [result.get("tokens", 0) for result in answer["results"]]
    work = [(line["model"], line["texts"], line["tokens"]) for line in accesses if line != second]
    one = ("tiny", 1, tokens[0])
    assert work == [one, ("tiny", 3, sum(tokens)), ("tiny", 1, 0), ("tiny", 2, tokens[0]), one]
    assert (refused["code"], refused["status"]) == ("empty_text", 422)
    assert "code" not in listed
    assert (streamed["route"], tokenized["route"]) == ("/classify/stream", "/tokenize")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["time"])


def test_a_stream_that_ends_early_has_a_code(bundle: Path) -> None:
    """The status is sent before a stream can fail; the code of its last line is a field.

    So is the code of a client that leaves before its answers.
    """
    with _served(bundle, "--max-body-bytes", "4096") as process:
        headers = {"content-type": "application/x-ndjson", "content-encoding": "gzip"}
        url = f"{process.url}/classify/stream"
        answer = httpx2.post(url, content=b"no gzip", headers=headers)
        with connect(process.port, HEAD) as leaving:
            leaving.recv(100)  # the answer has begun
        with httpx2.Client(base_url=process.url) as client:  # its own request is in flight
            eventually(lambda: metric(client, "sentiment_http_requests_in_flight") == 1)
        log = process.terminate()
    code = json.loads(answer.text.splitlines()[-1])["error"]["code"]
    accesses = [line for line in _lines(log) if line["logger"] == "access"]
    ends = [(line["route"], line["status"], line["code"]) for line in accesses]
    assert ends == [
        ("/classify/stream", 200, code),
        ("/classify/stream", 200, "client_disconnected"),
    ]


def test_an_odd_traceparent_is_no_trace(bundle: Path) -> None:
    """An invalid header is ignored, as the specification requires."""
    zeros, capitals = (
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-{TRACE.upper()}-b7ad6b7169203331-01",
    )
    with _served(bundle) as process:
        for parent in ("", "garbage", zeros, capitals):
            httpx2.get(f"{process.url}/models", headers={"traceparent": parent})
        log = process.terminate()
    accesses = [line for line in _lines(log) if line["logger"] == "access"]
    assert ["trace_id" in line for line in accesses] == [False] * 4


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
        upgrade = b"GET / HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"
        with connect(process.port, upgrade) as connection:
            connection.recv(100)
        log = process.terminate()
    started = _lines(process.first_lines)
    assert started[-1]["message"].startswith("serving tiny")
    for line in started + _lines(log):
        assert {"time", "level", "logger", "message"} <= set(line)


def test_what_machines_ask_all_the_time_is_logged_at_debug(bundle: Path) -> None:
    """At the level info, health, metrics and files of the page have no line, unless they fail.

    Health includes the route that Vertex AI chooses.
    """
    variables = {"AIP_HEALTH_ROUTE": "/v1/endpoints/1"}
    with _served(bundle, variables=variables) as process:
        probes = ("/health", "/health/live", "/v2/health/ready", *variables.values())
        for path in (*probes, "/metrics", "/web/page.js"):
            assert httpx2.get(f"{process.url}{path}").status_code == 200, path
        httpx2.get(f"{process.url}/web/nothing.js")
        httpx2.get(f"{process.url}/info")
        log = process.terminate()
    lines = [line for line in _lines(log) if line["logger"] == "access"]
    asked = [(line["level"], line["route"], line["status"]) for line in lines]
    assert asked == [("info", "/web/{name}", 404), ("info", "/info", 200)]


@pytest.mark.parametrize("flags", [("--threads", "all"), ("--model", "/nowhere")])
def test_a_failed_start_is_a_line_of_the_log(
    flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """In the format json, it is one JSON object; for people, it is one line of text."""
    assert main(["serve", *flags, "--log-format", "json"]) in (1, 2)
    (line,) = _lines(capsys.readouterr().err)
    assert (line["level"], line["logger"]) == ("critical", "app.cli.command")
    assert main(["serve", *flags, "--log-format", "human"]) in (1, 2)
    assert capsys.readouterr().err == f"sentiment: {line['message']}\n"


def test_an_unexpected_failure_is_a_line_of_the_log() -> None:
    """A fault of the service ends it with exit code 1; its traceback is in the line."""
    code = (
        "import sys; from app import main; from app.cli import command; "
        "main.create_app = lambda *_: 1 / 0; "
        "sys.exit(command.main(['serve', '--port', '0']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True
    )
    line = _lines(done.stderr)[-1]
    assert (done.returncode, line["level"]) == (1, "critical")
    assert "ZeroDivisionError" in line["exception"]


@pytest.mark.parametrize("docs", ["on", "off"])
def test_the_start_says_where_to_look(bundle: Path, docs: str) -> None:
    """The first line that names the address also has the page, the docs if any, and the metrics."""
    port = free_port()
    with _served(bundle, "--docs", docs, "--metrics-port", str(port)) as process:
        line = _lines(process.first_lines)[-1]
        assert line["message"].endswith(f" at {process.url}")
        assert line["page"] == f"{process.url}/"
        assert line.get("docs") == (f"{process.url}/docs" if docs == "on" else None)
        for page in (line["page"], line["metrics"], *([line["docs"]] if docs == "on" else [])):
            assert httpx2.get(page).status_code == 200


def test_the_access_log_can_be_switched_off(bundle: Path) -> None:
    """The other lines are still logged."""
    with _served(bundle, "--access-log", "off") as process:
        httpx2.get(f"{process.url}/health")
        log = process.terminate()
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
