"""Traces: what a collector gets from a real server, over OTLP."""

import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from app.config.extras import install_command
from tests.conftest import FLAGS
from tests.support.serving import SLOW_COMMAND, Process, environment, patched

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TEXT = "xyzzy-plugh"


class Collector:
    """Takes spans over HTTP, as an OpenTelemetry collector does."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector._take(self.path, body)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _take(self, path: str, body: bytes) -> None:
        assert path == "/v1/traces"
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append(_attributes(resource.resource))
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]

    def named(self, name: str) -> list[Any]:
        """The spans of this name."""
        return [span for span in self.spans if span.name == name]

    def close(self) -> None:
        """Take no more."""
        self._server.shutdown()
        self._server.server_close()


def _attributes(holder: Any) -> dict[str, Any]:
    return {
        pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in holder.attributes
    }


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector on a port of its own."""
    collector = Collector()
    yield collector
    collector.close()


def _served(bundle: Path, endpoint: str, **options: Any) -> Process:
    return Process("--model", str(bundle), *FLAGS, "--otlp-endpoint", endpoint, **options)


def test_a_request_is_a_span_with_its_stages(bundle: Path, collector: Collector) -> None:
    """Under the caller's span; the stages under it, one after the other; all sent at the end."""
    with _served(bundle, collector.url) as process:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        answer = httpx2.post(f"{process.url}/classify", json={"inputs": "love"}, headers=headers)
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


def test_a_batch_is_linked_to_all_requests_in_it(bundle: Path, collector: Collector) -> None:
    """It is a trace of its own: it belongs to several."""
    with _served(bundle, collector.url, command=SLOW_COMMAND) as process:
        with ThreadPoolExecutor(12) as pool:
            body = {"inputs": ["love", "worst"]}
            asked = [
                pool.submit(httpx2.post, f"{process.url}/classify", json=body) for _ in range(12)
            ]
            assert {answer.result().status_code for answer in asked} == {200}
        process.terminate()
    requests = {span.span_id for span in collector.named("POST /classify")}
    batches = collector.named("batch")
    linked = [{link.span_id for link in batch.links} for batch in batches]
    assert set.union(*linked) == requests
    assert max(map(len, linked)) > 1
    assert all(not batch.parent_span_id for batch in batches)
    found = [_attributes(batch) for batch in batches]
    assert sum(one["sentiment.texts"] + one["sentiment.shared_texts"] for one in found) == 24
    assert all(one["sentiment.texts"] <= 2 for one in found)


def test_failures_and_probes_are_spans_too_and_no_text_is_in_any(
    bundle: Path, collector: Collector
) -> None:
    """The route's template and the status are all that a request tells."""
    with _served(bundle, collector.url) as process:
        httpx2.post(f"{process.url}/classify?text={TEXT}", json={"inputs": f"{TEXT} nan"})
        httpx2.get(f"{process.url}/{TEXT}?{TEXT}", headers={"tracestate": "a=b"})
        httpx2.get(f"{process.url}/health")
        process.signal(signal.SIGTERM)
        process.wait()
    (failed,) = collector.named("POST /classify")
    assert failed.status.code == failed.status.STATUS_CODE_ERROR
    (unmatched,) = collector.named("GET unmatched")
    assert _attributes(unmatched)["http.response.status_code"] == 404
    assert collector.named("GET /health")
    assert TEXT not in str(collector.spans)


def test_the_log_has_the_trace(bundle: Path, collector: Collector) -> None:
    """Of a request whose caller has none: the one that begins here."""
    flags = ["--model", str(bundle), *FLAGS, "--otlp-endpoint", collector.url]
    with Process(*flags, "--access-log", "on") as process:
        httpx2.get(f"{process.url}/info")
        log = process.terminate()
    (span,) = collector.named("GET /info")
    assert f'"trace_id":"{span.trace_id.hex()}"' in log


def test_a_collector_that_is_gone_harms_nobody(bundle: Path, collector: Collector) -> None:
    """Requests are answered, and the process ends."""
    collector.close()
    with _served(bundle, collector.url) as process:
        answer = httpx2.post(f"{process.url}/classify", json={"inputs": "love"})
        assert answer.status_code == 200
        process.terminate()


def test_without_the_sdk_it_is_said_how_to_get_it(bundle: Path) -> None:
    """One line, not a traceback; and without an endpoint the SDK is not even looked for."""
    hidden = patched("sys.modules['opentelemetry.sdk'] = None")
    flags = ["--model", str(bundle), *FLAGS]
    done = subprocess.run(
        [*hidden, "serve", *flags, "--port", "0", "--otlp-endpoint", "http://localhost:4318"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert install_command("otel") in done.stderr
    assert "Traceback" not in done.stderr
    with Process(*flags, command=hidden):
        pass
