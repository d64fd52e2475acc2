"""Every metric: its name, labels and buckets. What can be counted shows from the first scrape."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from app import logs
from app.engine.batching.report import BatchReport
from app.engine.model import Model
from app.errors import (
    ClientDisconnected,
    DeadlineExceeded,
    EmptyText,
    InferenceFailed,
    InvalidRequest,
    NotReady,
    Overloaded,
    PayloadTooLarge,
    ShuttingDown,
    TextTooLong,
    TooManyTexts,
)

# Buckets lie where values were measured to lie, see docs/operations.md.
SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.35, 0.5, 0.75),
    *(1, 1.5, 2.5, 5, 10),
)
# A stage is a part of a request, and tokenising a tweet takes a tenth of a millisecond.
STAGE_SECONDS = (0.0001, 0.00025, 0.0005, *SECONDS)
SCORES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
PADDING = (0.0, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.2, 0.5)
TEXT_TOKENS = (4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024)
BATCH_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
BATCH_TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)

STAGES = ("tokenize", "queue", "inference")
OUTCOMES = (
    "ok",
    *(
        error.code
        for error in (
            ClientDisconnected,
            DeadlineExceeded,
            EmptyText,
            InferenceFailed,
            InvalidRequest,
            NotReady,
            Overloaded,
            PayloadTooLarge,
            ShuttingDown,
            TextTooLong,
            TooManyTexts,
        )
    ),
)
REJECTIONS = ("queue_full", "deadline", "inflight_bytes", "not_ready", "shutting_down")


class Metrics:
    """The metrics of one application, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.registry.register(_LogCollector())

        self.requests = self._counter(
            "http_requests",
            "HTTP requests answered; status 499 is a client that left.",
            ["route", "method", "status"],
        )
        self.request_seconds = self._histogram(
            "http_request_duration_seconds", "From headers to answer.", ["route"], SECONDS
        )
        # Looking up a series by its labels costs more than counting. There are few: what a client
        # makes up is no route and no method.
        self._answers = cache(self.requests.labels)
        self._durations = cache(self.request_seconds.labels)
        self.requests_in_flight = 0  # a gauge of its own would take a lock twice a request
        in_flight = self._gauge("http_requests_in_flight", "HTTP requests being answered.", [])
        in_flight.set_function(lambda: self.requests_in_flight)

        self.texts = self._counter("texts", "Texts by what became of them.", ["model", "outcome"])
        self.predictions = self._counter(
            "predictions", "Texts by predicted label.", ["model", "label"]
        )
        self.score = self._histogram(
            "prediction_score", "Score of the predicted label.", ["model", "label"], SCORES
        )
        self.text_tokens = self._histogram(
            "text_tokens", "Tokens of a text before truncation.", ["model"], TEXT_TOKENS
        )
        self.truncated = self._counter("truncated", "Texts whose end was cut off.", ["model"])
        self.stage_seconds = self._histogram(
            "stage_duration_seconds",
            "Parts of a request: tokenize; queue, while none of its texts is computed; inference, "
            "while some are.",
            ["model", "stage"],
            STAGE_SECONDS,
        )
        self.batch_texts = self._histogram(
            "batch_texts", "Texts in a batch.", ["model"], BATCH_TEXTS
        )
        self.batch_tokens = self._histogram(
            "batch_tokens", "Tokens in a batch, with padding.", ["model"], BATCH_TOKENS
        )
        self.padding_ratio = self._histogram(
            "batch_padding_ratio", "Share of a batch that is padding.", ["model"], PADDING
        )
        self.queue_texts = self._gauge("queue_texts", "Texts waiting for a batch.", ["model"])
        self.queue_tokens = self._gauge("queue_tokens", "Tokens waiting for a batch.", ["model"])
        self.rejections = self._counter(
            "rejections", "Requests not admitted to the queue.", ["model", "reason"]
        )
        self.runners_stuck = self._gauge(
            "runners_stuck", "Runners whose batch takes far longer than predicted.", ["model"]
        )
        self.runners_lost = self._counter(
            "runners_lost", "Threads of runners that ended and were to be replaced.", ["model"]
        )
        self.loop_lag = self._histogram(
            "event_loop_lag_seconds",
            "From a batch's end to the event loop's turn to answer it.",
            ["model"],
            STAGE_SECONDS,
        )
        self.model_info = self._gauge(
            "model_info",
            "Always 1: what the labels say is served.",
            ["model", "revision", "precision", "provider", "version"],
        )
        self._shown_models: dict[str, tuple[str, ...]] = {}
        self.model_ready = self._gauge("model_ready", "1 while the model answers.", ["model"])

    def show_model(self, name: str, *facts: str) -> None:
        """Have ``model_info`` say this of the model, and no more what it said before."""
        shown = self._shown_models.pop(name, None)
        if shown is not None:
            self.model_info.remove(name, *shown)
        self.model_info.labels(name, *facts).set(1)
        self._shown_models[name] = facts

    def expect_request(self, route: str, method: str, status: int) -> None:
        """Make the series of such requests, at 0."""
        self.requests.labels(route, method, status)
        self.request_seconds.labels(route)

    def observe_request(
        self, route: str, method: str, status: int, seconds: float, trace_id: str | None
    ) -> None:
        """Count an answered request; its trace, if it has one, is the exemplar of its duration."""
        self._answers(route, method, status).inc()
        exemplar = {"trace_id": trace_id} if trace_id else None
        self._durations(route).observe(seconds, exemplar)

    def _counter(self, name: str, text: str, labels: Sequence[str]) -> Counter:
        return Counter(f"sentiment_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: Sequence[str]) -> Gauge:
        return Gauge(f"sentiment_{name}", text, labels, registry=self.registry)

    def _histogram(
        self, name: str, text: str, labels: Sequence[str], buckets: Sequence[float]
    ) -> Histogram:
        return Histogram(f"sentiment_{name}", text, labels, buckets=buckets, registry=self.registry)


class _LogCollector(Collector):
    """The log is the process's, and counts for itself."""

    def collect(self) -> Iterator[CounterMetricFamily]:
        yield CounterMetricFamily(
            "sentiment_log_lines_dropped",
            "Log lines that were not written: standard error was not read in time, or is gone.",
            value=logs.dropped_lines(),
        )


class ModelMetrics:
    """One model's series, looked up once: ``labels()`` costs as much as counting."""

    def __init__(self, metrics: Metrics, model: Model, *, version: str) -> None:
        name = model.name
        self._texts = {outcome: metrics.texts.labels(name, outcome) for outcome in OUTCOMES}
        self._name, self._metrics = name, metrics
        self._predictions: dict[str, tuple[Counter, Histogram]] = {}
        for label in model.labels:
            self._expect_label(label)
        self._text_tokens = metrics.text_tokens.labels(name)
        self._truncated = metrics.truncated.labels(name)
        self._stages = {stage: metrics.stage_seconds.labels(name, stage) for stage in STAGES}
        self._batch_texts = metrics.batch_texts.labels(name)
        self._batch_tokens = metrics.batch_tokens.labels(name)
        self._padding_ratio = metrics.padding_ratio.labels(name)
        self._loop_lag = metrics.loop_lag.labels(name)
        self._queue_texts = metrics.queue_texts.labels(name)
        self._queue_tokens = metrics.queue_tokens.labels(name)
        self._rejections = {
            reason: metrics.rejections.labels(name, reason) for reason in REJECTIONS
        }
        self._runners_stuck = metrics.runners_stuck.labels(name)
        self._runners_lost = metrics.runners_lost.labels(name)
        self._ready = metrics.model_ready.labels(name)
        metrics.show_model(name, model.revision or "", model.precision, model.provider, version)

    def _expect_label(self, label: str) -> None:
        counter = self._metrics.predictions.labels(self._name, label)
        self._predictions[label] = counter, self._metrics.score.labels(self._name, label)

    def watch(
        self,
        *,
        queue_texts: Callable[[], float],
        queue_tokens: Callable[[], float],
        runners_stuck: Callable[[], float],
        ready: Callable[[], float],
    ) -> None:
        """Ask these for the gauges at each scrape."""
        self._queue_texts.set_function(queue_texts)
        self._queue_tokens.set_function(queue_tokens)
        self._runners_stuck.set_function(runners_stuck)
        self._ready.set_function(ready)

    def prediction(self, label: str, score: float, *, tokens: int, truncated: bool) -> None:
        """Count a text that was answered."""
        if label not in self._predictions:  # of the model that was here before a reload
            self._expect_label(label)
        predictions, scores = self._predictions[label]
        predictions.inc()
        scores.observe(score)
        self._texts["ok"].inc()
        self._text_tokens.observe(tokens)
        if truncated:
            self._truncated.inc()

    def failure(self, outcome: str, texts: int = 1) -> None:
        """Count texts that were not answered; ``outcome`` is an error's code."""
        self._texts[outcome].inc(texts)

    def rejection(self, reason: str) -> None:
        """Count a request that was not admitted."""
        self._rejections[reason].inc()

    def stage(self, stage: str, seconds: float) -> None:
        """Add a part of a request."""
        self._stages[stage].observe(seconds)

    def lag(self, seconds: float) -> None:
        """Add how long finished work waited for the event loop."""
        self._loop_lag.observe(seconds)

    def runner_lost(self) -> None:
        """Count a thread that ended and is to be replaced."""
        self._runners_lost.inc()

    def batch(self, report: BatchReport) -> None:
        """Add a batch; called on the runners' threads."""
        self._batch_texts.observe(report.texts)
        self._batch_tokens.observe(report.padded_tokens)
        self._padding_ratio.observe(1 - report.tokens / report.padded_tokens)
