"""POST /classify and the operations routes, as the API contract describes them."""

import json
import math
import re
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tests.conftest import Serve
from tests.support.serving import Gate
from tests.support.tiny_bundle import LABELS, MAX_TOKENS, make_bundle


def test_a_list_is_answered_in_its_order(client: TestClient) -> None:
    """The answers and headers to a list equal the contract's, word for word."""
    answer = client.post("/classify", json={"inputs": ["I love this!", "worst", "at 3pm"]})
    assert answer.status_code == 200
    document = answer.json()
    assert document["model"] == {"name": "tiny", "revision": "0123abc", "precision": "fp32"}
    assert document["labels"] == LABELS
    assert [result["label"] for result in document["results"]] == [
        "positive",
        "negative",
        "neutral",
    ]
    first = document["results"][0]
    assert first["logits"] == {"negative": -1.0, "neutral": 1.0, "positive": 4.0}
    assert first["scores"] == {
        label: pytest.approx(math.exp(logit) / sum(map(math.exp, first["logits"].values())))
        for label, logit in first["logits"].items()
    }
    assert first["score"] == first["scores"]["positive"]
    assert (first["tokens"], first["truncated"]) == (5, False)
    assert answer.headers["content-type"] == "application/json"
    timing = r"tokenize;dur=\d+\.\d+, queue;dur=\d+\.\d+, inference;dur=\d+\.\d+"
    assert re.fullmatch(timing, answer.headers["server-timing"])


def test_one_text_is_a_list_of_one_result(client: TestClient) -> None:
    """One text gets a list of one result: `results` is always a list."""
    results = client.post("/classify", json={"inputs": "love"}).json()["results"]
    assert [result["label"] for result in results] == ["positive"]


def test_two_texts_are_not_a_pair(client: TestClient) -> None:
    """A list of two texts gets two results; it is never taken for a pair."""
    results = client.post("/classify", json={"inputs": ["love", "worst"]}).json()["results"]
    assert [result["tokens"] for result in results] == [3, 3]


def test_a_bad_text_fails_alone_in_its_place(client: TestClient) -> None:
    """If one text is bad, the others are answered, and the bad text is never repeated."""
    bad = {
        "": "empty_text",
        " \n": "empty_text",
        "secret\0": "invalid_request",
        "secret\ud800": "invalid_request",
        "nan": "inference_failed",
        "secret" * 10_000: "text_too_long",
    }
    body = json.dumps({"inputs": ["love", *bad, "worst"]})
    answer = client.post("/classify", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 200
    first, *failed, last = answer.json()["results"]
    assert (first["label"], last["label"]) == ("positive", "negative")
    assert [result["error"]["code"] for result in failed] == list(bad.values())
    assert all(set(result["error"]) == {"code", "message"} for result in failed)
    assert "secret" not in answer.text


def test_a_long_text_is_truncated_and_says_so(client: TestClient) -> None:
    """A long text is marked as truncated; `tokens` counts all tokens, special ones included."""
    (result,) = client.post("/classify", json={"inputs": "love " * 20}).json()["results"]
    assert (result["tokens"], result["truncated"]) == (22, True)
    assert result["logits"]["positive"] == 4.0 * (MAX_TOKENS - 2)


def test_overflow_error_refuses_a_long_text(client: TestClient) -> None:
    """With "overflow": "error", a long text is refused instead of truncated."""
    answer = client.post("/classify", json={"inputs": "love " * 20, "overflow": "error"})
    assert (answer.status_code, answer.json()["code"]) == (422, "text_too_long")
    assert "22 tokens" in answer.json()["detail"]
    assert str(MAX_TOKENS) in answer.json()["detail"]


def test_texts_beyond_the_inline_limit_are_answered_alike(client: TestClient) -> None:
    """A request that is tokenised in the thread gets the same answer as small requests get."""
    texts = ["love " * 500, "", "worst"] * 20
    large = client.post("/classify", json={"inputs": texts}).json()["results"]
    assert large == client.post("/classify", json={"inputs": texts[:3]}).json()["results"] * 20


def test_models_are_chosen_by_name(serve: Serve, bundle: Path, tmp_path: Path) -> None:
    """With several bundles, the first answers by default, and each answers to its name."""
    client = serve(model=(bundle, make_bundle(tmp_path / "b", name="other")))
    names = [
        client.post("/classify", json={"inputs": "love", **choice}).json()["model"]["name"]
        for choice in ({}, {"model": "tiny"}, {"model": "other"})
    ]
    assert names == ["tiny", "tiny", "other"]
    assert [model["name"] for model in client.get("/models").json()["models"]] == ["tiny", "other"]


@pytest.mark.parametrize("sent", ["abc-123", "x" * 128])
@pytest.mark.parametrize("path", ["/classify", "/health", "/nowhere", "/metrics", "/docs"])
def test_a_request_id_is_echoed(client: TestClient, path: str, sent: str) -> None:
    """Every answer, errors included, has the client's request id."""
    assert client.get(path, headers={"x-request-id": sent}).headers["x-request-id"] == sent


@pytest.mark.parametrize("sent", [None, "", "x" * 129, "a b", "caf\xe9"])
def test_an_id_is_made_where_none_is_sane(client: TestClient, sent: str | None) -> None:
    """An invalid request id is replaced, in headers and in logs; problems repeat the new id."""
    headers = {} if sent is None else {b"x-request-id": sent.encode("latin-1")}
    answer = client.get("/nowhere", headers=headers)
    assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])
    assert answer.json()["request_id"] == answer.headers["x-request-id"]


def test_info_says_what_runs(serve: Serve) -> None:
    """/info shows versions, the device in use and the limits in force."""
    info = serve(max_texts=7, runners=3, threads=1).get("/info").json()
    assert (info["device"], info["provider"]) == ("cpu", "CPUExecutionProvider")
    assert (info["runners"], info["threads"]) == (3, 1)
    assert info["limits"]["max_texts"] == 7
    assert {"version", "python", "onnxruntime", "cpus"} <= set(info)


def test_models_says_what_is_served(client: TestClient) -> None:
    """/models has all that a client needs to know about each model."""
    (model,) = client.get("/models").json()["models"]
    assert model == {
        "name": "tiny",
        "revision": "0123abc",
        "precision": "fp32",
        "labels": LABELS,
        "max_tokens": MAX_TOKENS,
        "multi_label": False,
        "text_pairs": False,
        "preprocessing": "tweet",
        "device": "cpu",
        "provider": "CPUExecutionProvider",
        "provider_options": {},
        "tuning": "runners 2 x threads 1, at most 512 tokens a batch, as set",
        "calibration": None,
        "parity": {"samples": 1, "max_abs_logit_diff": 0.0, "label_agreement": 1.0},
    }


def test_health(client: TestClient) -> None:
    """The warm service is live and ready."""
    assert client.get("/health/live").json() == {"status": "live"}
    assert client.get("/health/ready").json() == {"status": "ready"}
    assert client.get("/health").json() == {"status": "ready"}


def test_openapi_describes_answers_and_errors(client: TestClient) -> None:
    """The schema has the request with its example, the answer, and every documented error."""
    schema = client.get("/openapi.json").json()
    operation = schema["paths"]["/classify"]["post"]
    assert set(operation["responses"]) == {
        *("200", "401", "404", "413", "415", "422", "429", "500", "503", "504", "507")
    }
    reference = operation["responses"]["429"]["$ref"]
    problem = schema["components"]["responses"][reference.rpartition("/")[2]]["content"]
    assert problem["application/problem+json"]["schema"]["$ref"].endswith("/Problem")
    body = operation["requestBody"]["content"]["application/json"]
    assert body["schema"]["$ref"].endswith("/ClassifyRequest")
    assert schema["components"]["schemas"]["ClassifyRequest"]["additionalProperties"] is False
    assert body["example"]["inputs"]
    assert client.get("/docs").status_code == 200


def test_the_answer_fits_its_schema(client: TestClient) -> None:
    """The documented answer has the same fields as the real one, which is built by hand."""
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    answer = client.post("/classify", json={"inputs": ["love", ""]}).json()
    prediction, failed = answer["results"]
    for name, document in {
        "ClassifyResponse": answer,
        "ModelVersion": answer["model"],
        "Prediction": prediction,
        "FailedItem": failed,
        "ItemError": failed["error"],
    }.items():
        assert set(schemas[name]["required"]) == set(document), name


def test_an_unexpected_failure_tells_nothing_of_itself(serve: Serve, gate: Gate) -> None:
    """An unexpected failure is answered without details; only the log has the runtime's message."""
    client = serve()
    gate.fails = True
    answer = client.post("/classify", json={"inputs": "love"})
    assert (answer.status_code, answer.json()["code"]) == (500, "inference_failed")
    assert "secret" not in answer.text


def test_a_fault_in_a_route_is_a_problem_too(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug in a route is answered as a problem with an id; only the log has the cause."""
    monkeypatch.setattr("app.engine.model_registry.ModelRegistry.classifier", lambda *_: 1 / 0)
    answer = client.post("/classify", json={"inputs": "love"}, headers={"x-request-id": "find-me"})
    assert (answer.status_code, answer.json()["code"]) == (500, "inference_failed")
    assert answer.headers["x-request-id"] == "find-me"
    assert "division" not in answer.text
    assert "find-me" in caplog.text
    assert "ZeroDivisionError" in caplog.text
