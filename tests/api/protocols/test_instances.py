"""{"instances": […]} on the routes of Vertex AI and KServe V1, and where TEI's clients ask."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from openai import OpenAI

from app.errors import UserError
from tests.conftest import Serve
from tests.support.serving import metric

V1 = "/v1/models/tiny:predict"
MIXED = ["love", {"text": "worst"}, {"inputs": "it", "id": 7}, {"content": "love"}]


@pytest.mark.parametrize("path", [V1, "/predict", "/invocations"])
def test_instances_are_texts_or_objects_with_a_text(client: TestClient, path: str) -> None:
    """Each instance has the native result, in its place, on each of the routes."""
    answer = client.post(path, json={"instances": MIXED, "parameters": {"threshold": 1}})
    assert answer.status_code == 200, answer.text
    native = client.post("/classify", json={"inputs": ["love", "worst", "it", "love"]}).json()
    assert answer.json() == {"predictions": native["results"]}
    assert "inference;dur=" in answer.headers["server-timing"]


def test_a_bad_instance_fails_alone(client: TestClient) -> None:
    """Its error is in its place, and the other instances have their results."""
    predictions = client.post(V1, json={"instances": ["love", " ", "it"]}).json()["predictions"]
    assert [one.get("label") for one in predictions] == ["positive", None, "neutral"]
    assert predictions[1]["error"]["code"] == "empty_text"
    (only,) = client.post(V1, json={"instances": [""]}).json()["predictions"]
    assert only["error"]["code"] == "empty_text"


def test_a_pair_is_judged_as_a_whole(client: TestClient) -> None:
    """A model of single texts refuses a pair; it does not classify its first text alone."""
    pair = {"text": "love", "text_pair": "it"}
    native = client.post("/classify", json={"inputs": [pair, "it"]}).json()["results"]
    assert "error" in native[0]
    assert client.post(V1, json={"instances": [pair, "it"]}).json() == {"predictions": native}


def test_overflow_is_a_parameter(client: TestClient) -> None:
    """A long text is truncated, or refused in its place."""
    body = {"instances": ["it " * 20], "parameters": None}
    assert client.post(V1, json=body).json()["predictions"][0]["truncated"]
    refused = client.post(V1, json=body | {"parameters": {"overflow": "error"}}).json()
    assert refused["predictions"][0]["error"]["code"] == "text_too_long"


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        ({}, "invalid_request", "instances is required"),
        ({"instances": []}, "invalid_request", "instances must be a list of at least one text"),
        ({"instances": "love"}, "invalid_request", "instances must be a list of at least one text"),
        ({"instances": ["a", 1]}, "invalid_request", "instances item 1, counted from 0, must be"),
        ({"instances": [{"x": "a"}]}, "invalid_request", "one of the fields text, inputs, content"),
        ({"instances": [{"text": "a", "text_pair": 1}]}, "invalid_request", "instances item 0"),
        ({"instances": [{"text": None}]}, "invalid_request", "instances item 0, counted from 0"),
        ({"instances": ["a"], "parameters": []}, "invalid_request", "parameters must be an object"),
        (
            {"instances": ["a"], "parameters": {"overflow": "cut"}},
            "invalid_request",
            "parameters.overflow must be 'truncate', 'error' or 'window'",
        ),
        ({"instances": ["a"] * 1001}, "too_many_texts", "there are 1001 texts; at most 1000"),
    ],
)
def test_bad_requests_say_what_is_accepted(
    client: TestClient, body: Any, code: str, says: str
) -> None:
    """The error names the field and what it must be."""
    answer = client.post(V1, json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, code)
    assert says in answer.json()["detail"]


def test_tei_and_vertex_share_a_route(client: TestClient) -> None:
    """On /predict, a body with inputs is TEI's, and its errors have TEI's type."""
    assert client.post("/predict", json={"inputs": "love"}).json()[0]["label"] == "positive"
    error = client.post("/predict", json={"instances": 1}).json()
    assert (error["code"], error["error_type"]) == ("invalid_request", "Validation")


def test_kserve_finds_its_model(client: TestClient) -> None:
    """The list has the names, the model says that it is ready, and other names give 404."""
    assert client.get("/v1/models").json()["models"] == ["tiny"]
    status = client.get("/v1/models/tiny").json()
    assert (status["name"], status["ready"]) == ("tiny", True)
    assert client.get("/v1/models/other").status_code == 404
    answer = client.post("/v1/models/other:predict", json={"instances": ["love"]})
    assert (answer.status_code, answer.json()["code"]) == (404, "model_not_found")
    assert metric(
        client,
        "sentiment_http_requests_total",
        route="/v1/models/{name}:predict",
        method="POST",
        status="404",
    )


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
    assert path in client.get("/openapi.json").json()["paths"]


def test_a_health_route_opens_no_other_method(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it is the path of a route that classifies, that route still needs a key."""
    monkeypatch.setenv("AIP_HEALTH_ROUTE", "/v2/models/tiny/infer")
    client = serve(api_keys="a-key-for-tests")
    assert client.get("/v2/models/tiny/infer").status_code == 200
    assert client.post("/v2/models/tiny/infer", json={}).status_code == 401


def test_vertex_may_choose_a_route_that_is_there(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Health and predict routes that answer already stay as they are."""
    monkeypatch.setenv("AIP_HEALTH_ROUTE", "/health")
    monkeypatch.setenv("AIP_PREDICT_ROUTE", "/predict")
    client = serve()
    assert client.get("/health").json() == {"status": "ready"}
    assert "predictions" in client.post("/predict", json={"instances": ["love"]}).json()


@pytest.mark.parametrize(
    ("name", "path"), [("AIP_PREDICT_ROUTE", "/classify"), ("AIP_HEALTH_ROUTE", "/models")]
)
def test_a_route_with_another_purpose_is_refused(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, name: str, path: str
) -> None:
    """The start fails with the variable's name and a path that can be used."""
    monkeypatch.setenv(name, path)
    with pytest.raises(UserError, match=f"^{name}: {path} is another route; use /"):
        serve()
