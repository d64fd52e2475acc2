"""{"instances": […]} on the routes of Vertex AI and KServe V1, and where TEI's clients ask."""

import pytest
from fastapi.testclient import TestClient
from openai import OpenAI
from sentiment_service.errors import UserError

from tests.conftest import Serve


def test_openai_finds_the_same_model(client: TestClient) -> None:
    """OpenAI's client gets a model from the route that KServe asks."""
    openai = OpenAI(base_url="http://testserver/v1", api_key="none", http_client=client)
    assert openai.models.retrieve("tiny").id == "tiny"


def test_vertex_chooses_its_routes(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its health route needs no key and is empty; its predict route needs one like any other."""
    monkeypatch.setenv("AIP_HEALTH_ROUTE", "/v1/endpoints/7/deployedModels/8")
    monkeypatch.setenv("AIP_PREDICT_ROUTE", "/v1/endpoints/7/deployedModels/8:predict")
    client = serve(api_keys="a-key-for-tests")
    health = client.get("/v1/endpoints/7/deployedModels/8")
    assert (health.status_code, health.content) == (200, b"")
    path, body = "/v1/endpoints/7/deployedModels/8:predict", {"instances": ["love"]}
    assert client.post(path, json=body).status_code == 401
    key = {"authorization": "Bearer a-key-for-tests"}
    (prediction,) = client.post(path, json=body, headers=key).json()["predictions"]
    assert prediction["label"] == "positive"


@pytest.mark.parametrize("path", ["/v2/models/tiny/infer", "/mine"])
def test_a_health_route_opens_no_other_method(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """If it is the path of a route that classifies, that route still needs a key."""
    monkeypatch.setenv("AIP_HEALTH_ROUTE", path)
    monkeypatch.setenv("AIP_PREDICT_ROUTE", "/mine")
    client = serve(api_keys="a-key-for-tests")
    assert client.get(path).status_code == 200
    assert client.post(path, json={}).status_code == 401


def test_vertex_may_choose_a_route_that_is_there(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Health and predict routes that answer already stay as they are."""
    monkeypatch.setenv("AIP_HEALTH_ROUTE", "/health")
    monkeypatch.setenv("AIP_PREDICT_ROUTE", "/predict")
    client = serve()
    assert client.get("/health").json() == {"status": "ready"}
    assert "predictions" in client.post("/predict", json={"instances": ["love"]}).json()


def test_a_chosen_route_answers_where_a_route_with_a_name_matches(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a key, the health route tells the health and not what the other route would tell."""
    monkeypatch.setenv("AIP_HEALTH_ROUTE", "/v2/models/tiny")
    monkeypatch.setenv("AIP_PREDICT_ROUTE", "/v2/models/tiny/infer")
    client = serve(api_keys="a-key-for-tests")
    health = client.get("/v2/models/tiny")
    assert (health.status_code, health.content) == (200, b"")
    key = {"authorization": "Bearer a-key-for-tests"}
    answer = client.post("/v2/models/tiny/infer", json={"instances": ["love"]}, headers=key)
    assert len(answer.json()["predictions"]) == 1


def test_a_predict_route_for_admins_is_refused(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request to a path of a reload would need an admin key; the start fails and says so."""
    monkeypatch.setenv("AIP_PREDICT_ROUTE", "/models/mine/reload")
    with pytest.raises(UserError, match=r"^AIP_PREDICT_ROUTE: /models/mine/reload needs an admin"):
        serve()


@pytest.mark.parametrize(
    ("name", "path"), [("AIP_PREDICT_ROUTE", "/classify"), ("AIP_HEALTH_ROUTE", "/models")]
)
def test_a_route_with_another_purpose_is_refused(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, name: str, path: str
) -> None:
    """The start fails with the variable's name and the path."""
    monkeypatch.setenv(name, path)
    with pytest.raises(UserError, match=f"^{name}: {path} is another route; choose another path"):
        serve()
