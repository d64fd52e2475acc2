"""The session raises what ONNX Runtime raises on a GPU: what clients, probes and metrics show."""

import json
import math
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

import grpc
import httpx2
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sentiment_service.adapters.grpc.messages import METHODS
from sentiment_service.engine.model.model import Model

from benchmarks.service import free_port
from tests.conftest import Serve, Start
from tests.engine.model.test_device_errors import ARENA_MEMORY, ILLEGAL_ADDRESS
from tests.support.reloads import reload
from tests.support.serving import metric, patched
from tests.support.streams import NDJSON
from tests.support.tiny_bundle import different_texts, make_bundle

MODEL = {"model": "tiny"}

LIVE = ("/health/live", "/v2/health/live")
READY = ("/health", "/health/ready", "/v2/health/ready", "/v2/models/tiny/ready")
TEXTS = different_texts(40)  # of 8 tokens each

# The session raises the text in a file named `fault`, once that lies in the directory.
LOSING = """
from pathlib import Path
import onnxruntime
fault = Path(sys.argv.pop(1)) / "fault"
run = onnxruntime.InferenceSession.run
def losing(self, *arguments):
    if fault.exists():
        raise RuntimeError(fault.read_text())
    return run(self, *arguments)
onnxruntime.InferenceSession.run = losing
"""


class Session:
    """Stands in for a model's session. Larger batches than ``fits`` raise ``text``."""

    def __init__(self, client: TestClient, model: str | None = None) -> None:
        served = cast(FastAPI, client.app).state.service.models.classifiers.of(model).model
        self._session, served.session = served.session, self
        self.text = ARENA_MEMORY
        self.fits = math.inf  # padded tokens
        self.calls: list[int] = []

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Any], options: object) -> Any:
        self.calls.append(feeds["input_ids"].size)
        if self.calls[-1] > self.fits:
            raise RuntimeError(self.text)
        return self._session.run(names, feeds, options)


def _post(client: httpx2.Client, inputs: str | list[str], **fields: str) -> httpx2.Response:
    return client.post("/classify", json={"inputs": inputs, **fields})


def _statuses(client: httpx2.Client, paths: Sequence[str]) -> set[int]:
    return {client.get(path).status_code for path in paths}


def test_memory_that_runs_out_costs_no_text(serve: Serve) -> None:
    """A batch that does not fit is computed in parts, and later ones are smaller, until a restart.

    A reload keeps the lowered budget. ``/info`` and ``/models`` show it, and a metric counts.
    """
    client = serve(runners=1, max_batch_tokens=320, admin_keys="admin-key-1")
    expected = _post(client, TEXTS).json()
    session = Session(client)
    session.fits = 80
    assert metric(client, "sentiment_out_of_memory_total", **MODEL) == 0
    assert _post(client, TEXTS).json() == expected
    assert max(session.calls) == 320
    assert metric(client, "sentiment_out_of_memory_total", **MODEL) == 1

    session.calls.clear()
    assert _post(client, TEXTS).json() == expected
    assert session.calls == [80] * 4
    assert metric(client, "sentiment_out_of_memory_total", **MODEL) == 1
    assert _statuses(client, READY + LIVE) == {200}

    assert reload(client).status_code == 200
    assert client.get("/info").json()["limits"]["max_batch_tokens"] == 80
    tuning = client.get("/models").json()["models"][0]["tuning"]
    assert "at most 80 tokens a batch (lowered from 320, because the memory ran out)" in tuning


def test_a_text_too_long_for_the_memory_fails_alone(serve: Serve) -> None:
    """It gets 507 in the form of each API, and in its place in a list; the service stays ready."""
    client = serve()
    session = Session(client)
    session.fits = 8
    long = "it " * 10
    alone = _post(client, long)
    assert (alone.status_code, alone.json()["code"]) == (507, "out_of_memory")
    assert "too little memory" in alone.json()["detail"]
    assert "onnxruntime" not in alone.text
    results = _post(client, ["love", long, "worst"]).json()["results"]
    assert [item.get("label") or item["error"]["code"] for item in results] == [
        "positive",
        "out_of_memory",
        "negative",
    ]
    assert client.post("/predict", json={"inputs": long}).json()["error_type"] == "Backend"
    assert metric(client, "sentiment_texts_total", outcome="out_of_memory", **MODEL) == 3
    assert _statuses(client, READY + LIVE) == {200}


def test_a_reload_without_memory_for_both_models(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It gets 507, since the bundle is not at fault; the old model stays, and the log says why."""
    client = serve(admin_keys="admin-key-1")

    def full(*_: object, **__: object) -> NoReturn:
        raise RuntimeError(ARENA_MEMORY)

    monkeypatch.setattr("onnxruntime.InferenceSession", full)
    answer = reload(client)
    assert (answer.status_code, answer.json()["code"]) == (507, "out_of_memory")
    assert "the old one stays" in answer.json()["detail"]
    assert "Failed to allocate memory" in caplog.text
    assert _post(client, "love").json()["results"][0]["label"] == "positive"
    assert _statuses(client, READY + LIVE) == {200}


def test_a_lost_gpu_ends_the_process_life(
    serve: Serve, bundle: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its texts fail with one call, later requests at once; no probe tries the GPU again.

    Liveness and readiness of the process fail, although another model still answers. A reload says
    why it cannot help.
    """
    other = make_bundle(tmp_path / "other", name="other")
    client = serve(model=(bundle, other), runners=1, admin_keys="admin-key-1")
    session = Session(client)
    session.fits, session.text = 0, ILLEGAL_ADDRESS
    assert metric(client, "sentiment_device_lost", **MODEL) == 0
    lost = _post(client, TEXTS)
    assert (lost.status_code, lost.json()["code"]) == (503, "not_ready")
    assert "CUDA error 700: an illegal memory access was encountered" in lost.text
    assert "secret-host" not in lost.text
    refused = _post(client, "love")
    assert (refused.status_code, refused.json()["code"]) == (503, "not_ready")
    assert int(refused.headers["retry-after"]) >= 1
    content = b'{"id": 1, "text": "love"}\n'
    line = client.post("/classify/stream", content=content, headers=NDJSON)
    assert json.loads(line.text)["error"]["code"] == "not_ready"

    for _ in range(3):
        assert _statuses(client, LIVE + READY) == {503}
    assert "only a restart" in client.get("/health/live").json()["detail"]
    answer = reload(client)
    assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
    assert "only a restart" in answer.json()["detail"]
    assert len(session.calls) == 1
    assert _post(client, "love", model="other").json()["results"][0]["label"] == "positive"
    assert client.get("/v2/models/other/ready").status_code == 200
    assert metric(client, "sentiment_device_lost", **MODEL) == 1
    assert metric(client, "sentiment_device_lost", model="other") == 0
    assert metric(client, "sentiment_model_ready", **MODEL) == 0
    assert metric(client, "sentiment_model_ready", model="other") == 1
    assert [record.levelname for record in caplog.records].count("CRITICAL") == 1


def test_a_reload_that_finds_the_gpu_lost(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so, and does not blame the bundle; the old model stays."""
    client = serve(admin_keys="admin-key-1")
    before = _post(client, "love").json()
    with monkeypatch.context() as patch:
        patch.setattr(Model, "infer", lambda *_: raise_error(RuntimeError(ILLEGAL_ADDRESS)))
        answer = reload(client)
    assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
    assert "CUDA error 700: an illegal memory access was encountered" in answer.json()["detail"]
    assert "secret-host" not in answer.text
    assert _post(client, "love").json() == before


def raise_error(error: Exception) -> NoReturn:
    """Raise it where a statement cannot stand."""
    raise error


def test_a_lost_gpu_in_a_real_process(start: Start, tmp_path: Path) -> None:
    """gRPC's health and liveness fail as well; SIGTERM still ends the process in order."""
    port = free_port()
    process = start("--grpc-port", str(port), command=patched(LOSING, str(tmp_path)))
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        check = "/grpc.health.v1.Health/Check"
        live = "/inference.GRPCInferenceService/ServerLive"
        assert (_call(channel, check).status, _call(channel, live).live) == (1, True)
        (tmp_path / "fault").write_text(ILLEGAL_ADDRESS)
        assert _post(process.client, "love").status_code == 503
        assert (_call(channel, check).status, _call(channel, live).live) == (2, False)
        assert _statuses(process.client, LIVE + READY) == {503}
        process.signal(signal.SIGTERM)
        code, log = process.wait()
    assert code == 0
    entries = [json.loads(line) for line in log.splitlines()]
    [entry] = [entry for entry in entries if entry["level"] == "critical"]
    assert "CUDA error 700" in entry["message"]
    assert "only a restart of the service helps" in entry["message"]


def _call(channel: grpc.Channel, path: str) -> Any:
    call = channel.unary_unary(path, response_deserializer=METHODS[path].response.FromString)
    return call(METHODS[path].request().SerializeToString(), timeout=20)
