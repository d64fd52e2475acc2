"""POST /predict against a real server, as the text-embeddings-inference documentation uses it."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient

from tests.conftest import Serve
from tests.support.serving import SLOW_COMMAND, Gate, Process, eventually, metric

BY_HAND = ("--runners", "2", "--threads", "1", "--max-batch-tokens", "512")
LONG = "love " * 20  # 22 tokens, of 16


@pytest.fixture(scope="module")
def url(bundle: Path) -> Iterator[str]:
    """The URL of a server of the tiny model."""
    with Process("--model", str(bundle), *BY_HAND) as process:
        yield process.url


def _post(url: str, body: Any) -> httpx2.Response:
    return httpx2.post(f"{url}/predict", json=body)


def _labels(answer: Any) -> Any:
    """The labels, in place of the objects that have them."""
    return [_labels(item) if isinstance(item, list) else item["label"] for item in answer]


def _curl(url: str, body: str) -> Any:
    assert shutil.which("curl"), "TEI's documentation speaks curl"
    command = ["curl", "-s", f"{url}/predict", "-X", "POST", "-d", body]
    command += ["-H", "Content-Type: application/json"]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


def test_curl_as_documented(url: str) -> None:
    """One text gets one list, a TEI batch a list of lists; the highest score comes first."""
    one = _curl(url, '{"inputs":"I love you."}')
    assert _labels(one) == ["positive", "neutral", "negative"]
    assert [item["score"] for item in one] == sorted((item["score"] for item in one), reverse=True)
    batch = _curl(url, '{"inputs":[["I love you."], ["worst of all"]]}')
    assert batch[0] == one
    assert _labels(batch)[1] == ["negative", "neutral", "positive"]


def test_two_texts_are_two_documents(url: str) -> None:
    """A list of two strings is two documents here, although TEI takes it for a pair."""
    two = _post(url, {"inputs": ["love", "worst"]}).json()
    assert [item[0]["label"] for item in two] == ["positive", "negative"]
    assert _labels(_post(url, {"inputs": ["love"]}).json()) == [_labels(two[0])]
    assert len(_post(url, {"inputs": ["love"] * 3}).json()) == 3


def test_raw_scores_are_logits(url: str) -> None:
    """raw_scores gives logits; without it, scores are those of the native route."""
    raw = _post(url, {"inputs": "love", "raw_scores": True}).json()
    assert {item["label"]: item["score"] for item in raw} == {
        "positive": 4.0,
        "neutral": 0.0,
        "negative": -1.0,
    }
    scores = {item["label"]: item["score"] for item in _post(url, {"inputs": "love"}).json()}
    native = httpx2.post(f"{url}/classify", json={"inputs": "love"}).json()["results"][0]
    assert scores == native["scores"]


@pytest.mark.parametrize("truncation", [{}, {"truncate": True}, {"truncate": None}])
def test_a_long_text_is_truncated_unless_refused(url: str, truncation: Any) -> None:
    """A long text is truncated by default; truncate false refuses it."""
    assert _post(url, {"inputs": LONG, **truncation}).json()[0]["label"] == "positive"
    refused = _post(url, {"inputs": LONG, "truncate": False})
    assert (refused.status_code, refused.json()["code"]) == (422, "text_too_long")
    assert _post(url, {"inputs": "love", "truncate": False}).status_code == 200


def test_other_fields_of_tei_do_no_harm(url: str) -> None:
    """Both spellings of the truncation direction, and unknown fields, are accepted."""
    for direction in ("right", "Right"):
        body = {"inputs": "love", "truncation_direction": direction, "prompt_name": None}
        assert _post(url, body).status_code == 200


def test_the_headers_say_what_was_computed(url: str) -> None:
    """The headers have the device, the characters and the tokens."""
    headers = _post(url, {"inputs": ["love it", LONG]}).headers
    assert headers["x-compute-type"] == "cpu"
    assert headers["x-compute-characters"] == str(len("love it") + len(LONG))
    assert headers["x-compute-tokens"] == str(4 + 16)


def test_the_headers_say_how_long_it_took(bundle: Path) -> None:
    """The headers have whole milliseconds: inference of 50 ms shows there and in the total."""
    with Process("--model", str(bundle), *BY_HAND, command=SLOW_COMMAND) as process:
        headers = _post(process.url, {"inputs": "love"}).headers
    assert int(headers["x-inference-time"]) >= 50
    for name in ("x-total-time", "x-compute-time"):
        assert int(headers[name]) >= int(headers["x-inference-time"])
    assert headers["x-tokenization-time"].isdigit()
    assert headers["x-queue-time"].isdigit()


@pytest.mark.parametrize(
    ("body", "code", "error_type", "says"),
    [
        ({}, "invalid_request", "Validation", "inputs is required"),
        ({"inputs": 1}, "invalid_request", "Validation", "must be a string, an object"),
        ({"inputs": []}, "invalid_request", "Validation", "at least one text"),
        ({"inputs": [["a", "b"]]}, "invalid_request", "Validation", "tiny takes single texts"),
        ({"inputs": [["a"], ["b", "c"]]}, "invalid_request", "Validation", "text 1, counted from"),
        (
            {"inputs": [["a"], "b"]},
            "invalid_request",
            "Validation",
            "of one string each, or of two",
        ),
        ({"inputs": [["a", "b", "c"]]}, "invalid_request", "Validation", "or of two for a pair"),
        ({"inputs": [[]]}, "invalid_request", "Validation", "of one string each"),
        ({"inputs": [[1]]}, "invalid_request", "Validation", "of one string each"),
        ({"inputs": [["a", None]]}, "invalid_request", "Validation", "of one string each"),
        ({"inputs": ["a"] * 1001}, "too_many_texts", "Validation", "at most 1000"),
        ({"inputs": ""}, "empty_text", "Empty", "empty or blank"),
        ({"inputs": [["a"], [" "]]}, "empty_text", "Empty", "text 1, counted from 0"),
        ({"inputs": "a\0"}, "invalid_request", "Validation", "NUL"),
        ({"inputs": "nan"}, "inference_failed", "Backend", "no finite logits"),
        (
            {"inputs": "a", "truncation_direction": "Left"},
            "invalid_request",
            "Validation",
            "truncation_direction must be 'right' or 'Right'",
        ),
        ({"inputs": "a", "raw_scores": 1}, "invalid_request", "Validation", "raw_scores must be"),
        ({"inputs": "a", "truncate": "no"}, "invalid_request", "Validation", "truncate must be"),
    ],
)
def test_a_bad_request_has_teis_members(
    url: str, body: Any, code: str, error_type: str, says: str
) -> None:
    """Our problem document also has TEI's members error and error_type."""
    answer = _post(url, body)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (500 if "nan" in body.values() else 422, code)
    assert says in problem["error"]
    assert problem["error_type"] == error_type
    assert answer.headers["content-type"] == "application/problem+json"


def test_what_is_no_request_has_them_as_well(url: str) -> None:
    """Bodies that are not JSON, not declared as JSON, or too large get these members too."""
    json_type = {"content-type": "application/json"}
    for content, headers, status in (
        (b'{"inputs": ', json_type, 422),
        (b'{"inputs": "love"}', {"content-type": "text/plain"}, 415),
        (b" " * 3_000_000, json_type, 413),
    ):
        answer = httpx2.post(f"{url}/predict", content=content, headers=headers)
        assert (answer.status_code, answer.json()["error_type"]) == (status, "Validation")


def _love(client: TestClient) -> httpx2.Response:
    return client.post("/predict", json={"inputs": "love"})  # 3 tokens


def test_an_overloaded_service_says_so(serve: Serve, gate: Gate) -> None:
    """A request that the queue cannot hold gets TEI's error type and Retry-After."""
    client = serve(runners=1, max_queue_tokens=8)
    gate.close()
    with ThreadPoolExecutor(3) as pool:
        running = pool.submit(_love, client)
        assert gate.reached.wait(30)
        waiting = [pool.submit(_love, client) for _ in range(2)]
        eventually(lambda: metric(client, "sentiment_queue_tokens", model="tiny") == 6)
        refused = _love(client)
        gate.open.set()
        assert {answer.result().status_code for answer in (running, *waiting)} == {200}
    assert (refused.status_code, refused.json()["error_type"]) == (429, "Overloaded")
    assert int(refused.headers["retry-after"]) >= 1


def test_a_late_answer_is_the_backends_fault(serve: Serve, gate: Gate) -> None:
    """504 has TEI's error type."""
    client = serve(runners=1, deadline_ms=50)
    gate.close()
    late = _love(client)
    assert (late.status_code, late.json()["error_type"]) == (504, "Backend")
