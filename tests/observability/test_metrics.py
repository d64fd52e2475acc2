"""GET /metrics: what is there from the first scrape, and what is counted."""

from typing import cast

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import Serve
from tests.support.serving import metric
from tests.support.tiny_bundle import LABELS

CONTRACT = {
    "http_requests_total": {"route", "operation", "method", "status"},
    "http_request_duration_seconds": {"route", "operation"},
    "http_requests_in_flight": set(),
    "texts_total": {"model", "outcome"},
    "predictions_total": {"model", "label"},
    "prediction_score": {"model", "label"},
    "text_tokens": {"model"},
    "truncated_total": {"model"},
    "stage_duration_seconds": {"model", "stage"},
    "batch_texts": {"model"},
    "batch_tokens": {"model"},
    "batch_padding_ratio": {"model"},
    "queue_texts": {"model"},
    "queue_tokens": {"model"},
    "queue_wait_seconds": {"model"},
    "rejections_total": {"model", "reason"},
    "model_info": {"model", "revision", "precision", "digest", "provider", "version"},
    "model_ready": {"model"},
    "cache_hits_total": {"model"},
    "cache_misses_total": {"model"},
    "cache_bytes": {"model"},
    "log_lines_dropped_total": set(),
    "runners_lost_total": {"model"},
    "runners_stuck": {"model"},
    "stalled_batches_total": {"model"},
    "out_of_memory_total": {"model"},
    "device_lost": {"model"},
}


def _series(client: TestClient) -> dict[str, list[dict[str, str]]]:
    """Label sets by name, of all series but buckets."""
    series: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            if not sample.name.endswith("_bucket"):
                series.setdefault(sample.name, []).append(sample.labels)
    return series


def test_every_series_exists_from_the_first_scrape(client: TestClient) -> None:
    """Dashboards and alerts need no traffic to work."""
    series = _series(client)
    for name, labels in CONTRACT.items():
        found = series.get(f"sentiment_{name}") or series[f"sentiment_{name}_count"]
        assert all(set(sample) == labels for sample in found), name
    values = {
        (name, label): {sample[label] for sample in series[name]}
        for name, label in [
            ("sentiment_predictions_total", "label"),
            ("sentiment_stage_duration_seconds_count", "stage"),
            ("sentiment_rejections_total", "reason"),
        ]
    }
    assert list(values.values()) == [
        set(LABELS),
        {"tokenize", "queue", "inference"},
        {"queue_full", "deadline", "inflight_bytes", "not_ready", "shutting_down"},
    ]
    assert "process_resident_memory_bytes" in series


def test_requests_for_answers_have_series_from_the_first_scrape(client: TestClient) -> None:
    """A rate sees the first request of each status that texts get. Other routes wait."""
    routes = [route for route in cast(FastAPI, client.app).routes if isinstance(route, APIRoute)]
    asked = [
        route
        for route in routes
        if route.methods == {"POST"} and not route.path.startswith("/models/")
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
        "/v1/classify",
        "/v1/models/{name}:predict",
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


def test_other_routes_have_series_from_their_first_request_on(client: TestClient) -> None:
    """A probe is counted, and its duration too."""
    labels = {"route": "/health/ready", "method": "GET", "status": "200"}
    assert labels not in _series(client)["sentiment_http_requests_total"]
    client.get("/health/ready")
    assert metric(client, "sentiment_http_requests_total", **labels) == 1
    duration = "sentiment_http_request_duration_seconds_count"
    assert metric(client, duration, route="/health/ready") == 1


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


@pytest.mark.parametrize("accept", ["text/plain", "application/openmetrics-text"])
def test_no_series_says_when_another_was_created(client: TestClient, accept: str) -> None:
    """Prometheus does not need the series ``_created``; they would be a third of a scrape."""
    assert "_created" not in client.get("/metrics", headers={"accept": accept}).text


def test_openmetrics_for_those_who_ask(client: TestClient) -> None:
    """Prometheus asks for it; others get the text format."""
    accept = "application/openmetrics-text; version=1.0.0"
    open_metrics = client.get("/metrics", headers={"accept": accept})
    assert open_metrics.headers["content-type"].startswith("application/openmetrics-text")
    assert open_metrics.text.endswith("# EOF\n")
    assert client.get("/metrics").headers["content-type"].startswith("text/plain")


def test_a_traced_request_is_an_exemplar(client: TestClient) -> None:
    """OpenMetrics leads from a slow bucket to a trace in it."""
    trace = "0af7651916cd43dd8448eb211c80319c"
    headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    client.post("/classify", json={"inputs": "love"}, headers=headers)
    accept = {"accept": "application/openmetrics-text; version=1.0.0"}
    lines = client.get("/metrics", headers=accept).text.splitlines()
    (line,) = [line for line in lines if trace in line]
    assert line.startswith('sentiment_http_request_duration_seconds_bucket{le="')
    assert f'# {{trace_id="{trace}"}}' in line


def test_every_metric_is_explained(client: TestClient) -> None:
    """Each has a help text."""
    families = text_string_to_metric_families(client.get("/metrics").text)
    assert [family.name for family in families if not family.documentation] == []


def test_applications_count_for_themselves(serve: Serve) -> None:
    """Two in one process do not share a registry."""
    first, second = serve(), serve()
    first.post("/classify", json={"inputs": "love"})
    labels = {"model": "tiny", "outcome": "ok"}
    assert metric(first, "sentiment_texts_total", **labels) == 1
    assert metric(second, "sentiment_texts_total", **labels) == 0
