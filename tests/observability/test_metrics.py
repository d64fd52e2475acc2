"""GET /metrics: what is there from the first scrape, and what is counted."""

import shutil
from pathlib import Path
from typing import Any, cast

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from sentiment_service.engine.model.bundle import Evaluation

from tests.conftest import Serve
from tests.support.reloads import reload
from tests.support.serving import Gate, metric
from tests.support.tiny_bundle import LABELS, evaluate, make_bundle, write_manifest

STAGES = {"tokenize", "queue", "inference"}
REASONS = {"queue_full", "deadline", "client_deadline", "inflight_bytes"}
REASONS |= {"not_ready", "shutting_down"}


def _series(client: TestClient) -> dict[str, list[dict[str, str]]]:
    """Label sets by name, of all series but buckets."""
    series: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            if not sample.name.endswith("_bucket"):
                series.setdefault(sample.name, []).append(sample.labels)
    return series


def test_every_series_exists_from_the_first_scrape(client: TestClient) -> None:
    """Dashboards and alerts need no traffic to work. docs/metrics.md lists all names and labels."""
    series = _series(client)
    for name, label, values in (
        ("predictions_total", "label", {*LABELS}),
        ("stage_duration_seconds_count", "stage", STAGES),
        ("rejections_total", "reason", REASONS),
    ):
        assert {sample[label] for sample in series[f"sentiment_{name}"]} == values
    assert "process_resident_memory_bytes" in series


def test_requests_for_answers_have_series_from_the_first_scrape(client: TestClient) -> None:
    """A rate sees the first request of each status that texts get. Other routes wait."""
    routes = [route for route in cast(FastAPI, client.app).routes if isinstance(route, APIRoute)]
    asked = [
        route
        for route in routes
        if route.methods == {"POST"}
        and not route.path.startswith(("/models/", "/{version}/"))  # these take no texts
    ]
    documented = next(map(str, route.responses) for route in asked if route.path == "/classify")
    statuses = ("200", "499", *documented)
    expected = {(route.path, "POST", status) for route in asked for status in statuses}
    for status in ("401", "404", "413", "422", "429", "500", "503", "504"):
        assert {(route.path, "POST", status) for route in asked} <= expected
    expected |= {("unmatched", "other", status) for status in ("400", "431")}
    series = _series(client)
    requests = series["sentiment_http_requests_total"]
    assert {(one["route"], one["method"], one["status"]) for one in requests} == expected
    durations = series["sentiment_http_request_duration_seconds_count"]
    assert {one["route"] for one in durations} == {route for route, _, _ in expected}


def test_the_operation_says_which_requests_alerts_read(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Routes of every protocol that classify have it from the start, whatever their path is."""
    monkeypatch.setenv("AIP_PREDICT_ROUTE", "/vertex/predict")
    client = serve()
    client.get("/health/ready")
    operations = {
        one["route"]: one["operation"] for one in _series(client)["sentiment_http_requests_total"]
    }
    classify = {route for route, operation in operations.items() if operation == "classify"}
    assert classify == {
        "/",
        "/classify",
        "/predict",
        "/#X-Amz-Target=Comprehend_20171127",
        "/language/:analyze-text",
        "/text/analytics/v3.1/sentiment",
        "/v1/classify",
        "/v1/documents:analyzeSentiment",
        "/v1/models/{name}:predict",
        "/v2/documents:analyzeSentiment",
        "/v2/models/{name}/infer",
        "/v2/models/{name}/versions/{version}/infer",
        "/invocations",
        "/vertex/predict",
    }
    others = {route: what for route, what in operations.items() if what != "classify"}
    assert others == {
        "/classify/stream": "stream",
        "/explain": "explain",
        "/tokenize": "tokenize",
        "/health/ready": "other",
        "unmatched": "other",
    }


@pytest.mark.parametrize(
    ("method", "route"), [("GET", "/health/ready"), ("GET", "/"), ("HEAD", "/")]
)
def test_other_requests_have_series_from_the_first_one_on(
    client: TestClient, method: str, route: str
) -> None:
    """A probe is counted, and its duration too; so is the page, whose path takes texts by POST."""
    labels = {"route": route, "operation": "other", "method": method, "status": "200"}
    before = _series(client)["sentiment_http_requests_total"]
    assert [one for one in before if one.items() >= labels.items()] == []
    client.request(method, route)
    assert metric(client, "sentiment_http_requests_total", **labels) == 1
    duration = "sentiment_http_request_duration_seconds_count"
    assert metric(client, duration, route=route, operation="other") == 1


def test_a_request_is_counted_once(client: TestClient) -> None:
    """Every text has one outcome, every prediction one label, every request one status."""
    before = _series(client)
    client.post("/classify", json={"inputs": ["love", "love " * 20, "", "worst"]})
    route, post = {"route": "/classify"}, {"route": "/classify", "method": "POST"}
    counts: list[tuple[str, dict[str, str], float]] = [
        ("http_requests_total", {**post, "status": "200"}, 1),
        ("http_request_duration_seconds_count", route, 1),
        ("texts_total", {"outcome": "ok"}, 3),
        ("texts_total", {"outcome": "empty_text"}, 1),
        ("predictions_total", {"label": "positive"}, 2),
        ("predictions_total", {"label": "negative"}, 1),
        ("prediction_score_count", {"label": "positive"}, 2),
        ("text_tokens_sum", {}, 3 + 22 + 3),
        ("truncated_total", {}, 1),
        ("stage_duration_seconds_count", {"stage": "tokenize"}, 1),
        ("stage_duration_seconds_count", {"stage": "inference"}, 1),
        ("batch_texts_sum", {}, 3),
    ]
    for name, labels, count in counts:
        model = {} if "route" in labels else {"model": "tiny"}
        assert metric(client, f"sentiment_{name}", **model, **labels) == count, name
    assert _series(client).keys() == before.keys()


def test_warnings_are_counted_by_why(serve: Serve, tmp_path: Path) -> None:
    """Each text with each of its warnings, also those that a list has together with others."""
    english = make_bundle(tmp_path / "english")
    write_manifest(english, language="en")
    client = serve(model=(english,))
    texts = ["love", "love " * 20, "мы очень любим это", "zzz zzz zzz"]
    answer = client.post("/classify", json={"inputs": texts}).json()["results"]
    for warning in ("other_language", "unknown_tokens", "truncated"):
        count = sum(warning in one.get("warnings", ()) or one.get(warning, False) for one in answer)
        assert metric(client, "sentiment_warnings_total", model="tiny", warning=warning) == count
        assert count


def test_the_reference_is_what_the_evaluation_predicted_and_read(
    serve: Serve, tmp_path: Path
) -> None:
    """The shares of the columns of its confusion matrix, and lengths like those of live texts.

    A reload adds nothing to them. Without an evaluation, there are no shares, and lengths are 0;
    those of an earlier model's labels end with it.
    """
    bundle = make_bundle(tmp_path / "tiny")
    client = serve(model=(bundle,), admin_keys="admin-key-1")
    buckets = "sentiment_reference_text_tokens_bucket"
    assert metric(client, buckets, le="+Inf") == 0
    assert "sentiment_reference_share{" not in client.get("/metrics").text
    lengths = Evaluation().lengths | {"8": 2, "64": 1, "more": 1}
    confusion = [[2, 1, 1], [0, 1, 1], [0, 0, 4]]
    evaluate(bundle, confusion, lengths=lengths, tokens=700, unknown_tokens=7)

    for _ in range(2):
        reload(client).raise_for_status()
    for label, share in zip(LABELS, (0.2, 0.2, 0.6), strict=True):
        found = metric(client, "sentiment_reference_share", model="tiny", label=label)
        assert found == pytest.approx(share)
    for bound, texts in (("8.0", 2), ("48.0", 2), ("64.0", 3), ("512.0", 3), ("+Inf", 4)):
        assert metric(client, buckets, model="tiny", le=bound) == texts, bound
    assert metric(client, "sentiment_reference_text_tokens_sum", model="tiny") == 700
    assert metric(client, "sentiment_reference_unknown_tokens", model="tiny") == 7
    shutil.rmtree(bundle)
    make_bundle(bundle, outputs=2, labels=("bad", "good"))
    reload(client).raise_for_status()
    assert "sentiment_reference_share{" not in client.get("/metrics").text


def test_of_many_labels_a_scrape_has_those_that_some_text_has(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each label has a dozen series. The shares in an evaluation are added up once, not by label:
    those of a thousand labels would take minutes.
    """
    labels = [*LABELS, *(f"mood {number}" for number in range(98))]
    bundle = make_bundle(tmp_path / "tiny", labels=labels, outputs=len(labels))
    evaluate(bundle, [[1] * len(labels) for _ in labels])
    asked = []

    def shares(_: Evaluation) -> dict[str, float]:
        asked.append(1)
        return dict.fromkeys(labels, 0.25)

    monkeypatch.setattr(Evaluation, "shares", property(shares))
    client = serve(model=(bundle,))
    assert "sentiment_predictions_total" not in _series(client)
    client.post("/classify", json={"inputs": "love"}).raise_for_status()
    series = _series(client)
    for name in ("sentiment_predictions_total", "sentiment_prediction_score_count"):
        assert [one["label"] for one in series[name]] == ["positive"]
    assert metric(client, "sentiment_predictions_total", label="positive") == 1
    assert len(series["sentiment_reference_share"]) == len(labels)
    assert asked == [1]


def test_unknown_tokens_are_counted_once(serve: Serve) -> None:
    """Of each answered text, also of a cached one; not again of windows, sentences and copies."""
    client = serve(cache_mb=1)
    for path, body, unknown in (
        ("classify", {"inputs": ["love", "zzz", "love zzz"]}, 2),
        ("classify", {"inputs": ["zzz", ""]}, 1),
        ("classify", {"inputs": "zzz love " * 15, "overflow": "window"}, 14),  # 7 of each 16
        ("classify", {"inputs": "Love. Worst zzz.", "split": "sentences"}, 3),
        ("explain", {"inputs": "love zzz love"}, 1),
        ("classify", {"inputs": "love " * 30}, 0),
    ):
        before = metric(client, "sentiment_unknown_tokens_total", model="tiny")
        client.post(f"/{path}", json=body).raise_for_status()
        after = metric(client, "sentiment_unknown_tokens_total", model="tiny")
        assert after - before == unknown, body


def test_unknown_tokens_of_texts_without_a_result_are_not_counted(serve: Serve, gate: Gate) -> None:
    """Otherwise their share of the counted tokens would rise with each late answer."""
    client = serve(cache_mb=1)
    client.post("/classify", json={"inputs": "zzz"})
    gate.close()
    headers = {"x-request-timeout-ms": "50"}
    client.post("/classify", json={"inputs": ["zzz", "zzz zzz"]}, headers=headers)
    assert metric(client, "sentiment_unknown_tokens_total", model="tiny") == 2


ODD: list[Any] = [-1, None, "all", 10**400]
OTHER_LENGTHS: list[Any] = [None, [], {"8": 1}, Evaluation().lengths | {"1024": 1}]


@pytest.mark.parametrize(
    "accuracy",
    [
        *(None, {}, 1, {"labels": ["a"], "confusion": []}, {"labels": 1, "confusion": [[0]]}),
        *({"labels": ["a"], "confusion": [[odd]]} for odd in (0, *ODD)),
        *({"lengths": Evaluation().lengths | {"8": odd}} for odd in ODD),
        *({"lengths": other} for other in OTHER_LENGTHS),
    ],
)
def test_an_evaluation_that_cannot_be_read_is_no_reference(accuracy: Any) -> None:
    """A bundle may be anyone's, and of another version, such as one with other buckets."""
    reference = Evaluation.of(accuracy)
    assert (reference.shares, reference.lengths) == ({}, Evaluation().lengths)


def test_what_can_be_read_of_an_evaluation_is_a_reference() -> None:
    """Lengths may be in any order; each row has a count for each label."""
    labels = {"labels": ["a", "b"], "confusion": [[2, 1], [1, 0]]}
    assert Evaluation.of(labels).shares == {"a": 0.75, "b": 0.25}
    found = dict(reversed((Evaluation().lengths | {"8": 3.0}).items()))
    read = Evaluation.of({**labels, "lengths": found})
    assert [*read.lengths.items()] == [*(Evaluation().lengths | {"8": 3.0}).items()]
    for confusion in ([[2], [1]], [[2, 1], [1]], [[1, 1, 1], [1, 1, 1]]):
        assert Evaluation.of({**labels, "confusion": confusion}).shares == {}


@pytest.mark.parametrize(
    ("method", "path", "labels"),
    [
        ("GET", "/made/up/1", {"route": "unmatched", "method": "GET", "status": "404"}),
        ("BREW", "/classify", {"route": "/classify", "method": "other", "status": "405"}),
        ("GET", "/openapi.json", {"route": "/openapi.json", "method": "GET", "status": "200"}),
    ],
)
def test_a_client_cannot_make_up_series(
    client: TestClient, method: str, path: str, labels: dict[str, str]
) -> None:
    """Paths and methods of a client's own invention are counted together."""
    client.request(method, path)
    assert metric(client, "sentiment_http_requests_total", **labels) == 1


@pytest.mark.parametrize("kind", ["text/plain", "application/openmetrics-text"])
def test_prometheus_gets_the_format_that_it_asks_for(client: TestClient, kind: str) -> None:
    """Each metric is explained. The series ``_created`` would be a third of a scrape."""
    answer = client.get("/metrics", headers={"accept": f"{kind}; version=1.0.0"})
    assert answer.headers["content-type"].startswith(kind)
    assert answer.text.endswith("# EOF\n") == ("openmetrics" in kind)
    assert "_created" not in answer.text
    families = text_string_to_metric_families(client.get("/metrics").text)
    assert [family.name for family in families if not family.documentation] == []


def test_a_traced_request_is_an_exemplar(client: TestClient) -> None:
    """OpenMetrics leads from a slow bucket to a trace in it, and to none that nobody has kept."""
    trace, unkept = "0af7651916cd43dd8448eb211c80319c", "1bf7651916cd43dd8448eb211c80319c"
    for traceparent in (f"00-{trace}-b7ad6b7169203331-03", f"00-{unkept}-b7ad6b7169203331-02"):
        client.post("/classify", json={"inputs": "love"}, headers={"traceparent": traceparent})
    accept = {"accept": "application/openmetrics-text; version=1.0.0"}
    metrics = client.get("/metrics", headers=accept).text
    (line,) = [line for line in metrics.splitlines() if trace in line]
    assert line.startswith('sentiment_http_request_duration_seconds_bucket{le="')
    assert f'# {{trace_id="{trace}"}}' in line
    assert unkept not in metrics


def test_applications_count_for_themselves(serve: Serve) -> None:
    """Two in one process do not share a registry."""
    first, second = serve(), serve()
    first.post("/classify", json={"inputs": "love"})
    labels = {"model": "tiny", "outcome": "ok"}
    assert metric(first, "sentiment_texts_total", **labels) == 1
    assert metric(second, "sentiment_texts_total", **labels) == 0
