"""What a newcomer gets wrong is answered with what to send instead."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

TEXT = "text/plain"
FORM = "application/x-www-form-urlencoded"


def _refused(client: TestClient, method: str, path: str, **options: Any) -> tuple[int, str]:
    answer = client.request(method, path, **options)
    return answer.status_code, answer.json()["detail"]


@pytest.mark.parametrize("path", ["/classify", "/tokenize", "/explain"])
@pytest.mark.parametrize(
    "body", [{"text": "love"}, {"sentences": ["love"]}, {"model": "m", "x": 1}]
)
def test_a_wrong_field_names_the_right_one(client: TestClient, path: str, body: Any) -> None:
    """Whatever the field is called that has the texts, the error says that it is `inputs`."""
    status, detail = _refused(client, "POST", path, json=body)
    assert status == 422
    assert "texts belong in 'inputs'" in detail
    status, detail = _refused(client, "POST", path, json={**body, "inputs": "love"})
    assert "unknown field" in detail
    assert "belong" not in detail


@pytest.mark.parametrize("body", ["love", ["love"], 1])
def test_json_that_is_no_object_is_shown_one(client: TestClient, body: Any) -> None:
    """A text or a list alone is no body; the error shows where it belongs."""
    status, detail = _refused(client, "POST", "/classify", json=body)
    assert (status, '{"inputs": ' in detail) == (422, True)


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [
        ("POST /clasify", "POST /classify"),
        ("POST /classify/", "POST /classify"),
        ("GET /Classification", "POST /classify"),
        ("POST /api/v1/classify", "POST /v1/classify"),
        ("POST /endpoints/one/invocations", "POST /invocations"),
        ("POST /v1/embeddings", "POST /v1/classify"),
        ("POST /v1/models/tiny/predict", "POST /v1/models/{name}:predict"),
        ("GET /v2/models/tiny/config", "GET /v2/models/{name}"),
        ("POST /v2/models/tiny/infer/", "POST /v2/models/{name}/infer"),
        ("GET /healthz", "GET /health"),
        ("GET /health/ready/", "GET /health/ready"),
        ("GET /metric", "GET /metrics"),
    ],
)
def test_a_wrong_path_names_the_nearest_route(client: TestClient, asked: str, nearest: str) -> None:
    """A slash too many, another case, a prefix, a misspelling or another server's path."""
    status, detail = _refused(client, *asked.split())
    assert status == 404
    assert f"the nearest is {nearest};" in detail


@pytest.mark.parametrize("path", ["/sentiment", "/x", "/" + 20_000 * "a/", "/%F0%9F%98%80"])
def test_a_path_like_no_other_names_the_route_for_texts(client: TestClient, path: str) -> None:
    """Where no route is like the path, POST /classify is named."""
    status, detail = _refused(client, "GET", path)
    assert (status, "; POST /classify classifies texts" in detail) == (404, True)


@pytest.mark.parametrize(("method", "path"), [("GET", "/classify"), ("PUT", "/tokenize")])
def test_a_wrong_method_shows_a_call(client: TestClient, method: str, path: str) -> None:
    """Who opens a URL in a browser sees the methods and a call that works, with this address."""
    status, detail = _refused(client, method, path, headers={"host": "example.org:81"})
    assert status == 405
    assert detail.startswith(f"allowed here: POST; for example: curl http://example.org:81{path} ")
    body = detail.rpartition("-d '")[2].removesuffix("'")
    sent = {"content-type": "application/json"}
    assert client.post(path, content=body, headers=sent).status_code == 200


@pytest.mark.parametrize("path", ["/classify", "/tokenize", "/explain"])
@pytest.mark.parametrize(
    "content", ["love it", "love it\r\n", "\ufefflove it", '"love" it', "[sic] love {it"]
)
def test_a_text_is_one_text(client: TestClient, path: str, content: str) -> None:
    """`text/plain` in UTF-8 is one text, without the line end and the byte order mark of a file."""
    answer = client.post(path, content=content.encode(), headers={"content-type": TEXT})
    text = content.removeprefix("\ufeff").rstrip()
    assert answer.json() == client.post(path, json={"inputs": text}).json()


@pytest.mark.parametrize(
    ("kind", "content", "status", "words"),
    [
        (TEXT, b'{"inputs": "love"}', 415, "the body is JSON"),
        (TEXT, b'\xef\xbb\xbf{"inputs": "love"}', 415, "the body is JSON"),
        (f"{TEXT};charset=UTF-8", b' ["love"]', 415, "the body is JSON"),
        (f"{TEXT}; charset=latin1", b"love", 415, "UTF-8 only"),
        (TEXT, b"caf\xe9", 422, "UTF-8"),
        (TEXT, b" ", 422, "empty or blank"),
        (TEXT, b"", 422, "empty"),
        (TEXT, b"x" * 70_000, 422, "at most 50000"),
        (FORM, b'{"inputs": "love"}', 415, "application/json"),
        (FORM, b"inputs=love", 415, "text/plain"),
        ("", b'{"inputs": "love"}', 415, "application/json"),
    ],
)
def test_other_bodies_are_refused(
    client: TestClient, kind: str, content: bytes, status: int, words: str
) -> None:
    """JSON is never classified as the text that it is, and the error names the types to send."""
    found = _refused(client, "POST", "/classify", content=content, headers={"content-type": kind})
    assert found[0] == status
    assert words in found[1]


def test_other_servers_formats_take_no_text(client: TestClient) -> None:
    """There, `text/plain` is refused, and JSON is named."""
    for path in ("/", "/predict", "/v1/classify"):
        sent = {"content": b"love", "headers": {"content-type": TEXT}}
        status, detail = _refused(client, "POST", path, **sent)
        assert (status, detail) == (415, "send JSON, with content-type: application/json")


def test_zero_shot_is_refused(client: TestClient) -> None:
    """Labels of the client's own are never answered with those of the model."""
    for path, texts in (("/", "inputs"), ("/invocations", "inputs"), ("/predict", "instances")):
        body = {texts: ["love"], "parameters": {"candidate_labels": ["a", "b"]}}
        status, detail = _refused(client, "POST", path, json=body)
        assert status == 422
        assert "candidate_labels asks for zero-shot classification" in detail
    status, _ = _refused(client, "POST", "/", json={"inputs": "love", "candidate_labels": ["a"]})
    assert status == 422


def test_who_accepts_no_html_gets_the_status(client: TestClient) -> None:
    """GET / is a page for browsers, and for KServe's V1 client whether the service is live."""
    assert client.get("/").json() == {"status": "alive"}
    page = client.get("/", headers={"accept": "text/html,*/*"})
    assert page.headers["content-type"].startswith("text/html")
