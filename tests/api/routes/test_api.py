"""POST /classify and the operations routes, as the API contract describes them."""

import json
import platform
import re
from pathlib import Path
from typing import Any, cast

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sentiment_service.engine.model.bundle import MANIFEST, sha256
from sentiment_service.engine.model.device import CUDA
from sentiment_service.requests.exchange import Exchange

from tests.conftest import Serve
from tests.support.reloads import reload
from tests.support.serving import metric
from tests.support.tiny_bundle import calibrate, make_bundle, write_manifest


def _digests(client: TestClient) -> dict[str, str]:
    """What each place says of the model that is served."""
    love = {"inputs": "love"}
    line = b'{"id": 1, "text": "love"}'
    lines = {"content-type": "application/x-ndjson"}
    posts = {
        path: client.post(path, json=love | more).json()["model"]["digest"]
        for path, more in {
            "/classify": {},
            "/explain": {},
            "/tokenize": {},
            "/invocations": {"split": "sentences"},
        }.items()
    }
    shown = re.search('sentiment_model_info{.*digest="([^"]*)"', client.get("/metrics").text)
    stream = client.post("/classify/stream", content=line, headers=lines)
    return posts | {
        "/models": client.get("/models").json()["models"][0]["digest"],
        "/info": client.get("/info").json()["digest"],
        "/classify/stream": stream.headers["x-model-digest"],
        "/metrics": shown[1] if shown else "",
    }


def test_the_digest_of_the_manifest_names_the_model_everywhere(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Before and after a reload of a bundle in which only a temperature has changed.

    Name and revision stay, so only the digest shows that other scores are served.
    """
    caplog.set_level("INFO")
    bundle = make_bundle(tmp_path / "changing")
    client = serve(model=(bundle,), admin_keys="admin-key-1")
    before = sha256(bundle / MANIFEST)
    assert {*_digests(client).values()} == {before}
    calibrate(bundle, temperature=2.0)
    after = sha256(bundle / MANIFEST)
    assert {*_digests(client).values()} == {before}
    assert reload(client).json() == {"status": "reloaded", "digest": after}
    assert {*_digests(client).values()} == {after} != {before}
    assert f"tiny was loaded again from {bundle}: digest {after[:12]}, " in caplog.text


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


def test_a_served_name_takes_the_place_of_the_bundles(serve: Serve) -> None:
    """Requests, answers and metrics know the model by it, also after a reload."""
    client = serve(served_name="sentiment", admin_keys="admin-key-1")
    for _ in range(2):
        answer = client.post("/v1/models/sentiment:predict", json={"instances": ["love"]})
        assert answer.status_code == 200
        assert reload(client, "sentiment").status_code == 200
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


def test_the_query_has_the_options_of_a_plain_text(
    serve: Serve, bundle: Path, tmp_path: Path
) -> None:
    """They are checked as in a body. The text itself is the body; what else it has is ignored."""
    client = serve(model=(bundle, make_bundle(tmp_path / "other")), served_name=("a", "b"))
    plain: dict[str, Any] = {"content": "I love this!", "headers": {"content-type": "text/plain"}}
    assert client.post("/classify?model=b", **plain).json()["model"]["name"] == "b"
    assert client.post("/explain?model=b", **plain).json()["model"]["name"] == "b"
    assert client.post("/classify", **plain).json()["model"]["name"] == "a"
    assert client.post("/classify?model=c", **plain).json()["code"] == "model_not_found"
    assert client.post("/classify?model=b&key=k", **plain).json()["model"]["name"] == "b"
    (result,) = client.post("/classify?split=sentences", **plain).json()["results"]
    assert len(result["sentences"]) == 1
    (tokens,) = client.post("/tokenize?add_special_tokens=false", **plain).json()["results"]
    assert set(tokens["sequence_ids"]) == {0}
    for wrong, says in {
        "/classify?overflow=cut": "overflow must be 'truncate', 'error' or 'window'",
        "/classify?language=german": "language must be a language tag",
        "/tokenize?add_special_tokens=2.5": "add_special_tokens must be a boolean",
        "/classify?inputs=worst": "put inputs in the body, not in the query",
    }.items():
        answer = client.post(wrong, **plain)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
        assert says in answer.json()["detail"]
    long = plain | {"content": "love " * 40}
    assert client.post("/classify?overflow=error", **long).json()["code"] == "text_too_long"


@pytest.mark.parametrize("form", ["inputs", "input"])
@pytest.mark.parametrize(
    ("path", "query", "name"),
    [
        ("/classify", "model=tiny", "model"),
        ("/classify", "request=1&overflow=error", "overflow"),
        ("/classify", "inputs=love", "inputs"),
        ("/explain", "model=tiny", "model"),
        ("/tokenize", "add_special_tokens=false", "add_special_tokens"),
    ],
)
def test_a_field_in_the_query_of_json_is_refused(
    client: TestClient, path: str, query: str, name: str, form: str
) -> None:
    """It would be ignored otherwise: the model, for example, might be another than the one meant.

    What is no field of the body is ignored: proxies add theirs.
    """
    body = {form: "I love this!"}
    answer = client.post(f"{path}?{query}", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert answer.json()["detail"] == f"put {name} in the body, not in the query"
    if form == "inputs":
        assert client.post(f"{path}?request=1&key=model", json=body).status_code == 200


OPTIONS = dict.fromkeys(("model", "overflow", "split", "language", "threshold"))
TENSOR = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["love"]}


@pytest.mark.parametrize(
    ("path", "body", "nulls"),
    [
        ("/classify", {"inputs": "love"}, OPTIONS),
        ("/invocations", {"inputs": "love", "model": None}, OPTIONS),
        ("/invocations", {"instances": ["love"]}, {"parameters": OPTIONS}),
        ("/v1/models/tiny:predict", {"instances": ["love"]}, {"parameters": OPTIONS}),
        ("/v2/models/tiny/infer", {"inputs": [TENSOR]}, {"parameters": OPTIONS}),
    ],
)
def test_null_is_the_default_of_each_option(
    client: TestClient, path: str, body: dict[str, Any], nulls: dict[str, Any]
) -> None:
    """As generated clients send it, in every protocol that has our options."""
    plain, answer = client.post(path, json=body), client.post(path, json=body | nulls)
    assert plain.status_code == 200
    assert (answer.status_code, answer.json()) == (200, plain.json())


def test_info_says_what_runs(serve: Serve) -> None:
    """/info shows versions, the device in use and the limits in force."""
    info = serve(max_texts=7, runners=3, threads=1).get("/info").json()
    assert (info["device"], info["provider"]) == ("cpu", "CPUExecutionProvider")
    assert (info["runners"], info["threads"]) == (3, 1)
    assert info["limits"]["max_texts"] == 7
    assert {"version", "python", "onnxruntime", "cpus"} <= set(info)


def test_info_claims_only_what_was_proven(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits do not depend on the batch: said of fp32 and int8 on x86 CPUs.

    The property tests compare their bits. It is not said of fp16, arm64, GPUs, or a DeBERTa-v2
    with a convolution, whose bits depend on the padding.
    """
    client = serve()
    assert client.get("/info").json()["batch_invariant"] is True
    with monkeypatch.context() as arm:
        arm.setattr(platform, "machine", lambda: "aarch64")
        assert client.get("/info").json()["batch_invariant"] is None
    cast(FastAPI, client.app).state.service.models.classifiers.of(None).model.provider = CUDA
    assert client.get("/info").json()["batch_invariant"] is None
    half = make_bundle(tmp_path / "half")
    variants = json.loads((half / MANIFEST).read_text(encoding="utf-8"))["variants"]
    write_manifest(half, variants={"fp16": variants["fp32"]})
    info = serve(model=(half,), precision="fp16").get("/info").json()
    assert info["batch_invariant"] is None
    convolution = make_bundle(tmp_path / "convolution", conv_kernel_size=3)
    assert serve(model=(convolution,)).get("/info").json()["batch_invariant"] is None


def test_a_fault_in_a_route_is_a_problem_too(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug in a route is answered as a problem with an id; only the log has the cause."""
    monkeypatch.setattr(Exchange, "classify", lambda *_, **__: 1 / 0)
    answer = client.post("/classify", json={"inputs": "love"}, headers={"x-request-id": "find-me"})
    assert (answer.status_code, answer.json()["code"]) == (500, "inference_failed")
    assert answer.headers["x-request-id"] == "find-me"
    assert "division" not in answer.text
    assert "find-me" in caplog.text
    assert "ZeroDivisionError" in caplog.text
