"""The metrics of processes that prometheus_client has, of all workers together."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

EARLIEST = "process_start_time_seconds"
# A sum over the processes would fall when one ends, so each worker counts its own.
COUNTED = "process_cpu_seconds"


class ProcessesCollector(Collector):
    """Sums over the processes whose ids ``pids`` gives, and the start of the earliest."""

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        self._pids = pids
        self._pid = 0
        self._process = ProcessCollector(pid=lambda: self._pid, registry=None)

    def collect(self) -> Iterator[Metric]:
        """The metrics, without processes that have ended."""
        found: dict[str, list[Metric]] = {}
        for pid in self._pids():
            self._pid = pid
            for metric in self._process.collect():
                found.setdefault(metric.name, []).append(metric)
        for name, metrics in found.items():
            if name == COUNTED:
                continue
            values = [metric.samples[0].value for metric in metrics]
            shown = Metric(name, metrics[0].documentation, metrics[0].type)
            shown.add_sample(name, {}, min(values) if name == EARLIEST else sum(values))
            yield shown
