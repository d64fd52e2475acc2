"""Bad requests: each gets a clear problem with the right status, and the next request works."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from app.api.answers import every_prediction
from app.errors import DeadlineExceeded
from tests.support.serving import Process, exchange, metric

JSON = "application/json"


def _case(
    name: str, body: str | bytes, status: int, code: str, says: str, content_type: str = JSON
) -> object:
    content = body.encode() if isinstance(body, str) else body
    return pytest.param(content, content_type, status, code, says, id=name)


def _inputs(value: object) -> str:
    return json.dumps({"inputs": value})


BAD = [
    _case("no field", "{}", 422, "invalid_request", "inputs is required"),
    _case("wrong type", _inputs(1), 422, "invalid_request", "must be a string, an object"),
    _case("null", _inputs(None), 422, "invalid_request", "must be a string, an object"),
    _case("mixed list", _inputs(["a", 1]), 422, "invalid_request", "must be a string, an object"),
    _case("no texts", _inputs([]), 422, "invalid_request", "at least one text"),
    _case("many", _inputs([1] * 90_000), 422, "invalid_request", "or a list of these"),
    _case("million", _inputs([1] * 600_000), 422, "invalid_request", "values, names"),
    _case("empty text", _inputs(""), 422, "empty_text", "empty or blank"),
    _case("blank text", _inputs(" \t\n"), 422, "empty_text", "empty or blank"),
    _case("lone surrogate", _inputs("\ud800"), 422, "invalid_request", "surrogate"),
    _case("NUL", _inputs("a\0b"), 422, "invalid_request", "NUL"),
    _case("1 MB of text", _inputs("a " * 500_000), 422, "text_too_long", "at most 50000"),
    _case("10,000 texts", _inputs(["a"] * 10_000), 422, "too_many_texts", "at most 1000"),
    _case("unknown field", '{"inputs": "a", "x": 1}', 422, "invalid_request", "unknown field 'x'"),
    _case("odd field", '{"\\ud800": 1}', 422, "invalid_request", "unknown field"),
    _case("overflow", '{"inputs": "a", "overflow": "x"}', 422, "invalid_request", "'truncate'"),
    _case("odd overflow", '{"inputs": "a", "overflow": "\\ud800"}', 422, "invalid_request", "over"),
    _case(
        "language",
        '{"inputs": "a", "language": "english please"}',
        422,
        "invalid_request",
        "language must be a language tag such as 'en' or 'pt-BR'",
    ),
    _case(
        "model type",
        '{"inputs": "a", "model": 1}',
        422,
        "invalid_request",
        "model must be a string",
    ),
    _case(
        "model",
        '{"inputs": "a", "model": "x"}',
        404,
        "model_not_found",
        "the served models are: tiny",
    ),
    _case("odd model", '{"inputs": "a", "model": "\\ud800"}', 404, "model_not_found", "tiny"),
    _case("empty body", "", 422, "invalid_request", "must be a JSON object"),
    _case("a list", "[]", 422, "invalid_request", "must be a JSON object"),
    _case("not JSON", '{"inputs": ', 422, "invalid_request", "not valid JSON"),
    _case("open string", '{"inputs": "', 422, "invalid_request", "starting at character 11"),
    _case(
        "raw tab", '{"inputs": "\t"}', 422, "invalid_request", "control character at character 12"
    ),
    _case("not UTF-8", b'{"inputs": "\xff"}', 422, "invalid_request", "UTF-8"),
    _case("nested", "[" * 100_000, 422, "invalid_request", "nested"),
    _case("NaN", '{"inputs": NaN}', 422, "invalid_request", "NaN"),
    _case("huge number", '{"inputs": ' + "9" * 5_000 + "}", 422, "invalid_request", "number"),
    _case("text/plain", _inputs("a"), 415, "unsupported_media_type", "application/json", "text/x"),
    _case("no type", _inputs("a"), 415, "unsupported_media_type", "application/json", ""),
    _case("too large", " " * 3_000_000, 413, "payload_too_large", "2097152"),
]


@pytest.mark.parametrize(("body", "content_type", "status", "code", "says"), BAD)
def test_a_bad_request_is_a_clear_problem(
    client: TestClient, body: bytes, content_type: str, status: int, code: str, says: str
) -> None:
    """Status, code and message fit, all members are present, and the service goes on."""
    headers = {"content-type": content_type} if content_type else {}
    answer = client.post("/classify", content=body, headers=headers)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert says in problem["detail"]
    assert problem["error"] == problem["detail"]
    assert problem["status"] == status
    assert problem["type"].endswith(code)
    assert problem["title"]
    assert problem["request_id"] == answer.headers["x-request-id"]
    assert client.post("/classify", json={"inputs": "love"}).status_code == 200


def test_the_last_of_two_equal_names_counts(client: TestClient) -> None:
    """If a JSON object has two equal names, the last one counts, as in most parsers."""
    answer = client.post(
        "/classify",
        content='{"inputs": "worst", "inputs": "love"}',
        headers={"content-type": JSON},
    )
    assert answer.json()["results"][0]["label"] == "positive"


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "APPLICATION/JSON"])
def test_other_spellings_of_json_are_accepted(client: TestClient, content_type: str) -> None:
    """Media types are compared as HTTP defines, without regard to case or parameters."""
    answer = client.post(
        "/classify", content='{"inputs": "a"}', headers={"content-type": content_type}
    )
    assert answer.status_code == 200


@pytest.mark.parametrize("path", ["/classify", "/v2/models/tiny/infer"])
def test_the_first_of_two_media_types_counts(client: TestClient, path: str) -> None:
    """If a request has two media types, each route reads the first."""
    types = [("content-type", JSON), ("content-type", "text/plain")]
    statuses = [
        client.post(path, content="{}", headers=h).status_code for h in (types, types[::-1])
    ]
    assert statuses == [422, 415]


def test_unknown_routes_and_methods(client: TestClient) -> None:
    """Unknown routes and methods get problems; 405 names the allowed methods."""
    unknown = client.get("/nowhere")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")
    wrong = client.put("/classify")
    assert (wrong.status_code, wrong.json()["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "POST"
    assert client.put("/").headers["allow"] == "GET, HEAD, POST"
    assert client.put("/v2/models/tiny").headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize("path", ["/docs", "/docs/docs.js", "/openapi.json"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_pages_say_which_methods_they_have(client: TestClient, method: str, path: str) -> None:
    """405 names GET and HEAD on the pages and on FastAPI's own route, as on all others."""
    answer = client.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
    assert answer.json()["detail"] == "allowed here: GET, HEAD"


@pytest.fixture(scope="module")
def process(bundle: Path) -> Iterator[Process]:
    """A real server, because the result depends on how bytes arrive."""
    with Process("--model", str(bundle)) as process:
        yield process


HEAD = (
    b"POST /classify HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
)


def test_a_body_announced_too_large_is_refused_before_it_is_sent(process: Process) -> None:
    """A client that waits for 100-continue is told 413 at once."""
    answer = exchange(
        process.port, HEAD + b"expect: 100-continue\r\ncontent-length: 999999999\r\n\r\n"
    )
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"payload_too_large" in answer


def test_a_body_of_unknown_length_is_refused_when_it_grows_too_large(process: Process) -> None:
    """The bytes of a chunked body are counted as they arrive, so it is refused before its end."""
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    with socket.create_connection(("127.0.0.1", process.port), timeout=30) as connection:
        connection.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n")
        for _ in range(33):  # one more than the limit holds
            connection.sendall(chunk)
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_a_client_that_leaves_while_sending_harms_nobody(process: Process) -> None:
    """After a client leaves with half a body sent, the next request works."""
    with socket.create_connection(("127.0.0.1", process.port), timeout=30) as connection:
        connection.sendall(HEAD + b'content-length: 100\r\n\r\n{"inputs"')
    body = b'{"inputs": "love"}'
    answer = exchange(process.port, HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
    assert b'"label":"positive"' in answer


def test_what_is_not_http_harms_nobody(process: Process) -> None:
    """Bytes that are not HTTP get 400, and the next request works."""
    assert exchange(process.port, b"\x16\x03\x01 garbage\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert b"200 OK" in exchange(
        process.port, b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    )


def test_a_body_that_trickles_in_ends_at_the_deadline(bundle: Path) -> None:
    """A client that sends half a body and waits gets 504; it cannot hold a request for ever."""
    with Process("--model", str(bundle), "--deadline-ms", "200") as process:
        answer = exchange(process.port, HEAD + b'content-length: 100\r\n\r\n{"inputs"')
    assert answer.startswith(b"HTTP/1.1 504 ")
    assert b"deadline_exceeded" in answer


def test_the_error_of_one_text_is_not_changed_for_another() -> None:
    """If texts share an error object, adding a text's index to the message does not change it."""
    shared = DeadlineExceeded("no result within 1 s")
    for _ in range(2):
        with pytest.raises(DeadlineExceeded, match="no result") as raised:
            every_prediction([shared, shared])
        assert raised.value.detail == "text 0, counted from 0: no result within 1 s"
    assert shared.detail == "no result within 1 s"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/health/live%0a"),
        ("GET", "/docs%0A"),
        ("GET", "/v2/models/tiny%0a"),
        ("GET", "/info%00"),
        ("GET", "/%7f"),
        ("GET", "/health%c2%85"),
        ("POST", "/classify%0a"),
    ],
)
def test_a_path_with_a_control_character_is_nowhere(
    client: TestClient, method: str, path: str
) -> None:
    """A path with a control character, even a final line feed, gets 404 and counts as unrouted."""
    answer = client.request(method, path, json={"inputs": "love"} if method == "POST" else None)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    labels = {"route": "unmatched", "method": method, "status": "404"}
    assert metric(client, "sentiment_http_requests_total", **labels) == 1
