"""One connection: pipelining, early refusals, half-closed clients and invalid requests."""

import asyncio
import json
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, cast

import httpx2
import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.config.settings import Settings
from app.main import create_app
from app.server import http_protocol, run
from app.server.http_protocol import HttpProtocol
from app.server.transport import ResponseTransport
from tests.api.routes.test_stream import FLAGS
from tests.conftest import SET_BY_HAND
from tests.support.serving import Gate, Process, exchange, listening, metric, read_answer

HEALTH = b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n"
HEAD = b"POST /classify HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
BODY = b'{"inputs": "love"}'
REQUEST = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
CLOSING = REQUEST.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")


@pytest.fixture(scope="module")
def process(bundle: Path) -> Iterator[Process]:
    """A real server."""
    with Process("--model", str(bundle), *FLAGS, "--api-keys", "a-key-of-a-client") as process:
        yield process


@pytest.fixture(scope="module")
def open_process(bundle: Path) -> Iterator[Process]:
    """A real server without keys, which logs the requests that it refuses."""
    with Process("--model", str(bundle), *FLAGS) as process:
        yield process


def _connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def _memory_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) / 1024


def _statuses(answers: bytes) -> list[bytes]:
    return re.findall(rb"HTTP/1.1 (\d+)", answers)


def test_what_is_overridden_of_uvicorn_is_listed() -> None:
    """The list beside each class is complete, so an upgrade of uvicorn is checked against it."""
    for ours, of_uvicorn, listed in (
        (HttpProtocol, HttpToolsProtocol, http_protocol.OVERRIDDEN),
        (run.Server, uvicorn.Server, run.OVERRIDDEN),
    ):
        names = {name for name in vars(of_uvicorn) if not name.startswith("__")}
        differs = sorted((names & set(vars(ours))) ^ set(listed))
        assert not differs, (
            f"uvicorn {uvicorn.__version__} changed {of_uvicorn.__name__}, or OVERRIDDEN in "
            f"{ours.__module__} is wrong; compare: {', '.join(differs)}"
        )


def test_clients_that_pipeline_and_do_not_read_take_no_memory(open_process: Process) -> None:
    """The server answers pipelined requests one by one and stops reading; others are served."""
    exchange(open_process.port, CLOSING)
    before = _memory_mb(open_process.pid)
    clients = [_connect(open_process.port) for _ in range(12)]
    try:
        for client in clients:
            client.setblocking(False)
        left = dict.fromkeys(clients, HEALTH * 6000)
        for _ in range(20):
            for client, data in left.items():
                with suppress(BlockingIOError):
                    left[client] = data[client.send(data) :]
            time.sleep(0.05)
        assert exchange(open_process.port, CLOSING).startswith(b"HTTP/1.1 200 ")
        assert _memory_mb(open_process.pid) - before < 30
    finally:
        for client in clients:
            client.close()


def test_pipelined_requests_have_all_their_answers(open_process: Process) -> None:
    """Pipelined requests are all answered, in order, however they are split into packets."""
    with _connect(open_process.port) as client:
        sent = (HEALTH + REQUEST) * 200 + CLOSING
        sender = threading.Thread(target=client.sendall, args=(sent,))
        sender.start()
        answers = b""
        while chunk := client.recv(65536):
            answers += chunk
        sender.join()
    assert answers.count(b'"status":"live"') == 200
    assert answers.count(b'"label":"positive"') == 201


@pytest.mark.parametrize(
    ("second", "status"),
    [
        pytest.param(b"nonsense \x00\r\n\r\n", b"400", id="garbage"),
        pytest.param(HEALTH[:-2] + b"x: " + b"a" * 40_000 + b"\r\n\r\n", b"431", id="a large head"),
        pytest.param(HEALTH.replace(b"host", b"xost"), b"400", id="no host"),
    ],
)
def test_a_refusal_waits_for_the_answer_before_it(
    open_process: Process, second: bytes, status: bytes
) -> None:
    """Answers come in the order of the requests, even if the second request is invalid."""
    assert _statuses(exchange(open_process.port, REQUEST + second)) == [b"200", status]


def test_a_second_offer_to_upgrade_keeps_its_body(open_process: Process) -> None:
    """A request keeps its body after an upgrade offer, also as the second request of a packet."""
    offer = b"connection: upgrade\r\nupgrade: h2c\r\n"
    upgrading = CLOSING.replace(b"host: x\r\n", b"host: x\r\n" + offer)
    answers = exchange(open_process.port, REQUEST + upgrading)
    assert answers.count(b'"label":"positive"') == 2


def test_what_follows_a_body_in_chunks_is_left(open_process: Process) -> None:
    """A request behind a chunked body is not answered; the connection closes instead."""
    chunked = HEAD + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    assert _statuses(exchange(open_process.port, chunked + REQUEST)) == [b"200"]


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"GET /health/live HTTP/1.1\r\n\r\n", "exactly one Host"),
        (b"GET /health/live HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n", "exactly one Host"),
        (b"GET /health/live HTTP/1.0\r\nhost: x\r\nhost: y\r\n\r\n", "exactly one Host"),
        (b"GET /health/live HTTP/1.1\nhost: x\n\n", "CR LF"),
        (b"GET /health/live\n", "CR LF"),
    ],
)
def test_heads_that_are_none_are_refused_at_once(
    open_process: Process, head: bytes, reason: str
) -> None:
    """No Host header, two of them, or a bare line feed at a line's end: 400 at once."""
    with _connect(open_process.port) as client:
        client.settimeout(10)  # a head may take 20 s
        client.sendall(head)
        status, body = read_answer(client)
    assert status == 400
    assert reason in json.loads(body)["detail"]


@pytest.mark.parametrize("behind", [b"", REQUEST], ids=["first", "second"])
@pytest.mark.parametrize("line", [b"POST http://x:99999/", b"GET http://x:99999/", b"CONNECT x:1"])
def test_targets_that_are_none_are_refused(
    open_process: Process, line: bytes, behind: bytes
) -> None:
    """An invalid target gets 400, as the first or a later request; the server goes on."""
    head = line + b" HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
    statuses = _statuses(exchange(open_process.port, behind + head))
    assert statuses == [*([b"200"] if behind else []), b"400"]
    assert _statuses(exchange(open_process.port, CLOSING)) == [b"200"]


def test_an_end_of_a_line_may_come_between_requests(open_process: Process) -> None:
    """Blank lines between two requests are accepted, also when they are split into two packets."""
    with _connect(open_process.port) as client:
        client.sendall(b"\r")
        time.sleep(0.1)
        client.sendall(b"\n" + CLOSING)
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_http_1_0_needs_no_host(open_process: Process) -> None:
    """HTTP/1.0 has no Host header, so a request without it is answered."""
    answer = exchange(open_process.port, b"GET /health/live HTTP/1.0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")


def test_refusals_of_what_is_no_request_are_counted(open_process: Process) -> None:
    """Invalid requests are counted as 400 and 431, in series that exist from the start."""
    series = {"route": "unmatched", "method": "other"}
    with httpx2.Client(base_url=open_process.url) as client:

        def counts() -> list[float]:
            name = "sentiment_http_requests_total"
            return [metric(client, name, status=status, **series) for status in ("400", "431")]

        before = counts()
        exchange(open_process.port, b"\x00")
        exchange(open_process.port, b"GET /" + b"a" * 40_000)
        assert counts() == [before[0] + 1, before[1] + 1]


def test_a_refusal_is_logged(bundle: Path) -> None:
    """The log line has a request id, the client and the fault, but nothing of what was sent."""
    with Process("--model", str(bundle), *FLAGS, "--access-log", "on") as process:
        answer = exchange(process.port, b"secret words\n")
        process.read_until(json.loads(answer.partition(b"\r\n\r\n")[2])["request_id"])


@pytest.mark.parametrize("megabytes", [3, 50])
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("key", [True, False])
def test_an_early_refusal_is_seen_by_clients_that_send_all_first(
    process: Process, megabytes: int, version: bytes, key: bool
) -> None:
    """Clients of HTTP/1.0 or with Connection: close receive 413 and 401, without a reset."""
    size = megabytes * 1_000_000
    authorization = b"authorization: Bearer a-key-of-a-client\r\n" if key else b""
    head = HEAD.replace(b"1.1", version) + authorization + b"connection: close\r\n"
    answer = exchange(process.port, head + b"content-length: %d\r\n\r\n" % size, b"a" * size)
    assert _statuses(answer) == [b"413" if key else b"401"]


def test_urllib_sees_why_its_upload_was_refused(process: Process) -> None:
    """urllib closes each connection and sends its whole body before it reads; it sees the error."""
    for _ in range(5):
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(f"{process.url}/classify", data=b"a" * 8_000_000)  # noqa: S310
        assert error.value.code == 401
        error.value.close()


def test_a_refused_body_does_not_cost_the_connection(process: Process) -> None:
    """After a refused body, a client can send its next request on the same connection."""
    with _connect(process.port) as client:
        client.sendall(HEAD + b"content-length: 3000000\r\n\r\n" + b"a" * 3_000_000)
        assert read_answer(client)[0] == 401
        client.sendall(HEALTH)
        assert read_answer(client)[0] == 200


def test_a_refused_body_is_not_read_for_ever(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server stops reading a refused body at the limit of bytes, or after some silence."""
    monkeypatch.setattr("app.server.transport.LINGER_BYTES", 5_000_000)
    monkeypatch.setattr("app.server.transport.SILENCE_S", 0.2)
    app = create_app(Settings.model_validate({"model": (bundle,), **SET_BY_HAND}))
    head = HEAD + b"connection: close\r\ncontent-length: 999000000\r\n\r\n"
    with listening(app) as url:
        port = int(url.rpartition(":")[2])
        with _connect(port) as client, pytest.raises(ConnectionError):
            client.sendall(head + b"a" * 100_000_000)
        with _connect(port) as client:
            client.sendall(head)
            answer = b""
            while chunk := client.recv(65536):
                answer += chunk
            assert _statuses(answer) == [b"413"]
            time.sleep(0.5)
            client.sendall(b"a")  # which is answered by a reset
            time.sleep(0.1)
            with pytest.raises(ConnectionError):
                client.sendall(b"a")


def test_a_client_that_ends_its_side_has_its_answer(open_process: Process) -> None:
    """A client that ends its sending side, as `nc -N` does, still receives its answer."""
    for request in (REQUEST, HEALTH):
        with _connect(open_process.port) as client:
            client.sendall(request)
            client.shutdown(socket.SHUT_WR)
            answer = b""
            while chunk := client.recv(65536):
                answer += chunk
        assert _statuses(answer) == [b"200"]


def test_a_client_that_reads_nothing_is_cut_off(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that does not read is cut off after a while, when the write buffer is full."""
    monkeypatch.setattr("app.server.http_protocol.SEND_TIMEOUT_S", 0.2)
    app = create_app(Settings.model_validate({"model": (bundle,), **SET_BY_HAND}))
    with listening(app) as url, _connect(int(url.rpartition(":")[2])) as client:
        client.sendall(b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n" * 200)
        time.sleep(1)
        with httpx2.Client(base_url=url) as other:
            assert metric(other, "sentiment_http_requests_in_flight") == 1
        received = b""
        with suppress(ConnectionError):
            while chunk := client.recv(65536):
                received += chunk
    assert len(_statuses(received)) < 200


def test_head_and_body_of_an_answer_leave_together() -> None:
    """A write waits for the next one, at most until the loop's next turn or the close."""

    class Recorder:
        written: ClassVar[list[bytes]] = []

        def write(self, data: bytes) -> None:
            self.written.append(data)

        def is_closing(self) -> bool:
            return False

        def close(self) -> None:
            self.written.append(b"closed")

    async def run() -> list[bytes]:
        transport = ResponseTransport(cast(asyncio.Transport, Recorder()), lambda: False)
        for data in (b"head ", b"body", b"alone"):
            transport.write(data)
        await asyncio.sleep(0)
        transport.write(b"last")
        transport.close()
        await asyncio.sleep(0)
        return Recorder.written

    assert asyncio.run(run()) == [b"head body", b"alone", b"last", b"closed"]


def test_a_begun_head_does_not_cut_the_answer_before_it(
    bundle: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timeout of the next head begins only when the answer before it is complete."""
    monkeypatch.setattr("app.server.http_protocol.HEAD_TIMEOUT_S", 0.3)
    app = create_app(Settings.model_validate({"model": (bundle,), **SET_BY_HAND}))
    with listening(app) as url, _connect(int(url.rpartition(":")[2])) as client:
        gate.close()
        client.sendall(REQUEST)
        assert gate.reached.wait(30)
        client.sendall(HEALTH[:9])
        time.sleep(0.6)
        gate.open.set()
        assert read_answer(client)[0] == 200
        client.sendall(HEALTH[9:])
        assert read_answer(client)[0] == 200
