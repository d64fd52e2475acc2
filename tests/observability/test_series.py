"""Counters and histograms without locks: what a scrape shows of them."""

import time
from collections.abc import Iterator

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from sentiment_service.observability.series import Counter, Histogram, SharedRegistry
from sentiment_service.shared_memory import Board

BOUNDS = (0.0, 0.001, 0.25, 1, 10, 2_500_000)
ROUTES = ("/", "/v2/models/{name}/infer", 'a "quoted" \\ name')
VALUES = (0.0, 0.0005, 0.001, 0.0011, 1.0, 3, 10, 2_499_999, 1e9)
TRACE = {"trace_id": "0af7651916cd43dd8448eb211c80319c"}


@pytest.fixture
def no_creation_times(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """prometheus_client exports no times of creation, and the clock stands still."""
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.25)
    yield
    prometheus_client.enable_created_metrics()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("accept", ["text/plain", "application/openmetrics-text"])
@pytest.mark.usefixtures("no_creation_times")
def test_a_scrape_is_that_of_prometheus_client(accept: str) -> None:
    """In both formats, the same counts give the same text: names, labels, values and exemplars."""
    encode, _ = choose_encoder(accept)
    ours, theirs = SharedRegistry(Board.alone()), CollectorRegistry()
    labels = ["route", "status"]
    counter = Counter("answers", "How many.", labels, ours)
    expected_counter = prometheus_client.Counter("answers", "How many.", labels, registry=theirs)
    histogram = Histogram("seconds", "How long.", ["route"], ours, bounds=BOUNDS)
    expected_histogram = prometheus_client.Histogram(
        "seconds", "How long.", ["route"], buckets=BOUNDS, registry=theirs
    )
    assert encode(ours) == encode(theirs)
    for number, route in enumerate(ROUTES):
        counter.labels(route, 200)
        expected_counter.labels(route, 200)
        counter.labels(route, 500).value += number
        expected_counter.labels(route, 500).inc(number)
        values = VALUES[number:]  # the first route has all, and others have less
        for value in values:
            exemplar = TRACE if value > 1 else None
            histogram.labels(route).observe(value, exemplar)
            expected_histogram.labels(route).observe(value, exemplar)
    assert (TRACE["trace_id"].encode() in encode(ours)) == ("openmetrics" in accept)
    assert encode(ours) == encode(theirs)
