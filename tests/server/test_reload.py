"""Reload of a model while it answers, by POST /models/{name}/reload or by SIGHUP."""

import asyncio
import errno
import gc
import json
import os
import shutil
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, cast

import httpx2
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sentiment_service.engine import loading
from sentiment_service.engine.classifier import Classifier
from sentiment_service.engine.loading import load_model
from sentiment_service.engine.model.model import Model
from sentiment_service.engine.model_registry import ModelRegistry

from checks.support.load import constant_load
from tests.conftest import Listen, Serve, Start
from tests.support.raw_http import connect, post, read_all, statuses
from tests.support.reloads import ADMIN, release, reload, revision_of
from tests.support.serving import eventually, metric
from tests.support.streams import NDJSON, STREAM_HEAD, ask_line
from tests.support.tiny_bundle import make_bundle, write_manifest

REVISIONS = [f"{n:07x}" for n in range(20)]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle that the test may change."""
    return make_bundle(tmp_path / "tiny")


def _revision(client: httpx2.Client) -> str:
    answer = client.post("/classify", json={"inputs": "love"})
    revision: str = answer.json()["model"]["revision"]
    return revision


def test_a_reload_answers_with_the_new_model(serve: Serve, bundle: Path) -> None:
    """A bundle that is replaced is served after the reload, and not before.

    Then /models, /metrics and health show the new model and not the old one.
    """
    client = serve(model=(bundle,), admin_keys="admin-key-1")
    release(bundle, "fedcba9")
    assert _revision(client) == "0123abc"
    assert reload(client).json()["status"] == "reloaded"
    assert _revision(client) == "fedcba9"
    assert client.get("/models").json()["models"][0]["revision"] == "fedcba9"
    assert client.get("/health/ready").status_code == 200
    scraped = client.get("/metrics").text
    assert scraped.count("sentiment_model_info{") == 1
    assert 'revision="fedcba9"' in scraped
    assert metric(client, "sentiment_texts_total", model="tiny", outcome="ok") == 2


@dataclass
class Stuck:
    """The model that is served first computes nothing until ``over`` is set."""

    client: TestClient
    reached: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def stuck(
    serve: Serve, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Stuck]]:
    """Serve a model that is stuck, with these settings. A model that is loaded later is not."""
    all_: list[Stuck] = []
    infer = Model.infer

    def start(**settings: Any) -> Stuck:
        client = serve(model=(bundle,), admin_keys="admin-key-1", **settings)
        made = Stuck(client)
        all_.append(made)
        first = cast(FastAPI, client.app).state.service.models.classifiers.of(None).model

        def infer_unless_stuck(model: Model, encodings: Any) -> Any:
            if model is first:
                made.reached.set()
                made.over.wait(30)
            return infer(model, encodings)

        monkeypatch.setattr(Model, "infer", infer_unless_stuck)
        return made

    yield start
    for made in all_:
        made.over.set()


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Model]]:
    """The models that have been loaded, while they are in memory."""
    models: list[weakref.ref[Model]] = []
    load = load_model

    def note(*arguments: Any, **options: Any) -> Model:
        model = load(*arguments, **options)
        models.append(weakref.ref(model))
        return model

    monkeypatch.setattr(loading, "load_model", note)
    return models


def _prepare_and_drop(client: TestClient) -> None:
    """What happens when another worker cannot load the new model."""
    models: ModelRegistry = cast(FastAPI, client.app).state.service.models

    async def refuse() -> None:
        async with models.replacement("tiny"):
            pass

    assert client.portal is not None
    client.portal.call(refuse)


def test_a_model_that_is_prepared_and_dropped_is_not_shown(serve: Serve, bundle: Path) -> None:
    """Another worker could not load it: /metrics shows the model that still answers."""
    client = serve(model=(bundle,))
    release(bundle, "fedcba9")
    _prepare_and_drop(client)
    _release_labels(bundle, ["bad", "so-so", "good"])
    _prepare_and_drop(client)
    scraped = client.get("/metrics").text
    assert 'revision="0123abc"' in scraped
    assert "fedcba9" not in scraped
    assert "so-so" not in scraped
    assert metric(client, "sentiment_model_ready", model="tiny") == 1


def test_the_queue_is_that_of_the_model_that_answers(
    stuck: Callable[..., Stuck], bundle: Path
) -> None:
    """The gauge that autoscalers read counts its waiting texts, also after a refused reload."""
    old = stuck(runners=1)
    with ThreadPoolExecutor(2) as pool:
        begun = [pool.submit(_revision, old.client)]
        assert old.reached.wait(30)
        begun.append(pool.submit(_revision, old.client))
        eventually(lambda: metric(old.client, "sentiment_queue_texts", model="tiny") == 1)
        _prepare_and_drop(old.client)
        assert metric(old.client, "sentiment_queue_texts", model="tiny") == 1
        old.over.set()
        assert {answer.result(30) for answer in begun} == {"0123abc"}


def test_a_model_that_is_dropped_is_freed_at_once(
    serve: Serve, bundle: Path, loaded: list[weakref.ref[Model]]
) -> None:
    """Otherwise the next reload would load a third one. It needs no garbage collector."""
    client = serve(model=(bundle,))
    served = len(loaded)
    gc.disable()
    try:
        _prepare_and_drop(client)
        assert len(loaded) > served
        eventually(lambda: not any(model() for model in loaded[served:]))
    finally:
        gc.enable()


def test_nothing_fails_while_models_change(start: Start, bundle: Path) -> None:
    """Under load, with reloads of both kinds, every answer is valid and each model is used.

    After twenty of them, the process is hardly larger than after the first few.
    """
    process = start("--admin-keys", "admin-key-1")
    sizes = []
    clients = (["love"], ["worst", "it"], ["love it"] * 100, ["it " * 500] * 30)
    with constant_load(process.url, clients, revision_of) as seen:
        eventually(lambda: seen["0123abc"] > 10)
        for number, revision in enumerate(REVISIONS):
            release(bundle, revision)
            if number % 2:
                assert reload(process.client).status_code == 200
            else:
                process.signal(signal.SIGHUP)
            eventually(lambda revision=revision: seen[revision] > 10)  # type: ignore[misc]
            sizes.append(process.memory_bytes())
    assert set(seen) == {"0123abc", *REVISIONS}
    assert sizes[-1] < sizes[4] + 20_000_000
    threads = Path(f"/proc/{process.pid}/task")
    eventually(lambda: len(list(threads.iterdir())) < 20)
    process.terminate()


def test_a_stream_has_one_model(start: Start, bundle: Path) -> None:
    """It goes on with the model that its header names, while the reload waits as for a request.

    When this takes longer than a request may, its last line says so, and the rest is for the new
    model, which may have other labels.
    """
    process = start("--admin-keys", "admin-key-1", "--deadline-ms", "2000", "--drain-ms", "2000")
    before = process.client.get("/models").json()["models"][0]["digest"]
    with (
        connect(process.port, STREAM_HEAD) as connection,
        connection.makefile("rb") as received,
        ThreadPoolExecutor(1) as pool,
    ):
        ask_line(connection, received, 0)
        _release_labels(bundle, ["bad", "so-so", "good"])
        reloaded = pool.submit(reload, process.client)
        eventually(lambda: process.client.get("/models").json()["models"][0]["labels"][2] == "good")
        assert not reloaded.done()
        ask_line(connection, received, 1)
        assert reloaded.result().status_code == 200
        last = received.read()
        assert b'{"id":null,"error":{"code":"shutting_down"' in last
        assert b"another model has taken the place" in last
    answer = process.client.post("/classify/stream", content=b'{"text": "love"}', headers=NDJSON)
    assert answer.json()["label"] == "good"
    assert answer.headers["x-model-digest"] != before


def test_lines_that_a_model_leaves_undone_are_not_answered_by_the_next(
    stuck: Callable[..., Stuck], bundle: Path
) -> None:
    """Each has an error in its place, which says why: the service is not shutting down."""
    old = stuck(deadline_ms=100, drain_ms=100)
    content = "".join(f'{{"id":{n},"text":"love"}}\n' for n in range(300))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(old.client.post, "/classify/stream", content=content, headers=NDJSON)
        assert old.reached.wait(30)
        _release_labels(bundle, ["bad", "so-so", "good"])
        assert reload(old.client).status_code == 200
        lines = [json.loads(line) for line in answer.result().text.splitlines()]
        old.over.set()
    seen = [(line["id"], line["error"]["code"]) for line in lines]
    assert seen == [(number, "shutting_down") for number in range(300)]
    assert all("another model" in line["error"]["message"] for line in lines)


JSON_LINES = {"content-type": "application/jsonlines"}
LANGUAGES = ["en", "fr", "de"] * 3
DOCUMENTS = {
    "documents": [
        {"id": str(place), "text": "love", "language": language}
        for place, language in enumerate(LANGUAGES)
    ]
}


@pytest.mark.parametrize(
    ("path", "request_", "labels"),
    [
        # SageMaker's records are classified in groups, Azure's documents by their languages.
        (
            "/invocations",
            {"content": '"love"\n' * 600, "headers": JSON_LINES},
            lambda answer: [json.loads(line)["label"] for line in answer.text.splitlines()],
        ),
        (
            "/text/analytics/v3.1/sentiment",
            {"json": DOCUMENTS},
            lambda answer: [one["sentiment"] for one in answer.json()["documents"]],
        ),
    ],
)
def test_a_request_that_is_classified_in_parts_has_one_model(
    stuck: Callable[..., Stuck],
    bundle: Path,
    path: str,
    request_: dict[str, Any],
    labels: Callable[[httpx2.Response], list[str]],
) -> None:
    """A reload comes after its first part: the other parts are the old model's, too.

    The new one has the labels in another order, and so another label for the same text.
    """
    old = stuck()
    with ThreadPoolExecutor(2) as pool:
        answer = pool.submit(old.client.post, path, **request_)
        assert old.reached.wait(30)
        _release_labels(bundle, ["positive", "neutral", "negative"])
        reloaded = pool.submit(reload, old.client)
        eventually(lambda: old.client.get("/models").json()["models"][0]["labels"][2] == "negative")
        old.over.set()
        assert {*labels(answer.result())} == {"positive"}
        assert reloaded.result().status_code == 200


def test_a_bundle_of_another_name_is_refused_with_a_cure(
    start: Start, bundle: Path, tmp_path: Path
) -> None:
    """The log names the option that keeps the served name. With it, the bundle is served."""
    mine = make_bundle(tmp_path / "mine")
    process = start("--admin-keys", "admin-key-1", bundle=bundle)
    write_manifest(bundle, name="other")
    assert reload(process.client).status_code == 422
    process.read_until("named other; start the service with --served-name tiny to serve any")
    process = start("--admin-keys", "admin-key-1", "--served-name", "tiny", bundle=mine)
    write_manifest(mine, name="other")
    assert reload(process.client).status_code == 200
    assert process.client.get("/models").json()["models"][0]["name"] == "tiny"


@pytest.mark.parametrize("damage", ["manifest", "model", "name", "gone"])
def test_a_bad_bundle_leaves_the_old_model_serving(serve: Serve, bundle: Path, damage: str) -> None:
    """The answer reports the failure without path or cause. A good one can be loaded later."""
    client = serve(model=(bundle,), admin_keys="admin-key-1")
    match damage:
        case "manifest":
            (bundle / "manifest.json").write_text("{")
        case "model":
            (bundle / "onnx/model.onnx").write_bytes(b"damaged")
        case "name":
            write_manifest(bundle, name="other")
        case "gone":
            shutil.rmtree(bundle)
    answer = reload(client)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_bundle")
    assert str(bundle.parent) not in answer.text
    assert _revision(client) == "0123abc"
    assert client.get("/health/ready").status_code == 200
    shutil.rmtree(bundle, ignore_errors=True)
    make_bundle(bundle)
    release(bundle, "fedcba9")
    assert reload(client).status_code == 200
    assert _revision(client) == "fedcba9"


def test_a_reload_without_a_file_descriptor_may_be_tried_again(
    serve: Serve, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bundle is not at fault. The answer reports what was lacking; the old model stays."""
    client = serve(model=(bundle,), admin_keys="admin-key-1")

    def read_bytes(_: Path) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as full:
        full.setattr(Path, "read_bytes", read_bytes)
        answer = reload(client)
    assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
    assert "Too many open files; try again later" in answer.json()["detail"]
    assert _revision(client) == "0123abc"
    assert reload(client).status_code == 200


def test_what_was_begun_ends_with_the_old_model(stuck: Callable[..., Stuck], bundle: Path) -> None:
    """New requests get the new model, and the reload is answered when the old one has finished."""
    old = stuck(runners=1)
    with ThreadPoolExecutor(2) as pool:
        begun = pool.submit(_revision, old.client)
        assert old.reached.wait(30)
        release(bundle, "fedcba9")
        reloaded = pool.submit(reload, old.client)
        eventually(lambda: old.client.get("/models").json()["models"][0]["revision"] == "fedcba9")
        assert _revision(old.client) == "fedcba9"
        assert not begun.done()
        assert not reloaded.done()
        old.over.set()
        assert begun.result(30) == "0123abc"
        assert reloaded.result(30).status_code == 200


TEXTS = ["I love this!", "worst service ever"]
TENSOR = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [2], "data": TEXTS}]}


@pytest.mark.parametrize(
    ("path", "body", "classes"),
    [
        ("/classify", {"inputs": "love"}, lambda answer: len(answer["labels"])),
        ("/classify", {"inputs": ["love"]}, lambda answer: len(answer["results"][0]["logits"])),
        ("/", {"inputs": "love"}, lambda answer: len(answer[0])),
        ("/predict", {"inputs": "love"}, len),
        ("/v1/classify", {"input": "love"}, lambda answer: answer["data"][0]["num_classes"]),
        ("/v2/models/tiny/infer", TENSOR, lambda answer: answer["outputs"][3]["shape"][1]),
        ("/v2/models/tiny/infer", TENSOR, lambda answer: len(answer["outputs"][3]["data"]) / 2),
    ],
)
def test_a_body_that_ends_after_a_reload_is_answered_by_the_new_model(
    listen: Listen, bundle: Path, path: str, body: Any, classes: Callable[[Any], float]
) -> None:
    """Labels, shape and values of an answer all come from the model that computed it."""
    port = listen(model=(bundle,), admin_keys="admin-key-1")
    request = post(json.dumps(body).encode(), b"connection: close")
    request = request.replace(b"/classify", path.encode(), 1)
    with (
        httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
        connect(port, request[:-5]) as waiting,
    ):
        eventually(lambda: metric(client, "sentiment_http_requests_in_flight") == 2)
        _release_labels(bundle, ["bad", "good"])
        assert reload(client).status_code == 200
        waiting.sendall(request[-5:])
        received = read_all(waiting)
    assert statuses(received) == [200], received
    _, _, answer = received.partition(b"\r\n\r\n")
    assert classes(json.loads(answer)) == 2


def _release_labels(bundle: Path, labels: list[str]) -> None:
    """Put a model with these labels in place of the bundle."""
    shutil.rmtree(bundle)
    make_bundle(bundle, outputs=len(labels), labels=labels)


def test_only_an_admin_key_reloads(serve: Serve, bundle: Path) -> None:
    """A client's key or no key is refused; reload of an unknown model gives 404."""
    client = serve(model=(bundle,), api_keys="client-key-1", admin_keys="admin-key-1")
    known = {"authorization": "Bearer client-key-1"}
    assert client.post("/models/tiny/reload", headers=known).status_code == 401
    for path in ("/models/tiny/reload", "/models/tiny/reload%0A", "/models/a/b"):
        assert client.post(path).status_code == 401, path
    for path in ("/models/tiny/reload%0A", "/models/a/b", "/models/tiny", "/models/tiny/reload/x"):
        assert client.post(path, headers=known).status_code in (404, 405), path
    assert reload(client).status_code == 200
    assert client.get("/info", headers=ADMIN).status_code == 401
    unknown = reload(client, "other")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "model_not_found")


def test_without_admin_keys_the_refusal_says_so(client: TestClient) -> None:
    """Without admin keys, the error does not ask for a key, because no key could be right."""
    answer = reload(client)
    assert answer.status_code == 401
    assert "no admin keys" in answer.json()["detail"]
    assert "SIGHUP" in answer.json()["detail"]
    assert "Bearer" not in answer.json()["detail"]


def test_other_reloads_do_not_wait_for_what_one_has_begun(
    serve: Serve, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one old model still has work, the model of another name is loaded and answers."""
    retiring, may_end = threading.Event(), threading.Event()
    retire = Classifier.retire

    async def held(self: Classifier, timeout_s: float) -> None:
        if self.model.name == "tiny":
            retiring.set()
            await asyncio.to_thread(may_end.wait, 30)
        await retire(self, timeout_s)

    monkeypatch.setattr(Classifier, "retire", held)
    other = make_bundle(tmp_path / "other", name="other")
    client = serve(model=(bundle, other), admin_keys="admin-key-1")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(reload, client)
        assert retiring.wait(30)
        try:
            assert reload(client, "other").status_code == 200
            assert not first.done()
        finally:
            may_end.set()
        assert first.result(30).status_code == 200


def test_a_model_that_was_replaced_is_freed(
    serve: Serve, bundle: Path, loaded: list[weakref.ref[Model]]
) -> None:
    """After reloads, only the last model stays in memory; all others are freed."""
    client = serve(model=(bundle,), admin_keys="admin-key-1")
    for _ in range(3):
        assert reload(client).status_code == 200
    assert len(loaded) >= 4

    def alive() -> int:
        gc.collect()  # a thread of the last may have ended a moment too late for the reload's own
        return len({id(model()) for model in loaded if model() is not None})

    eventually(lambda: alive() == 1)


def test_labels_may_change(serve: Serve, bundle: Path) -> None:
    """Counts of the old labels stay, and the new labels are counted."""
    client = serve(model=(bundle,), admin_keys="admin-key-1")
    _revision(client)
    _release_labels(bundle, ["bad", "so-so", "good"])
    assert reload(client).status_code == 200
    (result,) = client.post("/classify", json={"inputs": "love"}).json()["results"]
    assert result["label"] == "good"
    for label in ("positive", "good"):
        assert metric(client, "sentiment_predictions_total", model="tiny", label=label) == 1
