"""Traces: what a collector gets from a real server, over OTLP."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from sentiment_service.observability.observers import Tracer

from tests.conftest import Start
from tests.support import http_server
from tests.support.serving import COMMAND, SLOW_COMMAND, Process, metric, patched, run_program

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TEXT = "xyzzy-plugh"
WAIT_S = 0.3
# Requests begin this late, as behind many others.
LATE_COMMAND = patched(
    f"""
import asyncio
from sentiment_service.server.arrivals import Turns
Turns.take = lambda self, start: asyncio.get_running_loop().call_later({WAIT_S}, start)
"""
)


class Collector:
    """Takes spans over HTTP, as an OpenTelemetry collector does."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []

    def take(self, request: BaseHTTPRequestHandler, body: bytes) -> http_server.Answer:
        """The answer to a request with spans."""
        assert request.path == "/v1/traces"
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append(_attributes(resource.resource))
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        return 200, {}, b""

    def named(self, name: str) -> list[Any]:
        """The spans of this name."""
        return [span for span in self.spans if span.name == name]


def _attributes(holder: Any) -> dict[str, Any]:
    return {
        pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in holder.attributes
    }


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector on a port of its own."""
    collector = Collector()
    with http_server.listening(collector.take) as collector.url:
        yield collector


def _served(start: Start, collector: Collector, **options: Any) -> Process:
    return start("--otlp-endpoint", collector.url, "--access-log", "on", **options)


def test_a_request_is_a_span_with_its_stages(start: Start, collector: Collector) -> None:
    """Under the caller's span; the stages under it, one after the other; all sent at the end."""
    process = _served(start, collector)
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    answer = process.client.post("/classify", json={"inputs": "love"}, headers=headers)
    assert answer.status_code == 200
    process.terminate()
    (request,) = collector.named("POST /classify")
    assert (request.trace_id.hex(), request.parent_span_id.hex()) == (TRACE, PARENT)
    assert request.kind == request.SPAN_KIND_SERVER
    attributes = _attributes(request)
    assert attributes["http.route"] == "/classify"
    assert attributes["http.response.status_code"] == 200
    stages = [collector.named(name)[0] for name in ("tokenize", "queue", "inference")]
    for stage in stages:
        assert stage.parent_span_id == request.span_id
        assert stage.trace_id == request.trace_id
        assert _attributes(stage)["sentiment.model"] == "tiny"
    for before, after in pairwise(stages):
        assert before.end_time_unix_nano == after.start_time_unix_nano
    assert request.start_time_unix_nano <= stages[0].start_time_unix_nano
    assert collector.resources[0]["service.name"] == "sentiment"


def test_the_wait_for_a_turn_is_a_part_of_the_request(start: Start, collector: Collector) -> None:
    """Metrics, log and trace have the time from its head on: a busy event loop is no quick one."""
    process = _served(start, collector, command=LATE_COMMAND)
    process.client.post("/classify", json={"inputs": "love"}).raise_for_status()
    seconds = "sentiment_http_request_duration_seconds_sum"
    assert metric(process.client, seconds, route="/classify") >= WAIT_S
    log = process.terminate()
    (line,) = (one for one in map(json.loads, log.splitlines()) if one.get("route") == "/classify")
    assert line["duration_ms"] >= WAIT_S * 1000
    (span,) = collector.named("POST /classify")
    assert span.end_time_unix_nano - span.start_time_unix_nano >= WAIT_S * 1e9


def test_an_environment_for_other_programs_does_no_harm(start: Start, collector: Collector) -> None:
    """Whatever propagators it names, and whether they are installed, W3C's headers are read."""
    process = _served(start, collector, variables={"OTEL_PROPAGATORS": "b3, xray"})
    process.client.get("/health", headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
    process.terminate()
    assert collector.named("GET /health")[0].trace_id.hex() == TRACE


def test_the_variables_of_the_sdk_name_the_service(start: Start, collector: Collector) -> None:
    """They come before our own name and version."""
    variables = {
        "OTEL_SERVICE_NAME": "reviews",
        "OTEL_RESOURCE_ATTRIBUTES": "service.version=7,team=shop",
    }
    process = _served(start, collector, variables=variables)
    process.client.get("/health")
    process.terminate()
    named = {"service.name": "reviews", "service.version": "7", "team": "shop"}
    assert named.items() <= collector.resources[0].items()


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("OTEL_SPAN_LINK_COUNT_LIMIT", "abc", "OTEL_SPAN_LINK_COUNT_LIMIT must be "),
        ("OTEL_BSP_SCHEDULE_DELAY", "-5", "schedule_delay_millis must be "),
    ],
)
def test_a_variable_that_the_sdk_refuses_is_one_line(
    bundle: Path, variable: str, value: str, reason: str
) -> None:
    """The start ends with the SDK's reason, without a traceback, before a model is loaded."""
    flags = ["--port", "0", "--log-format", "human", "--otlp-endpoint", "http://127.0.0.1:9"]
    changed: dict[str, Any] = {variable: value}
    done = run_program(*COMMAND, "serve", "--model", bundle, *flags, **changed)
    assert done.returncode == 1
    first, last = done.stderr.splitlines()
    assert "port 0" in first
    assert last.startswith("sentiment: OpenTelemetry refuses one of its variables (OTEL_*): ")
    assert reason in last


@pytest.mark.parametrize("path", ["", "/", "/v1/traces", "/v1/traces/"])
async def test_a_collector_may_be_named_with_the_path_of_traces(
    collector: Collector, path: str
) -> None:
    """Other programs want the whole URL of a collector; it is the same one.

    An application that runs a second time closes its tracer twice; spans of both times are sent.
    """
    tracer = Tracer(f"{collector.url}{path}", version="1")
    for sent in (1, 2):
        tracer.request({}, "GET", monotonic()).end()
        tracer.close()
        assert len(collector.named("GET")) == sent


def test_a_batch_is_linked_to_all_requests_in_it(start: Start, collector: Collector) -> None:
    """It is a trace of its own: it belongs to several."""
    process = _served(start, collector, command=SLOW_COMMAND)
    body = {"inputs": ["love", "worst"]}
    with ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(process.client.post, "/classify", json=body) for _ in range(12)]
        assert {answer.result().status_code for answer in asked} == {200}
    process.terminate()
    requests = {span.span_id for span in collector.named("POST /classify")}
    batches = collector.named("batch")
    linked = [{link.span_id for link in batch.links} for batch in batches]
    assert set.union(*linked) == requests
    assert max(map(len, linked)) > 1
    assert all(not batch.parent_span_id for batch in batches)
    found = [_attributes(batch) for batch in batches]
    assert sum(one["sentiment.texts"] for one in found) == 24


def test_failures_and_probes_are_spans_too_and_no_text_is_in_any(
    start: Start, collector: Collector
) -> None:
    """The route's template and the status are all that a request tells.

    The log has the trace of a request whose caller has none: the one that begins here.
    """
    process = _served(start, collector)
    process.client.post(f"/classify?text={TEXT}", json={"inputs": f"{TEXT} nan"})
    process.client.get(f"/{TEXT}?{TEXT}", headers={"tracestate": "a=b"})
    wrong = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": f"{TEXT}, a=b, a={TEXT}"}
    process.client.get("/health", headers=wrong)
    log = process.terminate()
    assert TEXT not in log
    (failed,) = collector.named("POST /classify")
    assert failed.status.code == failed.status.STATUS_CODE_ERROR
    (unmatched,) = collector.named("GET unmatched")
    assert _attributes(unmatched)["http.response.status_code"] == 404
    assert f'"trace_id":"{unmatched.trace_id.hex()}"' in log
    assert collector.named("GET /health")
    assert TEXT not in str(collector.spans)
