"""Faults inside the service: in inference, and in the clock."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from tests.conftest import FLAGS, Serve
from tests.support.serving import Gate, Process, before_inference, eventually, metric

DAY_S = 86_400.0

# Inference that breaks on texts with two words "worst" or more; its token is 5.
FAULTY_COMMAND = before_inference(
    """
    counts = {encoding.ids.count(5) for encoding in encodings}
    if 2 in counts:
        raise SystemExit("a secret")
    if 3 in counts:
        raise MemoryError("a secret")
    if 4 in counts:
        return infer(self, encodings)[1:]
"""
)


@pytest.fixture(scope="module")
def faulty(bundle: Path) -> Iterator[httpx2.Client]:
    """A client of a real server with the given faulty inference."""
    with Process("--model", str(bundle), *FLAGS, command=FAULTY_COMMAND) as process:
        yield process.client


@pytest.mark.parametrize(
    ("culprit", "status", "code"),
    [
        pytest.param("worst worst", 500, "inference_failed", id="SystemExit"),
        pytest.param("worst " * 4, 500, "inference_failed", id="a row too few"),
        pytest.param("nan", 500, "inference_failed", id="NaN"),
        pytest.param("worst " * 3, 507, "out_of_memory", id="MemoryError"),
    ],
)
def test_inference_that_breaks_on_a_text_fails_that_text(
    faulty: httpx2.Client, culprit: str, status: int, code: str
) -> None:
    """The text gets 500 or 507, alone or in its place; the process stays alive and ready."""
    texts = ["love", "worst", "love", culprit, "worst", "love"]
    answer = faulty.post("/classify", json={"inputs": texts})
    assert answer.status_code == 200
    found = [item.get("label") or item["error"]["code"] for item in answer.json()["results"]]
    expected = {"love": "positive", "worst": "negative", culprit: code}
    assert found == [expected[text] for text in texts]
    alone = faulty.post("/classify", json={"inputs": culprit})
    assert (alone.status_code, alone.json()["code"]) == (status, code)
    assert "secret" not in alone.text
    assert faulty.post("/classify", json={"inputs": "love"}).status_code == 200
    assert faulty.get("/health/ready").status_code == 200


@pytest.mark.parametrize("jump_s", [-DAY_S, DAY_S], ids=["back", "forward"])
def test_a_clock_that_jumps_moves_no_deadline(
    serve: Serve, gate: Gate, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    """After a jump of the clock, requests are answered as before, and late ones still get 504."""
    client = serve(runners=1)
    now, now_ns = time.time, time.time_ns
    with ThreadPoolExecutor(2) as pool:
        gate.close()
        running = pool.submit(client.post, "/classify", json={"inputs": "love"})
        assert gate.reached.wait(30)
        waiting = pool.submit(client.post, "/classify", json={"inputs": "worst"})
        eventually(lambda: metric(client, "sentiment_queue_texts", model="tiny") == 1)
        monkeypatch.setattr(time, "time", lambda: now() + jump_s)
        monkeypatch.setattr(time, "time_ns", lambda: now_ns() + int(jump_s * 1e9))
        gate.open.set()
        assert running.result().status_code == 200
        assert waiting.result().status_code == 200
    assert client.post("/classify", json={"inputs": "love"}).status_code == 200
    gate.close()
    headers = {"x-request-timeout-ms": "100"}
    late = client.post("/classify", json={"inputs": "love"}, headers=headers)
    assert (late.status_code, late.json()["code"]) == (504, "deadline_exceeded")
