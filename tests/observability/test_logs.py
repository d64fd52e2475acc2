"""The log: what it says about a request, and what it must never contain."""

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from sentiment_service.cli.command import main

from benchmarks.service import free_port
from tests.conftest import FLAGS, Start
from tests.support.raw_http import connect, exchange
from tests.support.serving import (
    COMMAND,
    ROOT,
    SLOW_COMMAND,
    Process,
    Program,
    environment,
    eventually,
    metric,
    run_program,
    terminal,
)
from tests.support.streams import NDJSON, STREAM_HEAD

TEXT = "xyzzy-plugh"
TRACE = "0af7651916cd43dd8448eb211c80319c"
NO_TRACES = ["0" * 32, TRACE.upper()]


def _lines(log: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.splitlines()]


def _accesses(log: str) -> list[dict[str, Any]]:
    """The lines of requests."""
    return [line for line in _lines(log) if line["logger"] == "access"]


def _logging(start: Start, *flags: str, **options: Any) -> Process:
    return start("--access-log", "on", *flags, **options)


def test_a_request_is_a_line_with_its_stages(start: Start) -> None:
    """Id, trace, route, status, the code of a problem, model, texts, tokens and stages are fields.

    A text without a result has no tokens. Each line of a stream is a text; a stream has no stages,
    because those of its groups overlap. A traceparent that the specification does not allow is no
    trace.
    """
    process = _logging(start)
    post = process.client.post
    headers = {"x-request-id": "find-me", "traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
    post("/classify", json={"inputs": "love"}, headers=headers)
    process.client.get("/v2/models/nowhere")
    batch = {"inputs": ["love", "", "love it"], "model": "tiny"}
    answer = post("/classify", json=batch).json()
    post("/classify", json={"inputs": ""})
    post("/classify/stream", content='{"text": "love"}\n\n{"text": ""}\n', headers=NDJSON)
    post("/tokenize", json={"inputs": "love"})
    for trace in ("", "garbage", *(f"00-{one}-b7ad6b7169203331-01" for one in NO_TRACES)):
        process.client.get("/models", headers={"traceparent": trace})
    accesses = _accesses(process.terminate())
    first, second, listed, refused, streamed, tokenized, *odd = accesses
    assert (first["request_id"], first["trace_id"]) == ("find-me", TRACE)
    assert (first["method"], first["route"], first["status"]) == ("POST", "/classify", 200)
    stages = ("tokenize_ms", "queue_ms", "inference_ms")
    assert sum(first[stage] for stage in stages) <= first["duration_ms"]
    assert not streamed.keys() & {*stages}
    assert (second["route"], second["status"]) == ("/v2/models/{name}", 404)
    assert second["code"] == "model_not_found"
    assert "model" not in second
    tokens = [result.get("tokens", 0) for result in answer["results"]]
    texts = (first, listed, refused, streamed, tokenized)
    one = ("tiny", 1, tokens[0])
    assert [(line["model"], line["texts"], line["tokens"]) for line in texts] == [
        *(one, ("tiny", 3, sum(tokens)), ("tiny", 1, 0), ("tiny", 2, tokens[0]), one)
    ]
    assert (refused["code"], refused["status"]) == ("empty_text", 422)
    assert "code" not in listed
    assert (streamed["route"], tokenized["route"]) == ("/classify/stream", "/tokenize")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["time"])
    assert ["trace_id" in line for line in (second, *odd)] == [False] * 5


def test_the_stages_of_groups_add_up(start: Start) -> None:
    """A request whose records are classified in groups, one after another, has the time of all."""
    process = _logging(start, "--max-queue-tokens", "256", command=SLOW_COMMAND)
    lines, headers = "love\n" * 24, {"content-type": "text/csv"}
    assert process.client.post("/invocations", content=lines, headers=headers).status_code == 200
    (line,) = _accesses(process.terminate())
    assert 150 <= line["inference_ms"] <= line["duration_ms"]


def test_a_stream_that_ends_early_has_a_code(start: Start) -> None:
    """The status is sent before a stream can fail; the code of its last line is a field.

    So is the code of a client that leaves before its answers.
    """
    process = _logging(start, "--max-body-bytes", "4096")
    headers = NDJSON | {"content-encoding": "gzip"}
    answer = process.client.post("/classify/stream", content=b"no gzip", headers=headers)
    with connect(process.port, STREAM_HEAD) as leaving:
        leaving.recv(100)  # the answer has begun
    # The scrape's own request is in flight.
    eventually(lambda: metric(process.client, "sentiment_http_requests_in_flight") == 1)
    code = json.loads(answer.text.splitlines()[-1])["error"]["code"]
    accesses = _accesses(process.terminate())
    ends = [(line["route"], line["status"], line["code"]) for line in accesses]
    assert ends == [
        ("/classify/stream", 200, code),
        ("/classify/stream", 200, "client_disconnected"),
    ]


def test_no_text_of_a_user_gets_into_the_log(start: Start) -> None:
    """No text is logged, whether it is classified, refused, sent in a wrong place or fails."""
    process = _logging(start, "--log-level", "debug")
    post = process.client.post
    for inputs in (TEXT, [TEXT, ""], f"{TEXT}\0", f"{TEXT} nan", f"{TEXT} " * 20):
        post("/classify", json={"inputs": inputs})
        post("/explain", json={"inputs": inputs})
        post("/predict", json={"inputs": inputs, "truncate": False})
        post("/", json={"inputs": inputs, TEXT: TEXT})
        post("/v1/classify", json={"input": inputs, "model": TEXT})
    content = json.dumps({"id": TEXT, "text": TEXT}) + f"\n{TEXT}\n"
    post("/classify/stream", content=content, headers=NDJSON)
    process.client.get(f"/{TEXT}?text={TEXT}", headers={"x-text": TEXT})
    post("/classify", content=TEXT, headers={"content-type": TEXT})
    exchange(process.port, f"{TEXT}\r\n\r\n".encode())
    process.signal(signal.SIGTERM)
    _, log = process.wait()
    assert len(_accesses(log)) >= 28
    assert TEXT not in log


def test_every_line_has_one_form(start: Start) -> None:
    """uvicorn's lines have the same fields as ours."""
    process = _logging(start)
    upgrade = b"GET / HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"
    with connect(process.port, upgrade) as connection:
        connection.recv(100)
    started = _lines(process.first_lines)
    assert started[-1]["message"].startswith("serving tiny")
    for line in started + _lines(process.terminate()):
        assert {"time", "level", "logger", "message"} <= set(line)


def test_what_machines_ask_all_the_time_is_logged_at_debug(start: Start) -> None:
    """At the level info, health, metrics and files of the page have no line, unless they fail.

    Health includes the route that Vertex AI chooses.
    """
    process = _logging(start, variables={"AIP_HEALTH_ROUTE": "/v1/endpoints/1"})
    probes = ("/health", "/health/live", "/v2/health/ready", "/v1/endpoints/1")
    for path in (*probes, "/metrics", "/web/page.js"):
        assert process.client.get(path).status_code == 200, path
    process.client.get("/web/nothing.js")
    process.client.get("/info")
    lines = _accesses(process.terminate())
    asked = [(line["level"], line["route"], line["status"]) for line in lines]
    assert asked == [("info", "/web/{name}", 404), ("info", "/info", 200)]


@pytest.mark.parametrize("flags", [("--threads", "all"), ("--model", "/nowhere")])
def test_a_failed_start_is_a_line_of_the_log(
    flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """In the format json, it is one JSON object; for people, it is one line of text."""
    assert main(["serve", *flags, "--log-format", "json"]) in (1, 2)
    (line,) = _lines(capsys.readouterr().err)
    assert (line["level"], line["logger"]) == ("critical", "sentiment_service.cli.command")
    assert main(["serve", *flags, "--log-format", "human"]) in (1, 2)
    assert capsys.readouterr().err == f"sentiment: {line['message']}\n"


def test_an_unexpected_failure_is_a_line_of_the_log() -> None:
    """A fault of the service ends it with exit code 1; its traceback is in the line."""
    code = (
        "import sys; from sentiment_service import main; "
        "from sentiment_service.cli import command; "
        "main.create_app = lambda *_, **__: 1 / 0; "
        "sys.exit(command.main(['serve', '--port', '0']))"
    )
    done = run_program(sys.executable, "-c", code)
    line = _lines(done.stderr)[-1]
    assert (done.returncode, line["level"]) == (1, "critical")
    assert "ZeroDivisionError" in line["exception"]


def test_what_asks_the_hub_logs_no_requests() -> None:
    """Its client logs each request with its address; only its warnings are of interest."""
    code = (
        "import logging; from sentiment_service.observability import logs\n"
        "logs.configure('info', 'json'); hub = logging.getLogger('httpx2')\n"
        "hub.info('HTTP Request: GET'); hub.warning('not reached'); logs.close()"
    )
    lines = _lines(run_program(sys.executable, "-c", code).stderr)
    assert [line["message"] for line in lines] == ["not reached"]


@pytest.mark.parametrize("docs", ["on", "off"])
def test_the_start_says_where_to_look(start: Start, docs: str) -> None:
    """The first line that names the address also has the page, the docs if any, and the metrics."""
    process = start("--docs", docs, "--metrics-port", str(free_port()))
    line = _lines(process.first_lines)[-1]
    assert line["message"].endswith(f" at {process.url}")
    assert line["page"] == f"{process.url}/"
    assert line.get("docs") == (f"{process.url}/docs" if docs == "on" else None)
    for name in ("page", "metrics", *(["docs"] if docs == "on" else [])):
        assert process.client.get(line[name]).status_code == 200


def test_a_terminal_gets_words(bundle: Path) -> None:
    """At a terminal, a line is text for people, not JSON."""
    outside, inside = terminal()
    command = [*COMMAND, "serve", "--port", "0", "--model", str(bundle), *FLAGS]
    with Program(command, cwd=ROOT, env=environment(), stderr=inside) as process:
        os.close(inside)
        with os.fdopen(outside, encoding="utf-8") as lines:
            while "serving tiny" not in (line := lines.readline()):
                assert line
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO serving tiny", line)
