"""Extensions of the Open Inference Protocol, and the name under which a model is served."""

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.errors import NotReady
from tests.conftest import Serve
from tests.support.serving import metric
from tests.support.tiny_bundle import make_bundle

ADMIN = {"authorization": "Bearer admin-key-1"}
LOAD, UNLOAD = (f"/v2/repository/models/tiny/{what}" for what in ("load", "unload"))


def test_load_needs_an_admin_key_and_reloads(serve: Serve) -> None:
    """Without the key, 401; with it the bundle is loaded again, and a changed one is served."""
    client = serve(admin_keys="admin-key-1", api_keys="api-key-1")
    for path in (LOAD, UNLOAD):
        assert client.post(path, json={}).status_code == 401
        assert client.post(path, headers={"authorization": "Bearer api-key-1"}).status_code == 401
    for content in (b"", b"{}", b'{"parameters": {}}'):
        answer = client.post(LOAD, content=content, headers=ADMIN)
        assert (answer.status_code, answer.content) == (200, b"")
    other = client.post("/v2/repository/models/other/load", headers=ADMIN)
    assert other.json()["code"] == "model_not_found"


def test_what_a_repository_cannot_do_is_said(serve: Serve) -> None:
    """A model is not loaded from elsewhere, and not unloaded: 422, and it goes on answering."""
    client = serve(admin_keys="admin-key-1")
    bodies: list[Any] = [{"parameters": {"config": "{}"}}, []]
    for body in bodies:
        answer = client.post(LOAD, json=body, headers=ADMIN)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
        assert "without parameters" in answer.json()["detail"]
    answer = client.post(UNLOAD, json={}, headers=ADMIN)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert "load it again" in answer.json()["detail"]
    assert client.post("/classify", json={"inputs": "love"}).status_code == 200


def test_the_index_says_which_models_answer(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model is READY, or UNAVAILABLE with the reason."""
    assert client.get("/v2/models").json() == {"models": ["tiny"]}
    ready = {"name": "tiny", "version": "1", "state": "READY", "reason": ""}
    assert client.post("/v2/repository/index", json={"ready": True}).json() == [ready]

    async def fail(self: object) -> None:
        raise NotReady("inference keeps failing")

    monkeypatch.setattr("app.engine.health.Health.check_ready", fail)
    (item,) = client.post("/v2/repository/index").json()
    assert (item["state"], item["reason"]) == ("UNAVAILABLE", "inference keeps failing")


def test_statistics_count_what_was_computed(client: TestClient) -> None:
    """Texts, batches, requests and failed texts since the start, and the time of each stage."""
    client.post("/classify", json={"inputs": ["love", "worst", ""]})
    (stats,) = client.get("/v2/models/tiny/stats").json()["model_stats"]
    assert client.get("/v2/models/stats").json() == {"model_stats": [stats]}
    assert (stats["inference_count"], stats["inference_stats"]["fail"]["count"]) == (2, 1)
    assert stats["execution_count"] >= 1
    stages = stats["inference_stats"]
    assert stages["success"]["count"] == stages["compute_infer"]["count"] == 1
    parts = [stages[name]["ns"] for name in ("queue", "compute_input", "compute_infer")]
    assert stages["success"]["ns"] == sum(parts) > 0


def test_a_served_name_takes_the_place_of_the_bundles(serve: Serve) -> None:
    """Requests, answers and metrics know the model by it, also after a reload."""
    client = serve(served_name="sentiment", admin_keys="admin-key-1")
    for _ in range(2):
        answer = client.post("/v1/models/sentiment:predict", json={"instances": ["love"]})
        assert answer.status_code == 200
        assert client.post("/models/sentiment/reload", headers=ADMIN).status_code == 200
    assert client.get("/v2/models/tiny").status_code == 404
    assert [one["name"] for one in client.get("/models").json()["models"]] == ["sentiment"]
    assert metric(client, "sentiment_texts_total", model="sentiment", outcome="ok") == 2


def test_models_of_one_name_can_be_served_under_two(
    serve: Serve, bundle: Path, tmp_path: Path
) -> None:
    """The names belong to the models in their order."""
    other = make_bundle(tmp_path / "other")
    client = serve(model=(bundle, other), served_name=("a", "b"))
    assert [one["name"] for one in client.get("/models").json()["models"]] == ["a", "b"]
