"""Metrics of several workers: any of them shows what all have counted, even after a death."""

import subprocess
import sys
from contextlib import AbstractContextManager
from itertools import pairwise

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from sentiment_service.observability.metrics import Metrics
from sentiment_service.observability.observers import count_request
from sentiment_service.observability.series import Counter, Gauge, Histogram, SharedRegistry
from sentiment_service.shared_memory import NUMBER_BYTES, SECTIONS, Board

from tests.support.boards import boards, shared_board

# A worker in a process of its own: it counts, says so, and waits.
WORKER = """
import sys
from sentiment_service.shared_memory import Board
from sentiment_service.observability.metrics import Metrics
from sentiment_service.observability.observers import count_request
metrics = Metrics(Board.open(int(sys.argv[1]), 2, 1))
for route in ("/classify", "/worker"):
    count_request(metrics, "POST", route, 200, "ok", 0.3)
metrics.requests_in_flight.value = 3
metrics.model_info.show("model", {("revision 2", "int8", "CPU", "1.0"): 1})
metrics.model_ready.watch(lambda: True, "model")
metrics.queue_texts.watch(lambda: 7, "model")
metrics.reference_text_tokens.labels("model").counts[0] = 7.0
metrics.registry.publish()
print("counted", flush=True)
sys.stdin.read()
"""
CLASSIFY = {"route": "/classify", "operation": "other", "method": "POST", "status": "200"}
CLASSIFY |= {"outcome": "ok"}
COUNT = "sentiment_http_request_duration_seconds_count"
INTERPRETER_BYTES = 10_000_000  # a Python interpreter takes at least this

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


def _scrape(metrics: Metrics) -> tuple[Values, Values]:
    """Values by name and labels: all, and those of counters and histograms of what happened."""
    everything: Values = {}
    counts: Values = {}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        for sample in family.samples:
            series = sample.name, frozenset(sample.labels.items())
            everything[series] = sample.value
            if family.type in ("counter", "histogram") and "_reference_" not in family.name:
                counts[series] = sample.value
    return everything, counts


def _revisions(scrape: tuple[Values, Values]) -> set[str]:
    """The revisions of the models that are served."""
    shown = [dict(labels) for name, labels in scrape[0] if name == "sentiment_model_info"]
    return {labels["revision"] for labels in shown}


def _running(descriptor: int) -> AbstractContextManager["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(descriptor)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[descriptor],
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "counted\n"
    return process


def test_a_worker_that_is_killed_takes_no_count_with_it() -> None:
    """Counts add up, also after kill -9, and a successor goes on: nothing falls, as rate needs it.

    What the worker had at the moment is gone with it.
    """
    with shared_board(2) as (supervisor, descriptor):
        own = Metrics(Board.open(descriptor, 2, 0))
        own.model_info.show("model", {("revision 1", "int8", "CPU", "1.0"): 1})
        own.model_ready.watch(lambda: True, "model")
        own.queue_texts.watch(lambda: 1, "model")
        own.requests_in_flight.value += 1
        own.reference_text_tokens.labels("model").counts[0] = 5.0
        count_request(own, "POST", "/classify", 200, "ok", 0.003)

        def shown(name: str, **labels: str) -> float | None:
            return own.registry.get_sample_value(name, labels)

        alone = shown("process_resident_memory_bytes")
        assert alone is not None
        scrapes = []
        for life in (1, 2):
            with _running(descriptor) as worker:
                scrapes.append(_scrape(own))
                assert shown("sentiment_http_requests_total", **CLASSIFY) == 1 + life
                assert shown(COUNT, route="/classify", operation="other") == 1 + life
                assert shown(COUNT, route="/worker", operation="other") == life
                assert shown("sentiment_http_requests_in_flight") == 4
                assert shown("sentiment_queue_texts", model="model") == 8
                assert shown("sentiment_model_ready", model="model") == 1
                assert shown("sentiment_reference_text_tokens_count", model="model") == 7
                assert shown("sentiment_workers") == 2
                assert shown("sentiment_worker_pid", worker="1") == worker.pid
                assert shown("sentiment_worker_restarts_total") == life - 1
                together = shown("process_resident_memory_bytes")
                assert together is not None
                assert together > alone + INTERPRETER_BYTES
                assert _revisions(scrapes[-1]) == {"revision 1", "revision 2"}
                worker.kill()
            supervisor.clear_present(1)
            scrapes.append(_scrape(own))
            assert shown("sentiment_http_requests_in_flight") == 1
            assert shown("sentiment_queue_texts", model="model") == 1
            assert shown("sentiment_model_ready", model="model") == 1
            assert shown("sentiment_reference_text_tokens_count", model="model") == 5
            assert shown("sentiment_workers") == 1
            assert _revisions(scrapes[-1]) == {"revision 1"}
        for (_, before), (_, after) in pairwise(scrapes):
            fallen = {series for series, value in before.items() if after.get(series, -1) < value}
            assert fallen == set()


def _counter(board: Board) -> Counter:
    return Counter("things", "Things.", ["name"], SharedRegistry(board))


def _totals(counter: Counter) -> dict[tuple[str, ...], float]:
    return {labels: count.value for labels, count in counter.totals().items()}


def test_a_half_written_name_is_not_read() -> None:
    """A worker killed while it wrote a name leaves nothing that others or its successor count."""
    first, second = boards(2)
    counter, reader = _counter(second), _counter(first)
    counter.labels("whole").value += 1
    counter.publish()
    names = second.section("series", 1)
    end = bytes(names).index(b"\n") + 1
    torn = b'["counts", "things", 1, "a name that is much longer than the next o'
    names[end : end + len(torn)] = torn  # and not yet its length
    assert _totals(reader) == {("whole",): 1}
    successor = _counter(second)
    successor.labels("next").value += 1
    successor.labels("whole").value += 1
    successor.publish()
    assert _totals(reader) == _totals(successor) == {("whole",): 2, ("next",): 1}


def test_a_length_that_is_visible_before_its_name_waits() -> None:
    """On processors that show another's writes in any order, a name is read when all of it came."""
    first, second = boards(2)
    counter, reader = _counter(second), _counter(first)
    counter.labels("one").value += 1
    counter.publish()
    names = second.section("series", 1)
    written = bytes(names)
    names[NUMBER_BYTES + 4 : NUMBER_BYTES + 12] = bytes(8)
    assert _totals(reader) == {}
    names[:] = written
    assert _totals(reader) == {("one",): 1}


def test_series_without_room_are_counted_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """When a part is full, later series still count for their own worker, with one warning."""
    monkeypatch.setitem(SECTIONS, "series", 200)
    monkeypatch.setattr("sentiment_service.shared_memory._PART", sum(SECTIONS.values()))
    first, second = boards(2)
    counter, reader = _counter(second), _counter(first)
    names = [f"name {number}" for number in range(20)]
    for _ in range(2):
        for name in names:
            counter.labels(name).value += 1
    assert _totals(counter) == {(name,): 2 for name in names}
    shared = _totals(reader)
    assert 0 < len(shared) < len(names)
    assert shared.items() <= _totals(counter).items()
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_label_values_may_be_anything() -> None:
    """Line breaks, quotes, NUL and lone surrogates are the same series in each worker."""
    first, second = boards(2)
    counter, reader = _counter(second), _counter(first)
    values = ["", "a\nb", '"', "\\", "\0", "\ud800", "\u2028", "ü", *map(str, range(2_000))]
    for value in values:
        counter.labels(value).value += 1
        reader.labels(value).value += 1
    counter.publish()
    assert _totals(reader) == _totals(counter) == {(value,): 2 for value in values}


def test_new_series_are_found_by_readers_that_know_the_earlier_ones() -> None:
    """Counters, gauges and histograms may be added in any order, at any time."""
    both = []
    for board in boards(2):
        registry = SharedRegistry(board)
        counter = Counter("things", "Things.", ["name"], registry)
        gauge = Gauge("height", "Height.", ["name"], registry, merge=max)
        histogram = Histogram("size", "Size.", ["name"], registry, bounds=[1, 2])
        both.append((registry, counter, gauge, histogram))
    for number in range(3):
        for registry, counter, gauge, histogram in both:
            name = str(number)
            histogram.labels(name).observe(number)
            gauge.labels(name).value = 5 if registry is both[0][0] else 4
            counter.labels(name).value += 1
            generate_latest(registry)
    texts = [generate_latest(registry).decode().splitlines() for registry, *_ in both]
    assert sorted(texts[0]) == sorted(texts[1])
    for number in range(3):
        assert f'things_total{{name="{number}"}} 2.0' in texts[0]
        assert f'height{{name="{number}"}} 5.0' in texts[0]
        assert f'size_sum{{name="{number}"}} {2.0 * number}' in texts[0]
