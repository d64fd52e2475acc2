"""What a client's own deadline causes is counted apart, so that no client pages the operator."""

import json
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from tests.conftest import Listen, Serve, Start
from tests.support.raw_http import HEAD, connect
from tests.support.serving import Gate, eventually, metric
from tests.support.tiny_bundle import make_bundle

ROUTES: dict[str, dict[str, Any]] = {
    "/classify": {"inputs": "love"},
    "/classify?list": {"inputs": ["love", "worst"]},
    "/": {"inputs": "love"},
    "/predict": {"inputs": "love"},
    "/explain": {"inputs": "love"},
    "/v1/classify": {"model": "tiny", "input": ["love"]},
    "/v2/models/tiny/infer": {
        "inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["love"]}]
    },
    "/v1/models/tiny:predict": {"instances": ["love"]},
    "/invocations": {"inputs": "love"},
}
TEXTS = len(ROUTES) + 1


def _requests(client: httpx2.Client, **labels: str) -> float:
    return metric(client, "sentiment_http_requests_total", **labels)


def _rejections(client: httpx2.Client, model: str = "tiny") -> dict[str, float]:
    """The rejections of a model by reason, without those that did not happen."""
    found = {
        reason: metric(client, "sentiment_rejections_total", model=model, reason=reason)
        for reason in ("queue_full", "deadline", "client_deadline", "inflight_bytes")
    }
    return {reason: count for reason, count in found.items() if count}


@pytest.mark.parametrize(
    ("deadline_ms", "asked", "outcome"),
    [
        (10_000, "50", "client_deadline"),
        (50, "", "deadline_exceeded"),
        (50, "50", "deadline_exceeded"),  # as long as the service's
        (50, "600000", "deadline_exceeded"),
        (50, "1" * 5_000, "deadline_exceeded"),
    ],
)
def test_a_late_answer_counts_for_who_set_the_deadline(
    serve: Serve, gate: Gate, deadline_ms: int, asked: str, outcome: str
) -> None:
    """The client gets 504 on every route in any case; metrics tell the two apart."""
    client = serve(deadline_ms=deadline_ms)
    gate.close()
    headers = {"x-request-timeout-ms": asked} if asked else {}
    for path, body in ROUTES.items():
        answer = client.post(path, json=body, headers=headers)
        assert answer.status_code == 504, path
        assert '"deadline_exceeded"' in answer.text
        assert "no result within 0.0" in answer.text
    for other in ("client_deadline", "deadline_exceeded"):
        counted = other == outcome
        assert _requests(client, status="504", outcome=other) == len(ROUTES) * counted
        assert metric(client, "sentiment_texts_total", outcome=other) == TEXTS * counted


@pytest.mark.parametrize("path", ["/tokenize", "/classify"])
def test_a_deadline_that_is_over_at_the_start_is_the_clients(client: TestClient, path: str) -> None:
    """So short a deadline may be over before anything was done, on routes without a queue, too."""
    for _ in range(5):
        long = {"inputs": ["love " * 400] * 900}
        client.post(path, json=long, headers={"x-request-timeout-ms": "1"})
    assert _requests(client, status="504", outcome="client_deadline") == 5
    assert _requests(client, outcome="deadline_exceeded") == 0


def test_late_texts_of_a_list_count_for_who_set_the_deadline(serve: Serve, gate: Gate) -> None:
    """Also where the others have results, so that the answer has status 200."""
    client = serve(cache_mb=1)
    client.post("/classify", json={"inputs": "love"})
    gate.close()
    headers = {"x-request-timeout-ms": "50"}
    answer = client.post("/classify", json={"inputs": ["love", "worst"]}, headers=headers)
    known, late = answer.json()["results"]
    assert (known["label"], late["error"]["code"]) == ("positive", "deadline_exceeded")
    assert metric(client, "sentiment_texts_total", outcome="client_deadline") == 1
    assert metric(client, "sentiment_texts_total", outcome="deadline_exceeded") == 0


def test_a_refusal_because_of_the_clients_deadline_is_no_overload(
    serve: Serve, gate: Gate, pool: ThreadPoolExecutor
) -> None:
    """429, because the answer would come after the client's own deadline, counts apart."""
    client = serve(runners=1)

    def post() -> Future[httpx2.Response]:
        return pool.submit(client.post, "/classify", json={"inputs": "love"})

    gate.close()
    slow = post()
    assert gate.reached.wait(30)
    time.sleep(0.5)  # so the batcher expects this of the next batches
    gate.open.set()
    assert slow.result().status_code == 200
    gate.close()
    running = post()
    assert gate.reached.wait(30)
    waiting = post()
    eventually(lambda: metric(client, "sentiment_queue_texts") == 1)
    headers = {"x-request-timeout-ms": "50"}
    refused = client.post("/classify", json={"inputs": "worst"}, headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (429, "overloaded")
    assert _rejections(client) == {"client_deadline": 1}
    gate.open.set()
    assert [running.result().status_code, waiting.result().status_code] == [200, 200]


def test_a_body_that_comes_too_slowly_is_the_clients(listen: Listen) -> None:
    """A client that sends half a body, and waits, gets 504 and pages nobody."""
    port = listen(deadline_ms=200)
    with connect(port, HEAD + b"content-length: 100\r\n\r\n{") as silent:
        answer = silent.recv(1000)
    assert answer.startswith(b"HTTP/1.1 504")
    assert b"deadline_exceeded" in answer
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client:
        assert _requests(client, status="504", outcome="client_deadline") == 1
        assert _requests(client, outcome="deadline_exceeded") == 0


def test_an_unread_body_counts_for_the_model_of_its_path(serve: Serve, bundle: Path) -> None:
    """A long body is refused before it is read; the other model has refused nothing."""
    other = make_bundle(bundle.parent / "second", name="second")
    client = serve(model=(bundle, other), max_body_bytes=70_000, max_inflight_bytes=70_000)
    cast(FastAPI, client.app).state.service.inflight.take(60_000)
    long = json.dumps({"inputs": ["x" * 69_000]})
    headers = {"content-type": "application/json"}
    refused = client.post("/v2/models/second/infer", content=long, headers=headers)
    assert refused.status_code == 429
    assert _rejections(client, "second") == {"inflight_bytes": 1}
    assert _rejections(client, "tiny") == {}
    client.post("/classify", content=long, headers=headers)
    assert _rejections(client, "tiny") == {"inflight_bytes": 1}


def test_the_log_has_the_asked_deadline(start: Start) -> None:
    """The line of a request has the milliseconds that its client allowed, if they are fewer."""
    process = start("--access-log", "on")
    for asked in ("1", "5000", "10000", ""):
        headers = {"x-request-timeout-ms": asked} if asked else {}
        process.client.post("/classify", json={"inputs": "love"}, headers=headers)
    lines = [json.loads(line) for line in process.terminate().splitlines()]
    asked_ms = [line.get("timeout_ms") for line in lines if line.get("route") == "/classify"]
    assert asked_ms == [1, 5000, None, None]
