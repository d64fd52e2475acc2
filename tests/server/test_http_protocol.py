"""What arrives before a request is complete: endless heads, silence, and offers to upgrade."""

import json
import socket
import time
from contextlib import suppress
from email.utils import parsedate_to_datetime
from http.client import parse_headers
from io import BytesIO

import pytest

from tests.conftest import Listen, Start, served
from tests.support.raw_http import (
    BODY,
    HEAD,
    HEALTH,
    connect,
    exchange,
    post,
    read_all,
    read_answer,
    statuses,
)
from tests.support.serving import Process, metric

CLOSE = b"connection: close"
REQUEST = post(BODY, CLOSE)
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
CHUNK = b"%x\r\n%b\r\n" % (len(BODY), BODY)
LONG = b"a" * 3_000_000  # more than is read at once


process = served("--max-header-bytes", "2000")


def _coding(value: bytes) -> bytes:
    return HEAD + b"transfer-encoding: %b\r\n\r\n0\r\n\r\n" % value


TOO_LARGE = (431, "headers_too_large", "2000 bytes")
NO_HTTP = (400, "bad_request", "")
HTTP_2 = (400, "bad_request", "HTTP/2 is not supported")
HOST = (400, "bad_request", "exactly one Host")
LINE_ENDS = (400, "bad_request", "CR LF")
CODING = (400, "bad_request", "")
# The recorded answers have many more; here each kind also comes behind another request.
REFUSED = {
    "a large head at once": ([HEAD + b"x: " + b"a" * 3_000 + b"\r\n\r\n"], TOO_LARGE),
    "a header that does not end": ([HEAD, b"x: " + b"a" * 1_500, b"a" * 1_500], TOO_LARGE),
    "headers that do not end": ([HEAD, *[b"x: aaaa\r\n"] * 400], TOO_LARGE),
    "a long path": ([b"GET /" + b"a" * 3_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n"], TOO_LARGE),
    "a path that does not end": ([b"GET /" + b"a" * 3_000], TOO_LARGE),
    "TLS": ([b"\x16\x03\x01 garbage\r\n\r\n"], NO_HTTP),
    "HTTP/2 in pieces": ([b"PRI * HTTP/2.0\r\n", b"\r\n", b"SM\r\n\r\n"], HTTP_2),
    "no host": ([b"GET /health/live HTTP/1.1\r\n\r\n"], HOST),
    "two hosts, 1.0": ([b"GET /health/live HTTP/1.0\r\nhost: x\r\nhost: y\r\n\r\n"], HOST),
    "bare line feeds": ([b"GET /health/live HTTP/1.1\nhost: x\n\n"], LINE_ENDS),
    "gzip": ([_coding(b"gzip")], CODING),
    "gzip and chunked": ([_coding(b"gzip\r\ntransfer-encoding: chunked")], CODING),
    "a bad chunk": ([CHUNKED + b'5\r\n{"inp\r\nnonsense\r\n'], NO_HTTP),
    **{
        f"{line.decode()}": ([line + b" HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"], NO_HTTP)
        for line in (b"POST http://x:99999/", b"GET http://x:99999/", b"CONNECT x:1")
    },
}


@pytest.mark.parametrize("behind", [b"", HEALTH], ids=["first", "second"])
@pytest.mark.parametrize(("parts", "expected"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_request_is_a_problem(
    process: Process, parts: list[bytes], expected: tuple[int, str, str], behind: bytes
) -> None:
    """It is refused at once and exactly once, after the answer to a request before it.

    The answer has an id and a date, as every other has. The connection closes; others go on.
    """
    status, code, words = expected
    with connect(process.port, behind + parts[0], *parts[1:]) as connection:
        connection.settimeout(10)  # a head may take 75 s
        answers = read_all(connection)
    assert statuses(answers) == [*([200] if behind else []), status]
    head, _, body = answers[answers.rindex(b"HTTP/1.1 %d" % status) :].partition(b"\r\n\r\n")
    headers = parse_headers(BytesIO(head.partition(b"\r\n")[2] + b"\r\n\r\n"))
    problem = json.loads(body)
    assert (problem["code"], headers["x-request-id"]) == (code, problem["request_id"])
    assert words in problem["detail"]
    assert headers["content-type"] == "application/problem+json"
    assert headers["connection"] == "close"
    assert parsedate_to_datetime(headers["date"])
    assert statuses(exchange(process.port, REQUEST)) == [200]


def test_a_head_within_the_limit_may_come_byte_by_byte(process: Process) -> None:
    """A head within the size limit is accepted, even if it arrives byte by byte."""
    parts = [REQUEST[n : n + 1] for n in range(len(REQUEST))]
    assert statuses(exchange(process.port, *parts)) == [200]


@pytest.mark.parametrize("cuts", [[], [60, 130]], ids=["at once", "in pieces"])
@pytest.mark.parametrize("before", [b"", b"\r\n", post()], ids=["first", "line", "second"])
@pytest.mark.parametrize("name", [b"Upgrade", b"upgrade"])
def test_an_offer_to_upgrade_keeps_its_body(
    process: Process, name: bytes, before: bytes, cuts: list[int]
) -> None:
    """A request keeps its body when it offers h2c, as Java's HttpClient does in clear text."""
    offer = (b"Connection: Upgrade, HTTP2-Settings", name + b": h2c", b"HTTP2-Settings: AAA")
    request = before + post(BODY, *offer)
    with connect(process.port) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start, end in zip([0, *cuts], [*cuts, len(request)], strict=True):
            connection.sendall(request[start:end])
        answers = connection.recv(65536)
        connection.sendall(REQUEST)
        answers += read_all(connection)
    assert answers.count(b'"label":"positive"') == request.count(BODY) + 1


def test_a_body_that_looks_like_an_offer_is_left_alone(process: Process) -> None:
    """A body that looks like an upgrade offer is not changed; only heads are changed."""
    text = b'{"inputs": "love"\r\nupgrade: h2c\r\n}'
    assert b"not valid JSON" in exchange(process.port, post(text, CLOSE))


def test_a_body_is_no_part_of_the_next_head(process: Process) -> None:
    """A large body and the start of the next request may arrive together."""
    first = post(b'{"inputs": "love%b"}' % (b" " * 30_000))
    health = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    for cut in (9, len(health) - 4, len(health) - 2):
        assert statuses(exchange(process.port, first + health[:cut], health[cut:])) == [200, 200]


def test_a_request_with_a_bad_chunk_is_one_request(start: Start) -> None:
    """It has one id and one line in the log, and is counted once, as 400 of its route.

    So it is whether its head and the chunk arrive together or not. What is no request at all has a
    line as well, with the id of its answer.
    """
    process = start("--access-log", "on")

    def refused(*parts: bytes) -> str:
        _, _, body = exchange(process.port, *parts).partition(b"\r\n\r\n")
        problem = json.loads(body)
        assert (problem["status"], problem["code"]) == (400, "bad_request")
        return str(problem["request_id"])

    def count(route: str, method: str, status: str) -> float:
        name = "sentiment_http_requests_total"
        return metric(process.client, name, route=route, method=method, status=status)

    bad = b'5\r\n{"inp\r\nnonsense\r\n'
    ids = [refused(CHUNKED + bad), refused(CHUNKED, bad)]
    assert count("/classify", "POST", "400") == 2
    assert count("/classify", "POST", "499") == count("unmatched", "other", "400") == 0
    assert process.client.get("/models").status_code == 200
    lines = map(json.loads, process.read_until("/models").splitlines())
    requests = [line for line in lines if line["message"] == "request"]
    process.read_until(refused(b"secret words\n"))
    assert [line["route"] for line in requests] == ["/classify", "/classify", "/models"]
    assert [(line["request_id"], line["status"]) for line in requests[:2]] == [
        (request_id, 400) for request_id in ids
    ]


def test_refusals_of_what_is_no_request_are_counted(process: Process) -> None:
    """Invalid requests are counted as 400 and 431, in series that exist from the start."""

    def counts() -> list[float]:
        name, series = "sentiment_http_requests_total", {"route": "unmatched", "method": "other"}
        return [metric(process.client, name, status=one, **series) for one in ("400", "431")]

    before = counts()
    exchange(process.port, b"\x00")
    exchange(process.port, b"GET /" + b"a" * 40_000)
    assert counts() == [before[0] + 1, before[1] + 1]


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param([b"0\r\nx: ", *[b"a" * 1_000] * 100], id="trailers without end"),
        pytest.param([CHUNK + b"0\r\nx: " + LONG + b"\r\n\r\n"], id="trailers at once"),
        pytest.param([b"1\r\na\r\n" * 20_000], id="chunks of one byte"),
        pytest.param(
            [CHUNK.replace(b"\r", b";x=" + LONG + b"\r", 1) + b"0\r\n\r\n"],
            id="an extension of a chunk, at once",
        ),
    ],
)
def test_framing_of_chunks_is_limited(process: Process, chunks: list[bytes]) -> None:
    """Trailers, extensions of chunks and tiny chunks get 431, long before a body's limit."""
    with connect(process.port, CHUNKED, *chunks) as connection:
        assert statuses(connection.recv(65536)) == [431]


def test_trailers_are_not_collected(process: Process) -> None:
    """Trailers after a chunked body are dropped, and what follows the body is left unanswered."""
    answer = exchange(
        process.port, CHUNKED + CHUNK + b"0\r\n" + b"x-request-id: t\r\n" * 300 + b"\r\n" + REQUEST
    )
    assert statuses(answer) == [200]
    assert b"x-request-id: t\r\n" not in answer


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\r\n", id="blank lines"),
        pytest.param(HEALTH, id="between requests"),
        pytest.param(HEAD, id="half a head"),
        pytest.param(HEALTH[:-2] + b"content-length: 9\r\n\r\n", id="half a body"),
    ],
)
def test_a_connection_without_requests_ends(listen: Listen, sent: bytes) -> None:
    """A connection ends if no complete request arrives, whatever bytes trickle in."""
    with connect(listen(keep_alive_s=1), sent) as connection:
        connection.settimeout(0.05)
        with suppress(ConnectionError):
            for _ in range(400):
                with suppress(TimeoutError):
                    if connection.recv(65536) == b"":
                        return
                connection.sendall(b"\r" if sent else b"")
            pytest.fail("the connection is still open")


def test_an_end_of_a_line_may_come_between_requests(process: Process) -> None:
    """Blank lines between two requests are accepted, also when they are split into two packets."""
    with connect(process.port, post() + b"\r") as client:
        assert read_answer(client)[0] == 200
        time.sleep(0.1)  # so that the server gets the rest apart from it; else this proves less
        client.sendall(b"\n" + REQUEST)
        assert read_answer(client)[0] == 200


def test_http_1_0_needs_no_host(process: Process) -> None:
    """HTTP/1.0 has no Host header, so a request without it is answered."""
    assert statuses(exchange(process.port, b"GET /health/live HTTP/1.0\r\n\r\n")) == [200]
