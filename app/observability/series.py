"""Counters and histograms that take no locks.

The classes of prometheus_client take two or three locks for each value, because any thread may
change their series. Here, one thread at a time changes a series: almost always the event loop,
which also answers the scrapes. A scrape shows the same as with prometheus_client, but not when the
series were created.
"""

import time
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Generic, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import Exemplar, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

Series = TypeVar("Series")


class Count:
    """One series of a counter. Add to ``value``."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class Distribution:
    """One series of a histogram."""

    __slots__ = ("_bounds", "counts", "exemplars", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # by bucket; the last one is above all bounds
        self.sum = 0.0
        self.exemplars: dict[int, Exemplar] = {}  # the latest of each bucket that has one

    @property
    def count(self) -> int:
        """The number of observed values."""
        return sum(self.counts)

    def observe(self, value: float, exemplar: Mapping[str, str] | None = None) -> None:
        """Count a value. The labels of its exemplar, if given, are shown beside its bucket."""
        bucket = bisect_left(self._bounds, value)
        self.counts[bucket] += 1
        self.sum += value
        if exemplar:
            self.exemplars[bucket] = Exemplar(dict(exemplar), value, time.time())


class _Family(ABC, Collector, Generic[Series]):
    """All series of a metric. The name of a counter is given without its suffix ``_total``."""

    kind: ClassVar[str]

    def __init__(
        self, name: str, text: str, labels: Sequence[str], registry: CollectorRegistry
    ) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._series: dict[tuple[str | int, ...], Series] = {}
        registry.register(self)

    def labels(self, *values: str | int) -> Series:
        """The series with these label values, in the order of the names; 0 if it is new."""
        series = self._series.get(values)
        if series is None:
            series = self._series[values] = self._new()
        return series

    def collect(self) -> Iterator[Metric]:
        """The metric with its series as they are now."""
        metric = Metric(self._name, self._text, self.kind)
        for values, series in self._series.items():
            labels = dict(zip(self._labels, map(str, values), strict=True))
            self._add_samples(metric, labels, series)
        yield metric

    @abstractmethod
    def _new(self) -> Series:
        """A series without any values."""

    @abstractmethod
    def _add_samples(self, metric: Metric, labels: dict[str, str], series: Series) -> None:
        """Add the samples of a series with these labels."""


class Counter(_Family[Count]):
    """A counter: the number of events by label values."""

    kind = "counter"

    def _new(self) -> Count:
        return Count()

    def _add_samples(self, metric: Metric, labels: dict[str, str], series: Count) -> None:
        metric.add_sample(f"{self._name}_total", labels, series.value)


class Histogram(_Family[Distribution]):
    """A histogram. ``bounds`` are the upper bounds of its buckets, ascending and without +Inf."""

    kind = "histogram"

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        registry: CollectorRegistry,
        bounds: Sequence[float],
    ) -> None:
        super().__init__(name, text, labels, registry)
        self._bounds = bounds
        self._shown_bounds = [*map(floatToGoString, bounds), "+Inf"]

    def _new(self) -> Distribution:
        return Distribution(self._bounds)

    def _add_samples(self, metric: Metric, labels: dict[str, str], series: Distribution) -> None:
        count = 0
        for bucket, bound in enumerate(self._shown_bounds):
            count += series.counts[bucket]
            exemplar = series.exemplars.get(bucket)
            metric.add_sample(
                f"{self._name}_bucket", {**labels, "le": bound}, count, exemplar=exemplar
            )
        metric.add_sample(f"{self._name}_count", labels, count)
        metric.add_sample(f"{self._name}_sum", labels, series.sum)
