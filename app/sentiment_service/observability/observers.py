"""What metrics and traces say of each request, and of the work of each model.

The OpenTelemetry SDK is an optional dependency. Without it, only the API is used, which does
nothing while no span is recorded.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from itertools import product
from typing import get_args

from opentelemetry import context, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from sentiment_service.engine.batching.fair_queue import BatchReport
from sentiment_service.engine.classifier import STAGES, Classification, Gauge
from sentiment_service.engine.model.model import Model
from sentiment_service.engine.shadow import Skipped
from sentiment_service.errors import (
    OUTCOMES,
    REJECTIONS,
    ClientDisconnected,
    ServiceError,
    UserError,
    first_line,
)
from sentiment_service.observability.metrics import OTHER_OPERATION, Metrics
from sentiment_service.observability.series import Distribution, Labels
from sentiment_service.results import TextWarning

TRUNCATED = "truncated"
WARNINGS = (*get_args(TextWarning), TRUNCATED)  # why the model may be wrong about a text
# Seconds that a collector may take. Short, so that a slow collector does not delay the shutdown.
TIMEOUT_S = 2


class Tracer:
    """Makes spans and sends them to an OTLP endpoint over HTTP, on its own thread."""

    def __init__(self, endpoint: str, *, version: str) -> None:
        """``endpoint`` is a collector's address, with the path /v1/traces or without it."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        own = Resource.create({"service.name": "sentiment", "service.version": version})
        # What its variables say comes before our names.
        resource = own.merge(OTELResourceDetector().detect())
        address = endpoint.rstrip("/").removesuffix("/v1/traces")
        try:
            self._provider = TracerProvider(resource=resource)
            exporter = OTLPSpanExporter(f"{address}/v1/traces", timeout=TIMEOUT_S)
            self._provider.add_span_processor(BatchSpanProcessor(exporter))
        except ValueError as error:
            reason = f"OpenTelemetry refuses one of its variables (OTEL_*): {first_line(error)}"
            raise UserError(reason) from None
        self._tracer = self._provider.get_tracer("sentiment", version)
        self._propagator = TraceContextTextMapPropagator()

    def request(self, headers: Mapping[bytes, bytes], method: str, since: float) -> trace.Span:
        """Start the span of a request, a child of the caller's span if the headers name one.

        It began when ``time.monotonic`` was ``since``, and is the current one until the end of the
        request's task.
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
            start_time=time.time_ns() - int((time.monotonic() - since) * 1e9),
        )
        context.attach(trace.set_span_in_context(span))
        return span

    def end_request(self, span: trace.Span, *, method: str, route: str, status: int) -> None:
        span.update_name(f"{method} {route}")
        span.set_attribute("http.route", route)
        span.set_attribute("http.response.status_code", status)
        if status >= 500:
            span.set_status(trace.StatusCode.ERROR)
        span.end()

    def stages(self, model: str, stages: Mapping[str, float]) -> None:
        """Record the stages of the current request, which end now, with their seconds."""
        begun_ns = time.time_ns() - int(sum(stages.values()) * 1e9)
        for name, seconds in stages.items():
            span = self._tracer.start_span(
                name, start_time=begun_ns, attributes={"sentiment.model": model}
            )
            begun_ns += int(seconds * 1e9)
            span.end(begun_ns)

    def batch(self, model: str, report: BatchReport) -> None:
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
        # It does not end the provider: the application may run again.
        sending = threading.Thread(target=self._provider.force_flush, daemon=True)
        sending.start()
        sending.join(TIMEOUT_S)


def current_tag() -> trace.SpanContext | None:
    """The span context that links a batch to the current request; None if it is not traced."""
    span = trace.get_current_span()
    return span.get_span_context() if span.is_recording() else None


def count_request(
    metrics: Metrics,
    method: str,
    route: str,
    status: int,
    outcome: str,
    seconds: float,
    trace: str | None = None,
) -> None:
    """Count an answered request. ``trace``, the id of its trace, is its duration's exemplar."""
    # With another method, a route's path takes no texts: GET / is the page.
    takes_texts = method in ("POST", "GRPC")
    operation = metrics.operations.get(route, OTHER_OPERATION) if takes_texts else OTHER_OPERATION
    metrics.requests.labels(route, method, status, operation, outcome).value += 1
    exemplar = {"trace_id": trace} if trace else None
    metrics.request_seconds.labels(route, operation).observe(seconds, exemplar)


# A label has a dozen series, and to render those of a thousand labels takes a fifth of a second, in
# which no request is answered. With more labels than this, each has them from its first text on.
MOST_LABELS = 100


class ModelObserver:
    """The ``Observer`` of one model: counts its work, and records its spans."""

    def __init__(
        self, metrics: Metrics, tracer: Tracer | None, model: Model, *, version: str
    ) -> None:
        name = model.name
        self._name, self._metrics, self._tracer = name, metrics, tracer
        self._model, self._version = model, version
        # A series exists from its first lookup on, so all are looked up here.
        for outcome in OUTCOMES:
            metrics.texts.labels(name, outcome)
        for reason in REJECTIONS:
            metrics.rejections.labels(name, reason)
        self._stage_seconds = {stage: metrics.stage_seconds.labels(name, stage) for stage in STAGES}
        self._scores: dict[str, Distribution] = {}
        self._text_tokens = metrics.text_tokens.labels(name)
        self._unknown_tokens = metrics.unknown_tokens.labels(name)
        self._warnings = {kind: metrics.warnings.labels(name, kind) for kind in WARNINGS}
        for label in model.labels if len(model.labels) <= MOST_LABELS else ():
            self._scores_of(label)
        # What is counted already is not counted again.
        metrics.texts.labels(name, "ok").function = self._text_tokens.total
        truncated = self._warnings[TRUNCATED]
        metrics.truncated.labels(name).function = lambda: truncated.value
        self._batch_lock = threading.Lock()  # several runners may report at the same time
        self._batch_texts = metrics.batch_texts.labels(name)
        self._batch_tokens = metrics.batch_tokens.labels(name)
        self._padding_ratio = metrics.padding_ratio.labels(name)
        self.lag = metrics.loop_lag.labels(name).observe
        # Asked for with each request. Without traces, this is the shortest call that gives None.
        self.tag: Callable[[], object] = current_tag if tracer is not None else type(None)
        self.runner_lost = metrics.runners_lost.labels(name).increment
        self.batch_stalled = metrics.stalled_batches.labels(name).increment
        self._out_of_memory = metrics.out_of_memory.labels(name)
        self._cache_hits = metrics.cache_hits.labels(name)
        self._cache_misses = metrics.cache_misses.labels(name)

    def watch(self, gauges: Mapping[str, Gauge]) -> None:
        metrics, name, model = self._metrics, self._name, self._model
        facts = (model.revision or "", model.precision, model.digest, model.provider, self._version)
        metrics.model_info.show(name, {facts: 1})
        seen, lengths = model.evaluation, metrics.reference_text_tokens.labels(name)
        shares = seen.shares
        by_label: dict[Labels, float] = {(label,): shares.get(label, 0.0) for label in model.labels}
        metrics.reference_share.show(name, by_label)
        lengths.counts, lengths.sum = [*seen.lengths.values()], seen.tokens
        metrics.reference_unknown_tokens.labels(name).value = seen.unknown_tokens
        for gauge, value in gauges.items():
            getattr(metrics, gauge).watch(value, name)

    def answered(self, done: Classification, texts: int) -> None:
        stages, (tokenize, queue, inference) = done.stages, STAGES
        # If nothing was computed, only the first counts.
        if not (stages[queue] or stages[inference]):
            stages = {tokenize: stages[tokenize]}
        for stage, seconds in stages.items():
            self._stage_seconds[stage].observe(seconds)
        if self._tracer is not None and self.tag() is not None:
            self._tracer.stages(self._name, stages)
        for outcome, unknown in zip(done.outcomes[:texts], done.unknown, strict=False):
            if isinstance(outcome, ServiceError):
                self._metrics.texts.labels(self._name, outcome.outcome).value += 1
                continue
            self._scores_of(outcome["label"]).observe(outcome["score"])
            self._text_tokens.observe(outcome["tokens"])
            self._unknown_tokens.value += unknown
            if outcome["truncated"]:
                self._warnings[TRUNCATED].value += 1
            for warning in outcome.get("warnings", ()):
                self._warnings[warning].value += 1

    def _scores_of(self, label: str) -> Distribution:
        if (scores := self._scores.get(label)) is None:
            scores = self._scores[label] = self._metrics.score.labels(self._name, label)
            self._metrics.predictions.labels(self._name, label).function = scores.total
        return scores

    def failure(self, error: BaseException, texts: int) -> None:
        if isinstance(error, asyncio.CancelledError):
            error = ClientDisconnected("while its texts were classified")
        if not isinstance(error, ServiceError):
            return
        self._metrics.texts.labels(self._name, error.outcome).value += texts
        if error.rejection:
            self._metrics.rejections.labels(self._name, error.rejection).value += 1

    def cache_lookup(self, hits: int, misses: int) -> None:
        self._cache_hits.value += hits
        self._cache_misses.value += misses

    def batch(self, report: BatchReport) -> None:
        with self._batch_lock:
            self._batch_texts.observe(report.items)
            self._batch_tokens.observe(report.padded_tokens)
            self._padding_ratio.observe(1 - report.tokens / report.padded_tokens)
            self._out_of_memory.value += report.out_of_memory
        if self._tracer is not None:
            self._tracer.batch(self._name, report)


# With more, most pairs of two labels are never seen; each is a series from its first text on.
MOST_PAIRED_LABELS = 10


class ShadowCounts:
    """The ``ShadowObserver`` of a model and a candidate with this digest."""

    def __init__(self, metrics: Metrics, model: Model, candidate: str) -> None:
        self._metrics = metrics
        self._tried = (model.name, model.digest, candidate)
        self._texts = {
            outcome: metrics.shadow_texts.labels(*self._tried, outcome)
            for outcome in ("agreed", "differed", *get_args(Skipped))
        }
        if len(model.labels) <= MOST_PAIRED_LABELS:
            for pair in product(model.labels, repeat=2):
                metrics.shadow_labels.labels(*self._tried, *pair)
        self._polarity = metrics.shadow_polarity.labels(*self._tried)
        self._seconds = metrics.shadow_seconds.labels(*self._tried)

    def compared(
        self, label: str, candidate_label: str, difference: float | None, seconds: float
    ) -> None:
        self._metrics.shadow_labels.labels(*self._tried, label, candidate_label).value += 1
        self._texts["agreed" if label == candidate_label else "differed"].value += 1
        if difference is not None:
            self._polarity.observe(difference)
        self._seconds.observe(seconds)

    def skipped(self, reason: Skipped) -> None:
        self._texts[reason].value += 1
