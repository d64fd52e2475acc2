"""Faults inside the service: runners that hang or fail, inference that breaks, the clock."""

import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from tests.conftest import FLAGS, Serve, Start
from tests.support.serving import Gate, Process, before_inference, eventually, metric, patched

MODEL = {"model": "tiny"}
LIVE = ("/health/live", "/v2/health/live")
READY = ("/health", "/health/ready", "/v2/health/ready", "/v2/models/tiny/ready")

# Inference on "worst" does not return while a file named `fault` lies in the directory.
HANGING = """
from pathlib import Path
from sentiment_service.engine.batching import runners
from sentiment_service.engine.model.model import Model
runners.WATCH = runners.Watch(stuck_s=0.5, look_s=0.1)
fault = Path(sys.argv.pop(1)) / "fault"
infer = Model.infer
def hanging(self, encodings):
    worst = self.tokenizer.encode("worst").ids
    while fault.exists() and worst in [encoding.ids for encoding in encodings]:
        time.sleep(0.02)
    return infer(self, encodings)
Model.infer = hanging
"""

# Taking a batch raises MemoryError three times, and while `fault` lies in the directory.
FAILING = """
from pathlib import Path
from sentiment_service.engine.batching import runners
from sentiment_service.engine.batching.fair_queue import FairQueue
runners.WATCH = runners.Watch(pause_s=0.1)
fault = Path(sys.argv.pop(1)) / "fault"
take_batch, faults = FairQueue.take_batch, iter(range(3))
def failing(self, **limits):
    if len(self) and (fault.exists() or next(faults, None) is not None):
        raise MemoryError
    return take_batch(self, **limits)
FairQueue.take_batch = failing
"""


@pytest.fixture
def fault(tmp_path: Path) -> Path:
    """The file whose presence causes the fault."""
    return tmp_path / "fault"


@pytest.fixture
def process(request: pytest.FixtureRequest, start: Start, tmp_path: Path) -> Process:
    """The service with two runners and a fault."""
    return start("--deadline-ms", "60000", command=patched(request.param, str(tmp_path)))


@pytest.fixture
def client(process: Process) -> httpx2.Client:
    return process.client


def _post(client: httpx2.Client, inputs: str | list[str]) -> httpx2.Response:
    return client.post("/classify", json={"inputs": inputs})


def _codes(client: httpx2.Client, paths: tuple[str, ...]) -> set[tuple[int, str | None]]:
    answers = [client.get(path) for path in paths]
    return {(answer.status_code, answer.json().get("code")) for answer in answers}


OK, NOT_READY = {(200, None)}, {(503, "not_ready")}


@pytest.mark.parametrize("process", [HANGING], indirect=True)
def test_runners_that_hang(process: Process, client: httpx2.Client, fault: Path) -> None:
    """One of two hangs: unready, alive, others are answered. Both hang: not alive, errors at once.

    A text that hangs gets its error long before its deadline, also in a stream. Each stalled batch
    is counted. When the runners return, everything works again.
    """
    assert _post(client, ["love", "worst"]).status_code == 200
    fault.touch()
    stuck = _post(client, "worst")
    assert (stuck.status_code, stuck.json()["code"]) == (500, "inference_failed")
    assert (_codes(client, LIVE), _codes(client, READY)) == (OK, NOT_READY)
    assert metric(client, "sentiment_model_ready", **MODEL) == 0
    assert metric(client, "sentiment_runners_stuck", **MODEL) == 1
    assert metric(client, "sentiment_stalled_batches_total", **MODEL) == 1
    assert _post(client, "love").json()["results"][0]["label"] == "positive"

    lines = b'{"id": 1, "text": "worst"}\n'
    headers = {"content-type": "application/x-ndjson"}
    streamed = client.post("/classify/stream", content=lines, headers=headers)
    assert json.loads(streamed.text)["error"]["code"] == "inference_failed"
    assert (_codes(client, LIVE), _codes(client, READY)) == (NOT_READY, NOT_READY)
    assert metric(client, "sentiment_runners_stuck", **MODEL) == 2
    refused = _post(client, "love")
    assert (refused.status_code, refused.json()["code"]) == (503, "not_ready")
    assert int(refused.headers["retry-after"]) >= 1
    assert metric(client, "sentiment_rejections_total", reason="not_ready", **MODEL) == 1

    fault.unlink()
    eventually(lambda: _codes(client, READY + LIVE) == OK)
    assert metric(client, "sentiment_model_ready", **MODEL) == 1
    assert metric(client, "sentiment_runners_stuck", **MODEL) == 0
    assert metric(client, "sentiment_stalled_batches_total", **MODEL) == 2
    assert _post(client, ["love", "worst"]).status_code == 200


@pytest.mark.parametrize("process", [FAILING], indirect=True)
def test_runners_that_fail(process: Process, client: httpx2.Client, fault: Path) -> None:
    """Each failure is counted and logged, the runner goes on, and the request is answered.

    If every runner fails again and again, clients get errors and probes fail; the service recovers
    by itself.
    """
    assert metric(client, "sentiment_runners_lost_total", **MODEL) == 0
    assert _post(client, ["love", "worst"]).status_code == 200
    # The other runner may answer before the last failure is logged and counted.
    eventually(lambda: metric(client, "sentiment_runners_lost_total", **MODEL) == 3)
    eventually(lambda: _codes(client, READY + LIVE) == OK)

    fault.touch()
    unanswered = _post(client, "love")
    assert (unanswered.status_code, unanswered.json()["code"]) == (503, "not_ready")
    assert (_codes(client, LIVE), _codes(client, READY)) == (NOT_READY, NOT_READY)
    assert metric(client, "sentiment_model_ready", **MODEL) == 0

    fault.unlink()
    eventually(lambda: _codes(client, READY) == OK)
    assert _codes(client, LIVE) == OK
    assert _post(client, "love").status_code == 200
    process.signal(signal.SIGTERM)
    code, log = process.wait()
    assert code == 0
    entries = map(json.loads, log.splitlines())
    lost = [entry for entry in entries if "it goes on in" in entry["message"]]
    assert len(lost) > 3
    assert all("MemoryError" in entry["exception"] for entry in lost)


# Inference that breaks, and the clock

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
