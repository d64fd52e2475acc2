"""OpenTelemetry traces: spans for each request, for its stages, and for batches of requests.

The OpenTelemetry SDK is an optional dependency. Without it, this module uses only the API, which
does nothing while no span is recorded.
"""

import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from opentelemetry import context, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

if TYPE_CHECKING:
    from sentiment_service.engine.batching.fair_queue import BatchReport

# A module of the extra `otel`, which Tracer needs.
EXPORTER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
# Seconds that a collector may take. Short, so that a slow collector does not delay the shutdown.
TIMEOUT_S = 2


class Tracer:
    """Makes spans and sends them to an OTLP endpoint over HTTP, on its own thread."""

    def __init__(self, endpoint: str, *, version: str) -> None:
        """``endpoint`` is a collector's address, such as http://localhost:4318."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        attributes = {"service.name": "sentiment", "service.version": version}
        self._provider = TracerProvider(resource=Resource.create(attributes))
        exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces", timeout=TIMEOUT_S)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("sentiment", version)
        self._propagator = TraceContextTextMapPropagator()

    def request(self, headers: Mapping[bytes, bytes], method: str) -> trace.Span:
        """Start the span of a request, a child of the caller's span if the headers name one.

        It is the current one until the end of the request's task.
        """
        carrier = {
            name.decode(): value.decode("latin-1")
            for name, value in headers.items()
            if name in (b"traceparent", b"tracestate")
        }
        parent = self._propagator.extract(carrier)
        span = self._tracer.start_span(
            method,
            parent,
            kind=trace.SpanKind.SERVER,
            attributes={"http.request.method": method},
        )
        context.attach(trace.set_span_in_context(span))
        return span

    def end_request(self, span: trace.Span, *, method: str, route: str, status: int) -> None:
        """Add what is known after the answer, and end the span."""
        span.update_name(f"{method} {route}")
        span.set_attribute("http.route", route)
        span.set_attribute("http.response.status_code", status)
        if status >= 500:
            span.set_status(trace.StatusCode.ERROR)
        span.end()

    def stages(self, model: str, begun_ns: int, stages: Mapping[str, float]) -> None:
        """Record the stages of the current request, one after the other, with their seconds."""
        for name, seconds in stages.items():
            span = self._tracer.start_span(
                name, start_time=begun_ns, attributes={"sentiment.model": model}
            )
            begun_ns += int(seconds * 1e9)
            span.end(begun_ns)

    def batch(self, model: str, report: "BatchReport") -> None:
        """Record a finished batch. Its span has no parent; it links to all its requests."""
        links = [trace.Link(tag) for tag in report.tags if isinstance(tag, trace.SpanContext)]
        if not links:
            return
        now_ns = time.time_ns()
        span = self._tracer.start_span(
            "batch",
            trace.set_span_in_context(trace.INVALID_SPAN),
            links=links,
            start_time=now_ns - int(report.seconds * 1e9),
            attributes={
                "sentiment.model": model,
                "sentiment.texts": report.items,
                "sentiment.padded_tokens": report.padded_tokens,
            },
        )
        span.end(now_ns)

    def close(self) -> None:
        """Send the remaining spans; give up after ``TIMEOUT_S`` seconds."""
        sending = threading.Thread(target=self._provider.shutdown, daemon=True)
        sending.start()
        sending.join(TIMEOUT_S)


def current_tag() -> trace.SpanContext | None:
    """The span context that links a batch to the current request; None if it is not traced."""
    span = trace.get_current_span()
    return span.get_span_context() if span.is_recording() else None
