"""All metrics with their names, labels and buckets."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from importlib import import_module
from selectors import DefaultSelector
from typing import Any

from prometheus_client import PlatformCollector, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sentiment_service.engine.host import available_memory, used_memory
from sentiment_service.engine.model.bundle import TEXT_TOKENS
from sentiment_service.observability import logs
from sentiment_service.observability.series import (
    Counter,
    Gauge,
    GaugeHistogram,
    Histogram,
    InfoGauge,
    Merge,
    SharedRegistry,
)
from sentiment_service.shared_memory import Board

# NVML answers within milliseconds. A scrape does not wait longer for a GPU that does not answer.
WAIT_S = 0.25
# The metrics of a GPU, or of a MIG instance of one. A value that NVML does not give is left out.
SHOWN = {
    "up": "1 while NVML answers for the GPU.",  # also if it may not or cannot say more
    "utilization_ratio": "Share of time in which it computed.",
    "memory_used_bytes": "Bytes in use, by all processes.",
    "memory_total_bytes": "Bytes that it has.",
}
SILENT = {"up": 0.0}
# By NVML's index, which can differ from CUDA's, and the name; instances of GPU 0 are 0:0, 0:1 ...
Gpus = dict[tuple[str, str], dict[str, float]]


class Nvml:
    """The GPUs of this machine or container."""

    def __init__(self) -> None:
        self._nvml = import_module("pynvml")
        self._nvml.nvmlInit()
        self._handles: dict[tuple[str, str], Any] = {}
        for number in range(self._nvml.nvmlDeviceGetCount()):
            with suppress(self._nvml.NVMLError):  # a lost GPU must not hide the others
                handle = self._nvml.nvmlDeviceGetHandleByIndex(number)
                for index, instance in self._instances(str(number), handle):
                    self._handles[index, self._nvml.nvmlDeviceGetName(instance)] = instance

    def _instances(self, index: str, handle: Any) -> list[tuple[str, Any]]:
        """The MIG instances of a GPU that is divided, else the GPU itself."""
        instances = []
        mode = self._ask(self._nvml.nvmlDeviceGetMigMode, handle)
        if mode and mode[0] == self._nvml.NVML_DEVICE_MIG_ENABLE:
            for number in range(self._nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
                with suppress(self._nvml.NVMLError):  # there are fewer, or others are hidden
                    instance = self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
                    instances.append((f"{index}:{number}", instance))
        return instances or [(index, handle)]

    def read(self) -> Gpus:
        return {gpu: self._values(handle) for gpu, handle in self._handles.items()}

    def _values(self, handle: Any) -> dict[str, float]:
        try:
            memory = self._ask(self._nvml.nvmlDeviceGetMemoryInfo, handle)
            rates = self._ask(self._nvml.nvmlDeviceGetUtilizationRates, handle)
        except self._nvml.NVMLError:
            return SILENT
        values = {"up": 1.0}
        if rates:
            values["utilization_ratio"] = rates.gpu / 100
        if memory:
            values |= {"memory_used_bytes": memory.used, "memory_total_bytes": memory.total}
        return values

    def _ask(self, function: Callable[[Any], Any], handle: Any) -> Any:
        """What NVML answers for a GPU; None if that is not supported or not permitted."""
        with suppress(self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_NoPermission):
            return function(handle)
        return None


class GpuCollector(Collector):
    """The metrics of the GPUs. ``refresh`` reads them; a scrape shows what was read last."""

    def __init__(self) -> None:
        self._nvml: Nvml | None = None
        self._gpus: Gpus = {}
        self._reading: Future[Gpus] | None = None
        self._absent = False

    async def refresh(self) -> None:
        """Read the GPUs on a thread, because NVML can block for seconds when a GPU is lost.

        What does not answer within ``WAIT_S`` is not up, and its thread is left alone.
        """
        if self._absent:
            return
        reading = self._reading
        if reading is None or reading.done():
            reading = Future()
            thread = threading.Thread(target=self._read, args=(reading,), name="nvml", daemon=True)
            with suppress(RuntimeError):  # no more threads: to this scrape, the GPUs are silent
                thread.start()
                self._reading = reading
        done, _ = await asyncio.wait([asyncio.wrap_future(reading)], timeout=WAIT_S)
        self._gpus = reading.result() if done else dict.fromkeys(self._gpus, SILENT)

    def _read(self, reading: Future[Gpus]) -> None:
        try:
            if self._nvml is None:
                self._nvml = Nvml()
            reading.set_result(self._nvml.read())
        except Exception:  # no package, no driver, or a driver that does not work
            self._absent = self._nvml is None
            reading.set_result({})

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for name, text in SHOWN.items():
            family = GaugeMetricFamily(f"sentiment_gpu_{name}", text, labels=("gpu", "name"))
            for gpu, values in self._gpus.items():
                if name in values:
                    family.add_metric(gpu, values[name])
            if family.samples:
                yield family


# Buckets are few, because each is a series for each route, stage or label. The limit of an alert
# must be a bound itself; docs/measurements/monitoring.md has the values that were measured.

# The limit of SentimentSlow is 1, and the default deadline is 10.
REQUEST_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 1.5, 2.5, 5, 10)
# The limit of SentimentQueueing is 0.5. Tokenising a tweet mostly takes less than 0.25 ms.
STAGE_SECONDS = (0.00025, 0.001, 0.0025, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
# Beyond 0.05, the event loop is the bottleneck.
LAG_SECONDS = (0.0005, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)
# The rows of the heatmap. Of three labels, the best cannot have less than a third.
SCORES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
# On a CPU, a batch has up to 512 tokens, so mostly up to 16 texts; on a GPU up to 32,768 tokens.
BATCH_TEXTS = (1, 2, 4, 8, 16, 64, 256, 1024)
BATCH_TOKENS = (32, 64, 128, 256, 512, 2048, 8192, 32_768)
# The dashboard shows only the mean. The batcher allows 0.07 in a batch of several texts.
PADDING = (0.0, 0.02, 0.05, 0.07, 0.1)

# A candidate's polarity less the model's, without its sign. Up to the first bound, nobody sees it.
POLARITIES = (0.01, 0.05, 0.1, 0.2, 0.5, 1.0)

OTHER_OPERATION = "other"  # health checks, metrics, models, pages


class Metrics:
    """The metrics of one application: those of all workers whose parts the ``board`` has."""

    def __init__(self, board: Board) -> None:
        self.registry = SharedRegistry(board)
        PlatformCollector(registry=self.registry)
        self.gpus = GpuCollector()
        self.registry.register(self.gpus)
        self._of_processes(str(board.number))

        self.requests = self._counter(
            "http_requests",
            "HTTP requests answered, by status and error; status 499 is a client that left.",
            "route method status operation outcome",
        )
        self.request_seconds = self._histogram(
            "http_request_duration_seconds",
            "From headers to answer.",
            "route operation",
            REQUEST_SECONDS,
        )
        self.operations: dict[str, str] = {}  # what the routes that take texts do
        self.key_requests = self._counter(
            "key_requests", "Requests with a key that has a name, by outcome.", "key outcome"
        )
        self.certificate_expires = self._gauge(
            "certificate_expiry_timestamp_seconds",
            "When the first of the certificates in use expires (Unix time); 0: there is none.",
            merge=max,
        )
        self.requests_in_flight = self._gauge(
            "http_requests_in_flight", "HTTP requests being answered."
        ).labels()
        self.texts = self._counter("texts", "Texts by what became of them.", "model outcome")
        self.predictions = self._counter("predictions", "Texts by predicted label.", "model label")
        self.score = self._histogram(
            "prediction_score", "Score of the predicted label.", "model label", SCORES
        )
        self.text_tokens = self._histogram(
            "text_tokens", "Tokens of a text before truncation.", "model", TEXT_TOKENS
        )
        self.unknown_tokens = self._counter(
            "unknown_tokens", "Tokens of texts that the model does not know.", "model"
        )
        self.truncated = self._counter("truncated", "Texts whose end was cut off.", "model")
        self.warnings = self._counter(
            "warnings", "Texts about which the model may be wrong, by why.", "model warning"
        )
        self.reference_share = self._info(
            "reference_share", "Share of the label in the bundle's evaluation.", "model label"
        )
        self.reference_text_tokens = GaugeHistogram(
            "sentiment_reference_text_tokens",
            "Tokens of an evaluated text.",
            ["model"],
            self.registry,
            bounds=TEXT_TOKENS,
            merge=max,
        )
        self.reference_unknown_tokens = self._gauge(
            "reference_unknown_tokens", "Unknown tokens of evaluated texts.", "model", max
        )
        self.stage_seconds = self._histogram(
            "stage_duration_seconds",
            "Parts of a request: tokenize; queue, while none of its texts is computed; inference, "
            "while some are.",
            "model stage",
            STAGE_SECONDS,
        )
        self.batch_texts = self._histogram("batch_texts", "Texts in a batch.", "model", BATCH_TEXTS)
        self.batch_tokens = self._histogram(
            "batch_tokens", "Tokens in a batch, with padding.", "model", BATCH_TOKENS
        )
        self.padding_ratio = self._histogram(
            "batch_padding_ratio", "Share of a batch that is padding.", "model", PADDING
        )
        self.cache_hits = self._counter(
            "cache_hits", "Texts whose result was in the cache (--cache-mb).", "model"
        )
        self.cache_misses = self._counter(
            "cache_misses", "Texts whose result was not in the cache.", "model"
        )
        self.cache_bytes = self._gauge(
            "cache_bytes", "Bytes that the results in the cache take.", "model"
        )
        self.queue_texts = self._gauge("queue_texts", "Texts waiting for a batch.", "model")
        self.queue_tokens = self._gauge("queue_tokens", "Tokens waiting for a batch.", "model")
        self.queue_wait_seconds = self._gauge(
            "queue_wait_seconds",
            "Predicted seconds until the waiting tokens are computed, in the slowest worker.",
            "model",
            merge=max,
        )
        self.rejections = self._counter(
            "rejections", "Requests not admitted to the queue.", "model reason"
        )
        self.runners_stuck = self._gauge(
            "runners_stuck", "Runners whose batch takes far longer than predicted.", "model"
        )
        self.runners_lost = self._counter(
            "runners_lost", "Failures of runners outside of inference.", "model"
        )
        self.stalled_batches = self._counter(
            "stalled_batches", "Batches that took far longer than predicted.", "model"
        )
        self.out_of_memory = self._counter(
            "out_of_memory", "Batches in which the memory ran out.", "model"
        )
        self.device_lost = self._gauge(
            "device_lost", "1 after the GPU was lost: only a restart helps.", "model", merge=max
        )
        self.loop_lag = self._histogram(
            "event_loop_lag_seconds",
            "From a batch's end until the event loop takes its results.",
            "model",
            LAG_SECONDS,
        )
        self.model_info = self._info(
            "model_info",
            "Always 1: what the labels say is served.",
            "model revision precision digest provider version",
        )
        self.model_ready = self._gauge(
            "model_ready", "1 while the model answers.", "model", merge=max
        )
        # The digests are those of the model and of the candidate (--shadow).
        tried = "model digest candidate"
        self.shadow_texts = self._counter(
            "shadow_texts",
            "Texts that a candidate was meant to get: agreed, differed, or why they were skipped.",
            f"{tried} outcome",
        )
        self.shadow_labels = self._counter(
            "shadow_labels",
            "Texts by the labels of the model and of the candidate.",
            f"{tried} label candidate_label",
        )
        self.shadow_polarity = self._histogram(
            "shadow_polarity_difference",
            "How far the candidate's polarity is from the model's.",
            tried,
            POLARITIES,
        )
        self.shadow_seconds = self._histogram(
            "shadow_duration_seconds",
            "CPU time (on a GPU, time) in which the candidate classifies a text.",
            tried,
            STAGE_SECONDS,
        )

    def expect_request(
        self, route: str, method: str, status: int, outcome: str, operation: str = OTHER_OPERATION
    ) -> None:
        """Create the series of requests with this route, method and outcome; their value is 0."""
        self.operations[route] = operation
        self.requests.labels(route, method, status, operation, outcome)
        self.request_seconds.labels(route, operation)

    def _of_processes(self, worker: str) -> None:
        restarts = self._counter(
            "worker_restarts", "Workers that were started in the place of one that ended."
        )
        restarts.labels().value += self.registry.continued
        pids = self._gauge("worker_pid", "The process of a worker; 0: it is not running.", "worker")
        pids.labels(worker).value = os.getpid()
        self.registry.register(ProcessesCollector(pids))
        self._gauge("workers", "Workers that are running.").labels().value = 1
        text = "Total user and system CPU time spent in seconds."
        Counter("process_cpu_seconds", text, [], self.registry).watch(time.process_time)
        self._counter(
            "log_lines_dropped",
            "Log lines that were not written: standard error was not read in time, or is gone.",
        ).watch(logs.dropped_lines)

    # The names of the labels are separated by spaces.

    def _counter(self, name: str, text: str, labels: str = "") -> Counter:
        return Counter(f"sentiment_{name}", text, labels.split(), self.registry)

    def _gauge(self, name: str, text: str, labels: str = "", merge: Merge = sum) -> Gauge:
        return Gauge(f"sentiment_{name}", text, labels.split(), self.registry, merge=merge)

    def _info(self, name: str, text: str, labels: str) -> InfoGauge:
        return InfoGauge(f"sentiment_{name}", text, labels.split(), self.registry, merge=max)

    def _histogram(self, name: str, text: str, labels: str, bounds: Sequence[float]) -> Histogram:
        return Histogram(f"sentiment_{name}", text, labels.split(), self.registry, bounds=bounds)


class ProcessesCollector(Collector):
    """What prometheus_client says of a process, of all ``pids``, and the memory where they are.

    It reads files also when the process may open no more: then the number of open ones matters.
    """

    def __init__(self, pids: Gauge) -> None:
        self._pids = pids
        self._spare = DefaultSelector()  # holds a file descriptor, and closes it in silence

    def collect(self) -> Iterator[Metric]:
        self._spare.close()
        try:
            return iter([*self._read()])  # one file at a time
        finally:
            with suppress(OSError):
                self._spare = DefaultSelector()

    def _read(self) -> Iterator[Metric]:
        found: dict[str, list[Metric]] = {}
        for pid in self._pids.totals().values():
            for metric in ProcessCollector(pid=partial(int, pid.value), registry=None).collect():
                found.setdefault(metric.name, []).append(metric)
        for name, metrics in found.items():
            if name == "process_cpu_seconds":
                continue  # a sum would fall when a process ends, so each worker counts its own
            values = [metric.samples[0].value for metric in metrics]
            shown = Metric(name, metrics[0].documentation, metrics[0].type)
            merge = min if name == "process_start_time_seconds" else sum
            shown.add_sample(name, {}, merge(values))
            yield shown
        limit = "Memory that the container may use, or that the machine has."
        yield GaugeMetricFamily("sentiment_memory_limit_bytes", limit, available_memory())
        used = "What is in use of it, without files that the system can drop."
        yield GaugeMetricFamily("sentiment_memory_used_bytes", used, used_memory())
