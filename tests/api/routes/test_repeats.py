"""Texts that come again, with the cache (--cache-mb)."""

import gc
import json
import weakref
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient
from sentiment_service.engine import classifier
from sentiment_service.engine.batching.fair_queue import Admission
from sentiment_service.errors import Overloaded

from tests.conftest import Serve
from tests.support.serving import Gate, eventually, metric
from tests.support.tiny_bundle import make_bundle

LONG = "love it " * 600  # tokenised on the thread, beside the event loop


def _post(client: httpx2.Client, inputs: str | list[str], **body: Any) -> httpx2.Response:
    return client.post("/classify", json={"inputs": inputs, **body})


def _lookups(client: TestClient, model: str = "tiny") -> tuple[float, float]:
    names = ("sentiment_cache_hits_total", "sentiment_cache_misses_total")
    hits, misses = (metric(client, name, model=model) for name in names)
    return hits, misses


def test_a_cached_answer_is_the_computed_one(serve: Serve, gate: Gate) -> None:
    """The answer from the cache has the same bytes as the computed one, with or without cache."""
    cached, plain = serve(cache_mb=1), serve()
    inputs = ["love", "worst it is", "love", "", "love " * 20]
    expected = _post(plain, inputs).content
    assert _post(cached, inputs).content == expected
    gate.fails = True
    again = _post(cached, inputs)
    assert again.content == expected
    assert again.headers["server-timing"].endswith("queue;dur=0.00, inference;dur=0.00")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/classify", {"inputs": "love it. it is the worst. " * 4, "overflow": "window"}),
        ("/classify", {"inputs": "love it. it is the worst.", "split": "sentences"}),
        ("/classify/stream", {"text": "love"}),
        ("/explain", {"inputs": "love it now"}),
        ("/", {"inputs": "love"}),
        ("/predict", {"inputs": ["love", "worst"]}),
        ("/v1/classify", {"model": "tiny", "input": "love"}),
        (
            "/v2/models/tiny/infer",
            {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["love"]}]},
        ),
    ],
)
def test_every_route_uses_the_cache(
    serve: Serve, gate: Gate, path: str, body: dict[str, Any]
) -> None:
    """A request that comes again computes nothing, whatever its route, windows or sentences."""
    client = serve(cache_mb=1)
    media_type = "application/x-ndjson" if path.endswith("stream") else "application/json"
    for gate.fails in (False, True):
        answer = client.post(path, content=json.dumps(body), headers={"content-type": media_type})
        assert answer.status_code == 200
        assert "error" not in answer.text
    hits, misses = _lookups(client)
    assert hits == misses > 0


@pytest.mark.parametrize("inputs", ["love", LONG])
def test_known_texts_need_no_room(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, inputs: str
) -> None:
    """Known texts, short or long, are answered when nothing is admitted; others get 429."""
    client = serve(cache_mb=1)
    expected = _post(client, inputs).content

    def refuse(*arguments: Any, **options: Any) -> None:
        raise Overloaded("full", reason="queue_full", retry_after_s=1.0)

    monkeypatch.setattr(Admission, "check", refuse)
    assert _post(client, inputs).content == expected
    for new in ("worst", [inputs, "worst"]):
        assert _post(client, new).status_code == 429


def test_without_a_cache_nothing_is_kept(
    serve: Serve, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default, no digest is computed, each text is computed, and a full queue refuses it."""
    monkeypatch.setattr(classifier, "blake2b", None)
    client = serve(runners=1)
    before = len(gate.seen)
    for _ in range(3):
        assert _post(client, "love").status_code == 200
    assert len(gate.seen) == before + 3
    assert _lookups(client) == (0, 0)
    assert metric(client, "sentiment_cache_bytes", model="tiny") == 0
    assert client.get("/info").json()["limits"]["cache_mb"] == 0


def test_what_stops_refuses_known_texts_too(serve: Serve) -> None:
    """When the service stops, a text in the cache gets 503 like any other."""
    client = serve(cache_mb=1)
    assert _post(client, "love").status_code == 200
    client.app.state.service.lifecycle.stop()  # type: ignore[attr-defined]
    refused = _post(client, "love")
    assert (refused.status_code, refused.json()["code"]) == (503, "shutting_down")


def test_readiness_is_tested_by_computing(serve: Serve, gate: Gate) -> None:
    """Known texts are answered while inference fails, but they do not make the service ready."""
    client = serve(cache_mb=1)
    assert _post(client, ["love", "ready?"]).status_code == 200
    gate.fails = True
    for text in ("love love", "love worst", "worst"):
        assert _post(client, text).status_code == 500
    assert _post(client, ["love", "ready?"]).status_code == 200
    assert client.get("/health/ready").status_code == 503


def test_a_reload_empties_the_cache(serve: Serve, gate: Gate) -> None:
    """After a reload, texts are computed by the new model, and the old results are freed."""
    client = serve(cache_mb=1, admin_keys="admin-key-1")
    _post(client, "love")
    old = weakref.ref(client.app.state.service.models.classifiers.of(None)._cache)  # type: ignore[attr-defined]
    assert metric(client, "sentiment_cache_bytes", model="tiny") > 0
    admin = {"authorization": "Bearer admin-key-1"}
    assert client.post("/models/tiny/reload", headers=admin).status_code == 200
    assert metric(client, "sentiment_cache_bytes", model="tiny") == 0
    before = len(gate.seen)
    _post(client, "love")
    assert len(gate.seen) == before + 1
    assert _lookups(client) == (0, 2)
    eventually(lambda: gc.collect() >= 0 and old() is None)


def test_each_model_has_its_own_cache(serve: Serve, bundle: Path, tmp_path: Path) -> None:
    """A text that one model knows is computed by the other one, and counted there."""
    other = make_bundle(tmp_path / "other", name="other")
    client = serve(model=(bundle, other), cache_mb=1)
    for model in ("tiny", "other", "other"):
        assert _post(client, "love", model=model).json()["model"]["name"] == model
    assert _lookups(client, "tiny") == (0, 1)
    assert _lookups(client, "other") == (1, 1)


def test_lookups_are_counted(serve: Serve) -> None:
    """Texts are counted as hits and misses, and answered texts as before; bytes can be seen."""
    client = serve(cache_mb=2)
    assert _lookups(client) == (0, 0)
    for inputs in (["love", "worst"], ["love", "", "it"]):
        _post(client, inputs)
    assert _lookups(client) == (1, 3)
    assert metric(client, "sentiment_texts_total", model="tiny", outcome="ok") == 4
    assert metric(client, "sentiment_batch_texts_sum", model="tiny") == 3
    size = metric(client, "sentiment_cache_bytes", model="tiny")
    assert 0 < size < 3_000
    assert client.get("/info").json()["limits"]["cache_mb"] == 2
