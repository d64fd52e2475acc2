"""Runners of a real process hang or fail: what clients, probes and metrics show."""

import json
import signal
from pathlib import Path

import httpx2
import pytest

from tests.conftest import Start
from tests.support.serving import Process, eventually, metric, patched

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
