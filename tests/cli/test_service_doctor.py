"""``sentiment doctor --url``: what it says of a running service, and of what is none."""

import json
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sentiment_service.cli.command import main
from sentiment_service.cli.service_doctor import examine_service

from benchmarks.service import free_port
from checks.support.tls import make_certificate
from tests.conftest import Start
from tests.support.http_server import Answer, listening
from tests.support.raw_http import port_of
from tests.support.serving import installed

KEY = "a-key-for-tests"
Ask = Callable[[str], tuple[int, list[str]]]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """Run the command; the exit code and the lines."""

    def run(url: str) -> tuple[int, list[str]]:
        code = main(["doctor", "--url", url])
        return code, capsys.readouterr().out.splitlines()

    return run


def _answering(answer: Callable[[str], tuple[int, dict[str, str], str]]) -> Any:
    """A server that answers a path like this; its connections end with their answers."""

    def answered(request: BaseHTTPRequestHandler, _: bytes) -> Answer:
        status, headers, body = answer(request.path)
        return status, headers, body.encode()

    return listening(answered, "HTTP/1.0")


def _checks(lines: list[str]) -> dict[str, bool]:
    """Which checks were made, and whether all was well."""
    return {line.split(":")[0].split()[1]: line.startswith("ok") for line in lines}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_service_that_is_well(
    ask: Ask, start: Start, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """Each check is a line: the model with its digest, the version, the device, that it answers."""
    monkeypatch.setenv("SENTIMENT_API_KEY", KEY)
    process = start("--api-keys", KEY, "--workers", str(workers))
    code, lines = ask(f"{process.url}/")
    checks = ["connection", "key", "ready", "version", "device", "workers", "model", "answers"]
    expected = [check for check in checks if workers > 1 or check != "workers"]
    assert (code, _checks(lines)) == (0, dict.fromkeys(expected, True))
    authorized = {"authorization": f"Bearer {KEY}"}
    (model,) = process.client.get("/models", headers=authorized).json()["models"]
    assert f"model: tiny digest {model['digest'][:12]}, revision 0123abc, in fp32;" in lines[-2]


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("", "key: one is needed; set SENTIMENT_API_KEY"),
        ("another-key", "key: the one in SENTIMENT_API_KEY is not accepted; take one of --api-"),
        ("a b", "connection: SENTIMENT_API_KEY must be printable ASCII characters without spaces"),
    ],
)
def test_a_key_that_is_missing_or_wrong(
    ask: Ask, start: Start, monkeypatch: pytest.MonkeyPatch, key: str, says: str
) -> None:
    """The line says which, and where to set it."""
    monkeypatch.setenv("SENTIMENT_API_KEY", key)
    code, lines = ask(start("--api-keys", KEY).url)
    (problem,) = (line for line in lines if line.startswith("PROBLEM"))
    assert (code, says in problem) == (1, True)


def test_a_wrong_path_or_port(ask: Ask, start: Start) -> None:
    """A route of the service, its port of metrics, that of gRPC, and TLS where there is none."""
    metrics, grpc = free_port(), free_port()
    url = start("--metrics-port", str(metrics), "--grpc-port", str(grpc)).url
    for wrong, says in {
        f"{url}/classify": f"path: the service is at {url}/, and not at its path /classify; use",
        f"{url}/v1": f"and not at its path /v1; use --url {url}/",
        f"http://127.0.0.1:{metrics}": "port: this port of the service has no such route; --metric",
        f"http://127.0.0.1:{grpc}": "this port does not speak HTTP/1.1; --grpc-port is for gRPC",
        url.replace("http:", "https:"): "TLS: cannot reach",
        f"http://127.0.0.1:{free_port()}": "nothing listens there: start the service, or correct",
        "http://sentiment.invalid": "correct the host's name",
        "http://[::1": "connection: the URL is not valid",
        "": "connection: the URL must begin with http:// or https://",
    }.items():
        code, (line,) = ask(wrong)
        assert (code, line.startswith("PROBLEM"), says in line) == (1, True, True), line


def test_a_certificate(
    ask: Ask, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is not trusted, another name, no TLS asked; and how long a good one is valid."""
    certificate, key = make_certificate(tmp_path, "one", installed("openssl", "openssl"))
    flags = ("--tls-cert", str(certificate), "--tls-key", str(key))
    port, other = (port_of(start(*flags, "--host", f"127.0.0.{n}").url) for n in (1, 2))
    untrusted = ask(f"https://127.0.0.1:{port}")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    for (code, (line,)), says in (
        (untrusted, "let SSL_CERT_FILE name the certificate of its issuer"),
        (ask(f"https://127.0.0.2:{other}"), "ask by a name that the certificate has"),
        (ask(f"http://127.0.0.1:{port}"), "if the service has TLS, use https://"),
    ):
        assert (code, says in line) == (1, True), line
    _, lines = ask(f"https://127.0.0.1:{port}")
    assert "TLS: the certificate is valid until " in lines[1]
    assert _checks(lines)["answers"]


@pytest.mark.parametrize(
    ("status", "headers", "says"),
    [
        (404, {"content-type": "text/html"}, "answers 404 (text/html)"),
        (200, {"content-type": "text/html"}, "correct host and port, or add the proxy's path"),
        (200, {}, "not as a sentiment service"),
        (401, {"www-authenticate": "Basic"}, "answers 401"),
        (502, {"content-type": "text/html"}, "a proxy does not reach the service"),
        (301, {"location": "https://a.test/health/live"}, "it redirects: use --url https://a.test"),
        (308, {"location": "/x/health/live"}, "it redirects: use --url http://127.0.0.1:"),
        (302, {"location": "https://a.test/?to=/health/live&a"}, "as for a login: use the address"),
        (302, {}, "it redirects to"),
        (200, {"content-type": "a\x1b[2J"}, "answers 200 (a?[2J)"),
    ],
)
@pytest.mark.parametrize("path", ["", "/sentiment"])
@pytest.mark.parametrize("body", ["<h1>Welcome</h1>", "", "null", '["live"]', "{}", "[" * 10**5])
def test_another_service_or_a_proxy(
    ask: Ask, status: int, headers: dict[str, str], says: str, path: str, body: str
) -> None:
    """Whatever it answers is one line with the status, and what helps."""
    with _answering(lambda _: (status, headers, body)) as url:
        code, (line,) = ask(url + path)
    assert (code, says in line) == (1, True), line


VERSION = {"name": "tiny", "revision": None, "precision": "int8"}
LISTED = {**VERSION, "labels": ["negative", "positive"]}
UNWELL = {"type": "urn:sentiment:not_ready", "code": "not_ready", "detail": "runners hang"}


def _service(**other: tuple[int, Any]) -> Callable[[str], tuple[int, dict[str, str], str]]:
    """Answers as the service of version 0.2.0 did, and with these ones by the end of the path."""
    answers = {
        "live": (200, {"status": "live"}),
        "ready": (200, {"status": "ready"}),
        "info": (200, {"version": "0.2.0", "device": "cpu", "provider": "CPUExecutionProvider"}),
        "models": (200, {"models": [LISTED]}),
        "classify": (200, {"model": VERSION, "results": []}),
        **other,
    }

    def answer(path: str) -> tuple[int, dict[str, str], str]:
        status, document = answers[path.rsplit("/", 1)[1]]
        document = document() if callable(document) else document
        return status, {"content-type": "application/json"}, json.dumps(document)

    return answer


@pytest.mark.parametrize(
    ("other", "problems"),
    [
        ({}, {}),
        (
            {"live": (503, UNWELL), "ready": (503, UNWELL)},
            {
                "live": "503 not_ready: runners hang; restart it; its log says why",
                "ready": "503 not_ready: runners hang; its log says why (docs/operations.md)",
            },
        ),
        ({"info": (503, UNWELL)}, {"service": "503 not_ready: runners hang; its log or a proxy"}),
        ({"models": (200, "sorry")}, {"service": "200 : no detail; its log or a proxy in between"}),
        (
            {"info": (502, {"code": "bad", "detail": "bad\n  gateway"})},
            {"service": "502 bad: bad gateway; its log or a proxy in between says why"},
        ),
        ({"models": (200, {"models": None})}, {"service": "it answers in another form"}),
        ({"models": (200, {"models": [{"name": "tiny"}]})}, {"service": "it answers in another"}),
        ({"info": (200, {"version": "1", "workers": [1, 2]})}, {"service": "it answers in"}),
        ({"classify": (200, {"model": "tiny"})}, {"service": "it answers in another form"}),
        ({"info": (502, {"detail": "\x1b[2J" * 200})}, {"service": "502 : ?[2J"}),
        ({"classify": (429, UNWELL)}, {"answers": "429 not_ready: runners hang; docs/api.md"}),
        (
            {
                "info": (
                    200,
                    {
                        "version": "9.9.9",
                        "workers": [
                            {"stage": "ready", "restarts": 2},
                            {"stage": "starting", "restarts": 1},
                        ],
                    },
                )
            },
            {"workers": "1 ready, 1 starting; 3 were replaced; its log says why"},
        ),
    ],
)
def test_a_service_that_is_not_well_or_older(
    ask: Ask, other: dict[str, Any], problems: dict[str, str]
) -> None:
    """Each problem is a line; one of version 0.2.0 has none, though it does not say a digest."""
    with _answering(_service(**other)) as url:
        code, lines = ask(url)
    found = dict(line[9:].split(": ", 1) for line in lines if line.startswith("PROBLEM"))
    assert (code, found.keys()) == (int(bool(problems)), problems.keys())
    assert all(found[check].startswith(said) for check, said in problems.items()), found


def test_replicas_of_two_models(ask: Ask) -> None:
    """Behind one address, answers are of the one or of the other: the line has both digests."""
    numbers = count()

    def classify() -> Any:
        return {"model": VERSION | {"digest": f"{next(numbers) % 2}" * 64}, "results": []}

    with _answering(_service(classify=(200, classify))) as url:
        code, lines = ask(url)
    found, _, cure = lines[-1].partition("; ")
    assert (code, found[:17]) == (1, "PROBLEM  answers:")
    assert "4 of tiny digest 000000000000 in int8, 4 of tiny digest 111111111111 in int8" in found
    assert cure.startswith("replicas serve different models")


@pytest.mark.parametrize("begins", ["", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\n\r\n"])
@pytest.mark.parametrize("goes_on", [" ", "HTTP/1.1 100 Continue\r\n\r\n", "a: b\r\n"])
def test_an_answer_that_does_not_end(begins: str, goes_on: str) -> None:
    """The time is that of the whole answer, and not of each of its parts."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        listener.settimeout(30)  # the client may give up before it connects

        def answer() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.sendall(begins.encode())
                for _ in range(600):
                    connection.sendall(goes_on.encode())
                    time.sleep(0.1)

        with ThreadPoolExecutor(1) as pool:
            pool.submit(answer)
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            (found,) = examine_service(url, None, timeout_s=0.35)
    assert found.check == "connection"
    assert "timed out; a firewall" in found.line() or "cannot reach" in found.line()


def test_no_model_is_loaded_here(capsys: pytest.CaptureFixture[str]) -> None:
    """What this machine would serve has nothing to do with a service elsewhere."""
    assert main(["doctor", "--url", "http://127.0.0.1:1", "--model", "x"]) == 2
    assert main(["doctor", "--url", "ftp://127.0.0.1"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert "--url cannot be combined with --model; the service decides" in lines[0]
    assert "--url must begin with http:// or https://" in lines[1]
