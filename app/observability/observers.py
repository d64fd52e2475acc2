"""What metrics, traces and log say of each request, and of the work of each model."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.engine.batching.batches import BatchReport
from app.engine.model.model import Model
from app.engine.observer import STAGES, Observer
from app.engine.predictions import Outcome
from app.errors import OUTCOMES, REJECTIONS, ClientDisconnected, ServiceError
from app.observability.logs import log_request
from app.observability.metrics import OTHER_OPERATION, Metrics
from app.observability.traces import Tracer, current_tag


@dataclass(slots=True)
class ModelUse:
    """What was asked of a model: its name and the number of texts; then what the answer took.

    ``tokens`` are those of the texts that have a result, special ones included, before truncation.
    """

    model: str
    texts: int
    tokens: int = 0
    stages: dict[str, float] = field(default_factory=dict)  # seconds


@dataclass(slots=True)
class RequestReport:
    """What metrics and log say of a request that was answered. ``code`` is that of the error.

    ``method`` is HTTP's, or GRPC. ``trace`` is the id of the trace. ``reason`` is why its bytes are
    no request. ``quiet`` is what orchestrators and Prometheus ask for all the time.
    """

    request_id: str
    client: str
    method: str
    route: str
    status: int
    seconds: float
    code: str = ""
    reason: str = ""
    trace: str | None = None
    model_use: ModelUse | None = None
    quiet: bool = False

    def fields(self) -> dict[str, Any]:
        """The fields of its line in the log."""
        fields: dict[str, Any] = {"request_id": self.request_id}
        if self.trace:
            fields["trace_id"] = self.trace
        fields |= {"client": self.client, "method": self.method}
        fields |= {"route": self.route, "status": self.status}
        if self.code:
            fields["code"] = self.code
        if self.reason:
            return {**fields, "reason": self.reason}
        use = self.model_use
        if use is not None:
            fields |= {"model": use.model, "texts": use.texts, "tokens": use.tokens}
        fields["duration_ms"] = round(self.seconds * 1000, 2)
        if use is not None:
            for name, spent in use.stages.items():
                fields[f"{name}_ms"] = round(spent * 1000, 2)
        return fields


def observe_request(report: RequestReport, metrics: Metrics, *, logged: bool) -> None:
    """Count an answered request and, if requests are ``logged``, write its line.

    Its trace id, if any, is the exemplar of its duration.
    """
    if logged:
        log_request(report.fields(), quiet=report.quiet)
    operation = metrics.operations.get(report.route, OTHER_OPERATION)
    metrics.requests.labels(report.route, report.method, report.status, operation).value += 1
    exemplar = {"trace_id": report.trace} if report.trace else None
    metrics.request_seconds.labels(report.route, operation).observe(report.seconds, exemplar)


class ModelObserver(Observer):
    """Counts the work of one model, and records its spans."""

    def __init__(
        self, metrics: Metrics, tracer: Tracer | None, model: Model, *, version: str
    ) -> None:
        name = model.name
        self._name, self._metrics, self._tracer = name, metrics, tracer
        # A series exists from its first lookup on, so all are looked up here.
        for outcome in OUTCOMES:
            metrics.texts.labels(name, outcome)
        for reason in REJECTIONS:
            metrics.rejections.labels(name, reason)
        self._stage_seconds = {stage: metrics.stage_seconds.labels(name, stage) for stage in STAGES}
        self._predictions = {
            label: metrics.predictions.labels(name, label) for label in model.labels
        }
        self._scores = {label: metrics.score.labels(name, label) for label in model.labels}
        self._answered = metrics.texts.labels(name, "ok")
        self._text_tokens = metrics.text_tokens.labels(name)
        self._truncated = metrics.truncated.labels(name)
        self._batch_lock = threading.Lock()  # several runners may report at the same time
        self._batch_texts = metrics.batch_texts.labels(name)
        self._batch_tokens = metrics.batch_tokens.labels(name)
        self._padding_ratio = metrics.padding_ratio.labels(name)
        self._loop_lag = metrics.loop_lag.labels(name)
        self._runners_lost = metrics.runners_lost.labels(name)
        self._stalled = metrics.stalled_batches.labels(name)
        self._out_of_memory = metrics.out_of_memory.labels(name)
        self._cache_hits = metrics.cache_hits.labels(name)
        self._cache_misses = metrics.cache_misses.labels(name)
        self._facts = (model.revision or "", model.precision, model.provider, version)

    def watch(self, **gauges: Callable[[], float]) -> None:
        self._metrics.show_model(self._name, *self._facts)
        for name, function in gauges.items():
            getattr(self._metrics, name).watch(function, self._name)

    def predictions(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, ServiceError):
                self._metrics.texts.labels(self._name, outcome.code).value += 1
                continue
            label = outcome["label"]
            self._answered.value += 1
            self._predictions[label].value += 1
            self._scores[label].observe(outcome["score"])
            self._text_tokens.observe(outcome["tokens"])
            self._truncated.value += outcome["truncated"]

    def failure(self, error: BaseException, texts: int) -> None:
        if isinstance(error, asyncio.CancelledError):
            error = ClientDisconnected("while its texts were classified")
        if not isinstance(error, ServiceError):
            return
        self._metrics.texts.labels(self._name, error.code).value += texts
        if error.rejection:
            self._metrics.rejections.labels(self._name, error.rejection).value += 1

    def tag(self) -> object:
        return current_tag() if self._tracer is not None else None

    def stages(self, stages: Mapping[str, float], *, begun_ns: int, tag: object) -> None:
        tokenize, queue, inference = STAGES
        # If nothing was computed, only the first counts.
        if not (stages[queue] or stages[inference]):
            stages = {tokenize: stages[tokenize]}
        for stage, seconds in stages.items():
            self._stage_seconds[stage].observe(seconds)
        if self._tracer is not None and tag is not None:
            self._tracer.stages(self._name, begun_ns, stages)

    def cache_lookup(self, hits: int, misses: int) -> None:
        self._cache_hits.value += hits
        self._cache_misses.value += misses

    def lag(self, seconds: float) -> None:
        self._loop_lag.observe(seconds)

    def runner_lost(self) -> None:
        self._runners_lost.value += 1

    def batch_stalled(self) -> None:
        self._stalled.value += 1

    def batch(self, report: BatchReport) -> None:
        with self._batch_lock:
            self._batch_texts.observe(report.items)
            self._batch_tokens.observe(report.padded_tokens)
            self._padding_ratio.observe(1 - report.tokens / report.padded_tokens)
            self._out_of_memory.value += report.out_of_memory
        if self._tracer is not None:
            self._tracer.batch(self._name, report)
