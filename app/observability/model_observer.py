"""Metrics and traces of one model, from what the engine reports about its work."""

from collections.abc import Callable, Sequence
from functools import cache, partial

from prometheus_client import Counter, Histogram

from app.engine.batching.report import BatchReport
from app.engine.classifier import STAGES
from app.engine.model import Model
from app.errors import OUTCOMES, REJECTIONS
from app.observability.metrics import Metrics
from app.observability.traces import Tracer, current_tag


class ModelObserver:
    """Counts the work of one model, and records its spans. Implements the engine's ``Observer``.

    Each series is looked up once, because ``labels()`` costs as much as counting.
    """

    def __init__(
        self, metrics: Metrics, tracer: Tracer | None, model: Model, *, version: str
    ) -> None:
        name = model.name
        self._name, self._metrics, self._tracer = name, metrics, tracer
        self._texts = cache(partial(metrics.texts.labels, name))
        for outcome in OUTCOMES:
            self._texts(outcome)
        self._predictions: dict[str, tuple[Counter, Histogram]] = {}
        for label in model.labels:
            self._expect_label(label)
        self._text_tokens = metrics.text_tokens.labels(name)
        self._truncated = metrics.truncated.labels(name)
        self._stages = cache(partial(metrics.stage_seconds.labels, name))
        for stage in STAGES:
            self._stages(stage)
        self._batch_texts = metrics.batch_texts.labels(name)
        self._batch_tokens = metrics.batch_tokens.labels(name)
        self._padding_ratio = metrics.padding_ratio.labels(name)
        self._loop_lag = metrics.loop_lag.labels(name)
        self._queue_texts = metrics.queue_texts.labels(name)
        self._queue_tokens = metrics.queue_tokens.labels(name)
        self._rejections = cache(partial(metrics.rejections.labels, name))
        for reason in REJECTIONS:
            self._rejections(reason)
        self._runners_stuck = metrics.runners_stuck.labels(name)
        self._runners_lost = metrics.runners_lost.labels(name)
        self._cache_hits = metrics.cache_hits.labels(name)
        self._cache_misses = metrics.cache_misses.labels(name)
        self._cache_bytes = metrics.cache_bytes.labels(name)
        self._texts_shared = metrics.texts_shared.labels(name)
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
        cache_bytes: Callable[[], float],
        ready: Callable[[], float],
    ) -> None:
        """Set the functions that give the values of the gauges at each scrape."""
        self._queue_texts.set_function(queue_texts)
        self._queue_tokens.set_function(queue_tokens)
        self._runners_stuck.set_function(runners_stuck)
        self._cache_bytes.set_function(cache_bytes)
        self._ready.set_function(ready)

    def prediction(self, label: str, score: float, *, tokens: int, truncated: bool) -> None:
        """Count a text that was answered."""
        if label not in self._predictions:  # a label of the model before a reload
            self._expect_label(label)
        predictions, scores = self._predictions[label]
        predictions.inc()
        scores.observe(score)
        self._texts("ok").inc()
        self._text_tokens.observe(tokens)
        if truncated:
            self._truncated.inc()

    def failure(self, outcome: str, texts: int = 1) -> None:
        """Count texts that were not answered; ``outcome`` is the code of the error."""
        self._texts(outcome).inc(texts)

    def rejection(self, reason: str) -> None:
        """Count a request that was not admitted."""
        self._rejections(reason).inc()

    def tag(self) -> object:
        """The span context of the current request; None if it is not traced."""
        return current_tag() if self._tracer is not None else None

    def stages(self, stages: Sequence[tuple[str, float]], *, begun_ns: int, tag: object) -> None:
        """Record the stages of a request; each is a name and its seconds."""
        for stage, seconds in stages:
            self._stages(stage).observe(seconds)
        if self._tracer is not None and tag is not None:
            self._tracer.stages(self._name, begun_ns, stages)

    def cache_lookup(self, hits: int, misses: int) -> None:
        """Count the texts of a request that were found in the cache, and the others."""
        self._cache_hits.inc(hits)
        self._cache_misses.inc(misses)

    def lag(self, seconds: float) -> None:
        """Record how long finished work waited for the event loop."""
        self._loop_lag.observe(seconds)

    def runner_lost(self) -> None:
        """Count a runner whose thread ended and will be replaced."""
        self._runners_lost.inc()

    def batch(self, report: BatchReport) -> None:
        """Record a batch; called on the runners' threads."""
        self._batch_texts.observe(report.texts)
        self._batch_tokens.observe(report.padded_tokens)
        self._padding_ratio.observe(1 - report.tokens / report.padded_tokens)
        self._texts_shared.inc(report.shared)
        if self._tracer is not None:
            self._tracer.batch(self._name, report)
