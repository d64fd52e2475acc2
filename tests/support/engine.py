"""A classifier of the tiny model without a server, and an observer that records its reports."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sentiment_service.engine.batching.fair_queue import BatchReport
from sentiment_service.engine.classifier import Classifier, Gauges
from sentiment_service.engine.health import Lifecycle
from sentiment_service.engine.loading import load
from sentiment_service.engine.options import EngineConfig
from sentiment_service.engine.step_thread import StepThread
from sentiment_service.errors import ServiceError
from sentiment_service.results import Outcome
from sentiment_service.settings.settings import Settings

from tests.support.batching import PATIENCE_S


class Recorder:
    """An ``Observer`` that keeps what it is told."""

    def __init__(self) -> None:
        self.gauges: Gauges
        self.failures: list[tuple[type[BaseException], int]] = []
        self.lookups: list[tuple[int, int]] = []
        self.batches: list[int] = []  # texts

    def watch(self, gauges: Gauges) -> None:
        self.gauges = gauges

    def tag(self) -> object:
        return None

    def answered(self, outcomes: Iterable[Outcome], stages: Mapping[str, float]) -> None:
        pass  # requests report them

    def failure(self, error: BaseException, texts: int) -> None:
        self.failures.append((type(error), texts))

    def cache_lookup(self, hits: int, misses: int) -> None:
        self.lookups.append((hits, misses))

    def lag(self, seconds: float) -> None:
        pass

    def runner_lost(self) -> None:
        pass

    def batch_stalled(self) -> None:
        pass

    def batch(self, report: BatchReport) -> None:
        self.batches.append(report.items)


def label_or_code(outcome: Outcome) -> str:
    """The label of a prediction, or the code of the error in its place."""
    return outcome.code if isinstance(outcome, ServiceError) else outcome["label"]


def config_of(bundle: Path, **changes: Any) -> EngineConfig:
    """A config with one runner, under which nothing is measured."""
    by_hand = {"runners": 1, "threads": 1, "max_batch_tokens": 512}
    return Settings(**{"model": (bundle,), **by_hand, **changes}).engine_config()


@asynccontextmanager
async def classifying(bundle: Path, **changes: Any) -> AsyncIterator[tuple[Classifier, Recorder]]:
    """A classifier of the bundle that admits requests, and its observer. It is retired at the end.

    ``changes`` are settings.
    """
    config, observer, lifecycle = config_of(bundle, **changes), Recorder(), Lifecycle(1.0)
    model, plan = load(bundle, config, cpus=2)
    lifecycle.started()
    worker = StepThread("tokenizer")
    classifier = Classifier(model, plan, config, observer, step_thread=worker, lifecycle=lifecycle)
    try:
        yield classifier, observer
    finally:
        await classifier.retire(PATIENCE_S)
        worker.close()


def soon(seconds: float = PATIENCE_S) -> float:
    """A deadline after this many seconds, on the running event loop's clock."""
    return asyncio.get_running_loop().time() + seconds
