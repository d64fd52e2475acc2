"""POST /predict against a real server, as the text-embeddings-inference documentation uses it."""

import json
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
from fastapi.testclient import TestClient

from tests.conftest import FLAGS, Serve
from tests.support.serving import SLOW_COMMAND, Gate, Process, eventually, metric


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


def test_the_headers_say_how_long_it_took(bundle: Path) -> None:
    """The headers have whole milliseconds: inference of 50 ms shows there and in the total."""
    with Process("--model", str(bundle), *FLAGS, command=SLOW_COMMAND) as process:
        headers = _post(process.url, {"inputs": "love"}).headers
    assert int(headers["x-inference-time"]) >= 50
    for name in ("x-total-time", "x-compute-time"):
        assert int(headers[name]) >= int(headers["x-inference-time"])
    assert headers["x-tokenization-time"].isdigit()
    assert headers["x-queue-time"].isdigit()


def test_a_text_that_cannot_be_computed_is_the_backends_fault(url: str) -> None:
    """A text without finite logits has TEI's error type, beside our members."""
    problem = _post(url, {"inputs": "nan"}).json()
    assert (problem["status"], problem["code"]) == (500, "inference_failed")
    assert problem["error_type"] == "Backend"


def _love(client: TestClient) -> httpx2.Response:
    return client.post("/predict", json={"inputs": "love"})  # 3 tokens


def test_an_overloaded_service_says_so(serve: Serve, gate: Gate, pool: ThreadPoolExecutor) -> None:
    """A request that the queue cannot hold gets TEI's error type and Retry-After."""
    client = serve(runners=1, max_queue_tokens=8)
    gate.close()
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
