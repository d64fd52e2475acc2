"""The name under which a model is served."""

from pathlib import Path

from tests.conftest import Serve
from tests.support.serving import metric
from tests.support.tiny_bundle import make_bundle

ADMIN = {"authorization": "Bearer admin-key-1"}


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
