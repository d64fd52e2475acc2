"""More work than the service can answer: admission, deadlines, clients that leave, failures."""

import json
import re
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient
from sentiment_service.engine.classifier import INLINE_CHARS
from sentiment_service.engine.model.model import Model
from sentiment_service.engine.text.input_tokenizer import InputTokenizer
from sentiment_service.main import create_app
from sentiment_service.settings.settings import Settings

from tests.conftest import Listen, Serve
from tests.support.raw_http import connect, post
from tests.support.serving import Gate, eventually, metric
from tests.support.tiny_bundle import different_texts


def _post(client: httpx2.Client, inputs: str | list[str]) -> httpx2.Response:
    return client.post("/classify", json={"inputs": inputs})


def _occupy(client: httpx2.Client, gate: Gate, pool: ThreadPoolExecutor) -> "Future[Any]":
    """Close the gate, and let one request's batch wait at it."""
    gate.close()
    request = pool.submit(_post, client, "love")
    assert gate.reached.wait(30)
    return request


def test_what_the_queue_does_not_hold_is_turned_away(
    serve: Serve, gate: Gate, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full queue gives 429 at once, with Retry-After in seconds; admitted ones are answered.

    A long request is refused before it is tokenised.
    """
    client = serve(runners=1, max_queue_tokens=12)
    running = _occupy(client, gate, pool)
    waiting = [pool.submit(_post, client, ["worst", "worst"]) for _ in range(2)]
    eventually(lambda: metric(client, "sentiment_queue_tokens", model="tiny") == 12)

    refused = [_post(client, ["love", "love"])]
    with monkeypatch.context() as patch:
        patch.setattr(InputTokenizer, "encode_batch", lambda *_, **__: pytest.fail("tokenised"))
        refused.append(_post(client, ["love " * INLINE_CHARS, "love"]))
    for answer in refused:
        assert (answer.status_code, answer.json()["code"]) == (429, "overloaded")
        assert int(answer.headers["retry-after"]) >= 1
    reasons = {"model": "tiny", "reason": "queue_full"}
    assert metric(client, "sentiment_rejections_total", **reasons) == 2
    refused_texts = {"model": "tiny", "outcome": "overloaded"}
    assert metric(client, "sentiment_texts_total", **refused_texts) == 4

    gate.open.set()
    assert running.result().status_code == 200
    assert [request.result().status_code for request in waiting] == [200, 200]


def test_liveness_and_metrics_do_not_wait_for_batches(
    serve: Serve, gate: Gate, pool: ThreadPoolExecutor
) -> None:
    """Liveness and metrics answer while every runner computes."""
    client = serve(runners=2)
    _occupy(client, gate, pool)
    _occupy(client, gate, pool)
    assert client.get("/health/live").status_code == 200
    assert client.get("/health/ready").status_code == 200
    assert metric(client, "sentiment_http_requests_in_flight") == 3  # two posts and the scrape


def test_nothing_is_computed_for_a_client_that_left(
    listen: Listen, gate: Gate, pool: ThreadPoolExecutor
) -> None:
    """A client's texts leave the queue when its connection closes; those of others are answered."""
    port = listen(runners=1)
    gate.seen.clear()  # the warm-up's
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client:
        running = _occupy(client, gate, pool)
        body = json.dumps({"inputs": ["worst"] * 5}).encode()
        with connect(port, post(body)):
            eventually(lambda: metric(client, "sentiment_queue_texts", model="tiny") == 5)
        eventually(lambda: metric(client, "sentiment_queue_texts", model="tiny") == 0)

        gate.open.set()
        assert running.result().status_code == 200
        assert len(gate.seen) == 1  # only the batch of the client that stayed
        left = {"model": "tiny", "outcome": "client_disconnected"}
        assert metric(client, "sentiment_texts_total", **left) == 5
        answered = {"route": "/classify", "method": "POST", "status": "499"}
        assert metric(client, "sentiment_http_requests_total", **answered) == 1


def test_readiness_follows_inference(serve: Serve, gate: Gate) -> None:
    """Unready after several failures in a row, and ready again as soon as a probe succeeds."""
    client = serve()
    gate.fails = True
    for _ in range(3):
        assert _post(client, "love").status_code == 500
    unready = client.get("/health/ready")
    assert (unready.status_code, unready.json()["code"]) == (503, "not_ready")
    assert int(unready.headers["retry-after"]) >= 1
    assert metric(client, "sentiment_model_ready", model="tiny") == 0
    assert client.get("/health/live").status_code == 200

    gate.fails = False
    assert client.get("/health/ready").status_code == 200
    assert metric(client, "sentiment_model_ready", model="tiny") == 1


def test_before_it_starts_the_service_is_not_ready(bundle: Path) -> None:
    """Before its lifespan starts, the application answers 503, never 500."""
    client = TestClient(create_app(Settings(model=(bundle,))))
    for answer in (client.get("/health/ready"), _post(client, "love"), client.get("/info")):
        assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")


def test_a_stopping_service_takes_no_work(client: TestClient) -> None:
    """A stopping service gives 503 with Retry-After, is unready, alive, and closes connections."""
    client.app.state.service.lifecycle.stop()  # type: ignore[attr-defined]
    probes = ("/health/ready", "/v2/health/ready", "/v2/models/tiny/ready")
    for answer in (_post(client, "love"), *map(client.get, probes)):
        assert (answer.status_code, answer.json()["code"]) == (503, "shutting_down")
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.headers["connection"] == "close"
    assert client.get("/health/live").status_code == 200
    assert client.get("/v2/health/live").json() == {"live": True}
    refused = {"model": "tiny", "reason": "shutting_down"}
    assert metric(client, "sentiment_rejections_total", **refused) == 1
    assert metric(client, "sentiment_model_ready", model="tiny") == 0


def test_much_text_is_tokenised_beside_the_event_loop(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor
) -> None:
    """During long tokenising others are answered, and the deadline counts from the start."""
    client = serve(deadline_ms=100)
    begun, go_on = threading.Event(), threading.Event()
    encode = InputTokenizer.encode_batch

    def slow(tokenizer: InputTokenizer, texts: list[str], **limits: Any) -> list[Any]:
        if len(texts[0]) > 1_000:
            begun.set()
            assert go_on.wait(30)
        return encode(tokenizer, texts, **limits)

    monkeypatch.setattr(InputTokenizer, "encode_batch", slow)
    large = pool.submit(_post, client, "love " * 5_000)
    assert begun.wait(30)
    assert _post(client, "love").status_code == 200
    late = large.result()
    assert (late.status_code, late.json()["code"]) == (504, "deadline_exceeded")
    go_on.set()


def test_the_event_loops_lag_is_measured(client: TestClient) -> None:
    """The lag is measured once per batch: from the batch's end until the event loop answers it."""
    for _ in range(3):
        assert _post(client, "love").status_code == 200
    assert metric(client, "sentiment_event_loop_lag_seconds_count", model="tiny") == 3
    assert metric(client, "sentiment_event_loop_lag_seconds_sum", model="tiny") < 1


def test_a_lists_own_computing_is_no_waiting(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an idle server, a list of many batches has no queue time, in header and metrics."""
    infer = Model.infer

    def slow(model: Model, encodings: Any) -> Any:
        time.sleep(0.02)
        return infer(model, encodings)

    client = serve(runners=1, max_batch_tokens=32)
    monkeypatch.setattr(Model, "infer", slow)
    answer = _post(client, different_texts(80))  # twenty batches
    stages = dict(re.findall(r"(\w+);dur=([0-9.]+)", answer.headers["server-timing"]))
    assert float(stages["inference"]) >= 200
    assert float(stages["queue"]) < float(stages["inference"]) / 2
    for stage in ("queue", "inference"):
        labels = {"model": "tiny", "stage": stage}
        seconds = metric(client, "sentiment_stage_duration_seconds_sum", **labels)
        assert seconds * 1000 == pytest.approx(float(stages[stage]), abs=0.01)
