"""What metrics and traces say of each request, and of the work of each model."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from sentiment_service.engine.batching.fair_queue import BatchReport
from sentiment_service.engine.model.model import Model
from sentiment_service.engine.observer import STAGES, Gauges
from sentiment_service.errors import OUTCOMES, REJECTIONS, ClientDisconnected, ServiceError
from sentiment_service.observability.metrics import OTHER_OPERATION, Metrics
from sentiment_service.observability.traces import Tracer, current_tag
from sentiment_service.results import Outcome


@dataclass(slots=True)
class ModelUse:
    """What a request asks of a model: its name and the number of texts; then what that took.

    ``tokens`` are those of the texts that have a result, special ones included, before truncation.
    """

    model: str = ""
    texts: int = 0
    tokens: int = 0
    stages: dict[str, float] = field(default_factory=dict)  # seconds


def count_request(
    metrics: Metrics, method: str, route: str, status: int, seconds: float, trace: str | None = None
) -> None:
    """Count an answered request. ``trace``, the id of its trace, is its duration's exemplar."""
    operation = metrics.operations.get(route, OTHER_OPERATION)
    metrics.requests.labels(route, method, status, operation).value += 1
    exemplar = {"trace_id": trace} if trace else None
    metrics.request_seconds.labels(route, operation).observe(seconds, exemplar)


class ModelObserver:
    """The ``Observer`` of one model: counts its work, and records its spans."""

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
        self.lag = metrics.loop_lag.labels(name).observe
        # Asked for with each request. Without traces, this is the shortest call that gives None.
        self.tag: Callable[[], object] = current_tag if tracer is not None else type(None)
        self._runners_lost = metrics.runners_lost.labels(name)
        self._stalled = metrics.stalled_batches.labels(name)
        self._out_of_memory = metrics.out_of_memory.labels(name)
        self._cache_hits = metrics.cache_hits.labels(name)
        self._cache_misses = metrics.cache_misses.labels(name)
        revision = model.revision or ""
        self._facts = (revision, model.precision, model.digest, model.provider, version)

    def watch(self, gauges: Gauges) -> None:
        metrics, name = self._metrics, self._name
        metrics.show_model(name, *self._facts)
        metrics.queue_texts.watch(gauges.queue_texts, name)
        metrics.queue_tokens.watch(gauges.queue_tokens, name)
        metrics.queue_wait_seconds.watch(gauges.queue_wait_seconds, name)
        metrics.runners_stuck.watch(gauges.runners_stuck, name)
        metrics.device_lost.watch(gauges.device_lost, name)
        metrics.cache_bytes.watch(gauges.cache_bytes, name)
        metrics.model_ready.watch(gauges.model_ready, name)

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
