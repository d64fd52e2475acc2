"""What arrives before a request is complete: endless heads, silence, and offers to upgrade."""

import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from email.utils import parsedate_to_datetime
from http.client import parse_headers
from io import BytesIO
from pathlib import Path

import httpx2
import pytest

from app.config.settings import Settings
from app.main import create_app
from tests.api.routes.test_stream import FLAGS
from tests.support.serving import Process, exchange, listening, metric

BODY = b'{"inputs": "love"}'
HEAD = b"POST /classify HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


@pytest.fixture(scope="module")
def process(bundle: Path) -> Iterator[Process]:
    """A real server with small limits."""
    flags = [*FLAGS, "--max-header-bytes", "2000"]
    with Process("--model", str(bundle), *flags) as process:
        yield process


def _problem(answer: bytes) -> dict[str, object]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head
    assert b"connection: close" in head
    problem: dict[str, object] = json.loads(body)
    return problem


REQUEST = HEAD + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([HEAD + b"x: " + b"a" * 3_000 + b"\r\n\r\n"], id="at once"),
        pytest.param([HEAD, b"x: " + b"a" * 1_500, b"a" * 1_500], id="one that does not end"),
        pytest.param([HEAD, *[b"x: aaaa\r\n"] * 400], id="many that do not end"),
        pytest.param([b"GET /" + b"a" * 3_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n"], id="a long path"),
        pytest.param([b"GET /" + b"a" * 3_000], id="a path that does not end"),
    ],
)
def test_a_large_head_is_refused(process: Process, parts: list[bytes]) -> None:
    """An incomplete head above the limit gets 431 as a problem; the next request works."""
    answer = exchange(process.port, *parts)
    assert answer.startswith(b"HTTP/1.1 431 ")
    problem = _problem(answer)
    assert problem["code"] == "headers_too_large"
    assert "2000 bytes" in str(problem["detail"])
    assert exchange(process.port, REQUEST).startswith(b"HTTP/1.1 200 ")


def test_a_head_within_the_limit_may_come_byte_by_byte(process: Process) -> None:
    """A head within the size limit is accepted, even if it arrives byte by byte."""
    parts = [REQUEST[n : n + 1] for n in range(len(REQUEST))]
    assert exchange(process.port, *parts).startswith(b"HTTP/1.1 200 ")


def test_what_is_not_http_is_a_problem(process: Process) -> None:
    """Bytes that are not HTTP get 400, in the form of every other error."""
    answer = exchange(process.port, b"\x16\x03\x01 garbage\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert _problem(answer)["code"] == "bad_request"


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([b"PRI * HTTP/2.0\r\n\r\n"], id="its first lines"),
        pytest.param([b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"], id="whole"),
        pytest.param([b"PRI * HTTP/2.0\r\n", b"\r\n", b"SM\r\n\r\n"], id="in pieces"),
    ],
)
def test_the_preface_of_http_2_is_refused(process: Process, parts: list[bytes]) -> None:
    """A client that begins with HTTP/2's preface gets 400 with the reason, and a close."""
    answer = exchange(process.port, *parts)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert "HTTP/2 is not supported" in str(_problem(answer)["detail"])


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(b"GET /" + b"a" * 3_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n", id="431"),
        pytest.param(b"GET /health HTTP/1.1\r\n\r\n", id="400, no host"),
        pytest.param(HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n", id="400, a bad chunk"),
    ],
)
def test_a_refusal_has_an_id_and_a_date(process: Process, request_: bytes) -> None:
    """An answer to an invalid request has x-request-id and date, as every other answer has."""
    answer = exchange(process.port, request_)
    with BytesIO(answer.partition(b"\r\n")[2]) as head:
        headers = parse_headers(head)
    assert headers["x-request-id"] == _problem(answer)["request_id"]
    assert parsedate_to_datetime(headers["date"])


def test_white_space_around_a_header_s_value_is_not_part_of_it(process: Process) -> None:
    """Spaces and tabs before and behind a value are ignored (RFC 9110, section 5.5)."""
    odd = b"x-request-id:\t own \t\r\nx-request-timeout-ms: 5000 \t\r\nconnection:"
    answer = exchange(process.port, REQUEST.replace(b"connection:", odd))
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"\r\nx-request-id: own\r\n" in answer


@pytest.mark.parametrize(("version", "statuses"), [(b"1.0", [b"200"]), (b"1.1", [b"100", b"200"])])
def test_only_clients_of_http_1_1_get_100(
    process: Process, version: bytes, statuses: list[bytes]
) -> None:
    """A client of HTTP/1.0 does not know 100, so its Expect is ignored."""
    head, _, body = REQUEST.partition(b"\r\n\r\n")
    expecting = head.replace(b"HTTP/1.1", b"HTTP/" + version) + b"\r\nexpect: 100-continue"
    answer = exchange(process.port, expecting + b"\r\n\r\n", body)
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == statuses


@pytest.mark.parametrize("spelling", [b"Upgrade", b"upgrade"])
def test_an_offer_to_upgrade_keeps_its_body(process: Process, spelling: bytes) -> None:
    """A request keeps its body when it offers h2c, as Java's HttpClient does in clear text."""
    offer = (
        b"Connection: Upgrade, HTTP2-Settings\r\n" + spelling + b": h2c\r\nHTTP2-Settings: AAA\r\n"
    )
    request = HEAD + offer + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
    with socket.create_connection(("127.0.0.1", process.port), timeout=30) as connection:
        for _ in range(2):
            connection.sendall(request)
            answer = b""
            while not answer.endswith(b"}]}"):
                answer += connection.recv(65536)
            assert b'"label":"positive"' in answer


@pytest.mark.parametrize("before", [b"", b"\r\n\r\n"])
def test_an_offer_that_comes_in_pieces_keeps_its_body(process: Process, before: bytes) -> None:
    """A head with an upgrade offer works in pieces: the parser gets it when it is complete."""
    offer = b"Connection: Upgrade, close\r\nUpgrade: h2c\r\n"
    rest = offer + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
    request = before + HEAD + rest
    with socket.create_connection(("127.0.0.1", process.port), timeout=30) as connection:
        for part in (request[:60], request[60:130], request[130:]):
            connection.sendall(part)
            time.sleep(0.05)
        answer = b""
        while not answer.endswith(b"}]}"):
            answer += connection.recv(65536)
    assert b'"label":"positive"' in answer


def test_a_body_is_no_part_of_the_next_head(process: Process) -> None:
    """A large body and the start of the next request may arrive together."""
    text = b'{"inputs": "love%b"}' % (b" " * 30_000)
    first = HEAD + b"content-length: %d\r\n\r\n" % len(text) + text
    health = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    for cut in (9, len(health) - 4, len(health) - 2):
        answer = exchange(process.port, first + health[:cut], health[cut:])
        assert answer.count(b"HTTP/1.1 200 OK") == 2


def test_an_answer_under_way_comes_before_a_refusal(process: Process) -> None:
    """Garbage after a request is refused after the answer to that request, not before."""
    request = REQUEST.replace(b"connection: close\r\n", b"")
    answer = exchange(process.port, request + b"\x00 garbage \r\n\r\n")
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"200", b"400"]


def test_a_chunk_that_is_none_is_refused(process: Process) -> None:
    """An invalid chunk gets its request the answer 400, exactly once."""
    head = HEAD + b"transfer-encoding: chunked\r\n\r\n"
    answer = exchange(process.port, head + b'5\r\n{"inp\r\nnonsense\r\n')
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("at_once", [True, False])
def test_a_request_with_a_bad_chunk_is_one_request(bundle: Path, at_once: bool) -> None:
    """It has one id and one line in the log, and is counted once, as 400 of its route."""
    head = HEAD + b"transfer-encoding: chunked\r\n\r\n"
    chunks = b'5\r\n{"inp\r\nnonsense\r\n'
    with (
        Process("--model", str(bundle), *FLAGS, "--access-log", "on") as process,
        httpx2.Client(base_url=process.url) as client,
    ):
        answer = exchange(process.port, *([head + chunks] if at_once else [head, chunks]))
        problem = _problem(answer)
        assert (problem["status"], problem["code"]) == (400, "bad_request")
        counted = [
            metric(client, "sentiment_http_requests_total", route=route, method=method, status=code)
            for route, method, code in (
                ("/classify", "POST", "400"),
                ("/classify", "POST", "499"),
                ("unmatched", "other", "400"),
            )
        ]
        assert counted == [1, 0, 0]
        assert client.get("/models").status_code == 200
        lines = map(json.loads, process.read_until("/models").splitlines())
        requests = [line for line in lines if line["message"] == "request"]
    assert [line["route"] for line in requests] == ["/classify", "/models"]
    assert requests[0]["request_id"] == problem["request_id"]
    assert requests[0]["status"] == 400


@pytest.mark.parametrize(
    "coding", [b"gzip, chunked", b"gzip", b"gzip\r\ntransfer-encoding: chunked"]
)
def test_only_chunks_are_a_transfer_coding(process: Process, coding: bytes) -> None:
    """Another coding, alone or before the chunks, gets 501 (RFC 9112, section 6.1)."""
    answer = exchange(process.port, HEAD + b"transfer-encoding: %b\r\n\r\n0\r\n\r\n" % coding)
    assert answer.startswith(b"HTTP/1.1 501 ")
    assert _problem(answer)["code"] == "unsupported_transfer_coding"


LONG = b"a" * 100_000
CHUNK = b"%x\r\n%b\r\n" % (len(BODY), BODY)


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param([b"0\r\nx: ", *[b"a" * 1_000] * 100], id="trailers without end"),
        pytest.param([CHUNK + b"0\r\nx: " + LONG + b"\r\n\r\n"], id="trailers at once"),
        pytest.param(
            [CHUNK.replace(b"\r", b";x=" + LONG + b"\r", 1) + b"0\r\n\r\n"],
            id="an extension of a chunk, at once",
        ),
    ],
)
def test_framing_of_chunks_is_limited(process: Process, chunks: list[bytes]) -> None:
    """Long trailers and extensions of chunks get 431; no other limit covers them."""
    with socket.create_connection(("127.0.0.1", process.port), timeout=30) as connection:
        for part in (HEAD + b"transfer-encoding: chunked\r\n\r\n", *chunks):
            connection.sendall(part)
        assert connection.recv(65536).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\r\n", id="blank lines"),
        pytest.param(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n", id="between requests"),
        pytest.param(
            b"GET /health HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n", id="half a body"
        ),
    ],
)
def test_a_connection_without_requests_ends(bundle: Path, sent: bytes) -> None:
    """A connection ends if no complete request arrives, whatever bytes trickle in."""
    app = create_app(Settings(model=(bundle,), runners=1, threads=1, max_batch_tokens=32))
    with listening(app, keep_alive_s=1) as url:
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        with socket.create_connection(address, timeout=30) as connection:
            connection.sendall(sent)
            with suppress(ConnectionError):
                for _ in range(100):
                    time.sleep(0.05)
                    connection.sendall(b"\r" if sent != b"" else b"")
                    connection.setblocking(False)
                    with suppress(BlockingIOError):
                        if connection.recv(65536) == b"":
                            return
                    connection.setblocking(True)
                pytest.fail("the connection is still open")


def test_a_body_that_looks_like_an_offer_is_left_alone(process: Process) -> None:
    """A body that looks like an upgrade offer is not changed; only heads are changed."""
    text = b'{"inputs": "love"\r\nupgrade: h2c\r\n}'
    request = HEAD + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(text) + text
    assert b"not valid JSON" in exchange(process.port, request)


def test_two_requests_in_one_packet(process: Process) -> None:
    """Two pipelined requests in one packet are answered in order."""
    first = REQUEST.replace(b"connection: close\r\n", b"")
    answer = exchange(
        process.port, first + REQUEST.replace(b"love", b"worst", 1).replace(b"18", b"19")
    )
    assert answer.count(b"HTTP/1.1 200 ") == 2
    assert answer.index(b'"label":"positive"') < answer.index(b'"label":"negative"')


def test_trailers_are_not_collected(process: Process) -> None:
    """Trailers after a chunked body are dropped."""
    chunked = HEAD + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    body = b"%x\r\n%b\r\n0\r\n" % (len(BODY), BODY)
    answer = exchange(process.port, chunked + body + b"x-request-id: trailer\r\n" * 300 + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"trailer" not in answer


@pytest.mark.parametrize("path", ["/health", "/health/live", "/metrics", "/", "/models"])
def test_head_is_answered_like_get_without_a_body(process: Process, path: str) -> None:
    """HEAD is answered like GET without a body; load balancers use it for probes."""
    answer = exchange(
        process.port, b"HEAD %b HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n" % path.encode()
    )
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert body == b""


def test_a_head_that_trickles_in_ends(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a head is not complete in time, the connection closes."""
    monkeypatch.setattr("app.server.http_protocol.HEAD_TIMEOUT_S", 0.1)
    app = create_app(Settings(model=(bundle,), runners=1, threads=1, max_batch_tokens=32))
    with listening(app) as url:
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        with socket.create_connection(address, timeout=30) as connection:
            connection.sendall(HEAD)
            assert connection.recv(100) == b""
