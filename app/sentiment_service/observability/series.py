"""Counters, gauges and histograms that take no locks and count for all workers of a service.

One thread at a time changes a series: almost always the event loop, which also answers the scrapes.
A scrape shows the numbers of all workers together. A worker writes its numbers into shared memory
before each scrape of its own, and ten times a second.

There, a worker writes the names of its series one after the other; each says how many cells it has
for its numbers, which follow in the same order. A name is written first, and then how far the names
can be read. A worker that takes the place of another finds the series in its part, and goes on.
"""

import json
import logging
import time
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, ClassVar, Generic, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    Exemplar,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from sentiment_service.shared_memory import NUMBER_BYTES, Board, Numbers

logger = logging.getLogger(__name__)

Labels = tuple[str, ...]  # the label values of a series, in the order of the labels' names


class _Part:
    """The series in the part of one worker, by metric and number of cells, then by labels."""

    def __init__(self, series: memoryview, counts: memoryview, gauges: memoryview) -> None:
        self._readable = series[:NUMBER_BYTES].cast("q")  # how many bytes of names are complete
        self._names = series[NUMBER_BYTES:]
        self._numbers = {"counts": counts.cast("d"), "gauges": gauges.cast("d")}
        self._used = dict.fromkeys(self._numbers, 0)  # cells that have a series
        self._read = 0  # bytes of names
        self._full = False
        self.series: defaultdict[tuple[str, int], dict[Labels, Numbers]] = defaultdict(dict)
        self.read()

    def read(self) -> None:
        """Find the series that were added since the last call."""
        if self._read == self._readable[0]:
            return
        names = bytes(self._names[self._read : self._readable[0]])
        if b"\0" in names:  # the processor has shown us how far to read, but not yet all names
            return
        for line in names.splitlines():
            section, metric, count, *labels = json.loads(line)
            first = self._used[section]
            self._used[section] += count
            cells = self._numbers[section][first : self._used[section]]
            self.series[metric, count][tuple(labels)] = cells
        self._read += len(names)

    def add(self, section: str, metric: str, labels: Labels, count: int) -> None:
        """Add a series. Without room for it, no other worker will see it."""
        name = json.dumps([section, metric, count, *labels]).encode() + b"\n"
        end = self._read + len(name)
        room = len(self._numbers[section]) - self._used[section]
        if end > len(self._names) or count > room:
            if not self._full:
                self._full = True
                logger.warning(
                    "the memory for metrics that workers share is full: the series %s%s and all "
                    "later ones show what this worker alone counts",
                    metric,
                    list(labels),
                )
            cells = memoryview(bytearray(count * NUMBER_BYTES)).cast("d")
            self.series[metric, count][labels] = cells
            return
        self._names[self._read : end] = name
        self._readable[0] = end
        self.read()


Series = TypeVar("Series", bound="Count | Distribution")
Merge = Callable[[Iterable[float]], float]


class SharedRegistry(CollectorRegistry):
    """The metrics of one application, with the numbers of all workers of its service."""

    def __init__(self, board: Board) -> None:
        super().__init__()
        self.families: list[_Family[Any]] = []
        self._parts = [*map(_Part, *map(board.parts, ("series", "counts", "gauges")))]
        self._own = self._parts[0]
        self.continued = bool(self._own.series)  # whether an earlier process was this worker

    def publish(self) -> None:
        for family in self.families:
            family.publish()

    def cells(self, section: str, metric: str, labels: Labels, count: int) -> Numbers:
        """The ``count`` numbers of one of this worker's series."""
        series = self._own.series[metric, count]
        if labels not in series:
            self._own.add(section, metric, labels, count)
        return series[labels]

    def merged(self, metric: str, count: int, merge: Merge) -> dict[Labels, list[float]]:
        """The ``count`` numbers of each series of a metric, those of several workers merged."""
        found: defaultdict[Labels, list[Numbers]] = defaultdict(list)
        for part in self._parts:
            part.read()
            for labels, cells in part.series[metric, count].items():
                found[labels].append(cells)
        return {
            labels: [merge(numbers) for numbers in zip(*parts, strict=True)]
            for labels, parts in found.items()
        }


class Count:
    """One series of a counter or a gauge. Add to ``value``, or set it.

    If there is a ``function``, it gives the value.
    """

    __slots__ = ("_cells", "function", "value")

    def __init__(self, cells: Numbers) -> None:
        self._cells = cells
        self.value = cells[0]
        self.function: Callable[[], float] | None = None

    def increment(self) -> None:
        self.value += 1

    def publish(self) -> None:
        if self.function is not None:
            self.value = self.function()
        self._cells[0] = self.value


class Distribution:
    """One series of a histogram. ``cells`` has the counts by bucket, then the sum of the values."""

    __slots__ = ("_bounds", "_cells", "counts", "exemplars", "sum")

    def __init__(self, bounds: Sequence[float], cells: Numbers) -> None:
        self._bounds = bounds
        self._cells = cells
        *self.counts, self.sum = cells
        self.exemplars: dict[int, Exemplar] = {}  # the latest, by bucket

    def total(self) -> float:
        return sum(self.counts)

    def observe(self, value: float, exemplar: Mapping[str, str] | None = None) -> None:
        """Count a value. The labels of its exemplar, if given, are shown beside its bucket."""
        bucket = bisect_left(self._bounds, value)
        self.counts[bucket] += 1
        self.sum += value
        if exemplar:
            self.exemplars[bucket] = Exemplar(dict(exemplar), value, time.time())

    def publish(self) -> None:
        self._cells[:] = memoryview(array("d", [*self.counts, self.sum]))


class _Family(ABC, Collector, Generic[Series]):
    """All series of a metric. The name of a counter is given without its suffix ``_total``."""

    shown: ClassVar[Callable[..., Any]]  # makes what a scrape shows of it
    section: ClassVar[str] = "counts"  # of a worker's part, for the numbers of its series

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        registry: SharedRegistry,
        *,
        merge: Merge = sum,
        bounds: Sequence[float] = (),
    ) -> None:
        """``merge`` makes one number of those of all workers. Only histograms have ``bounds``."""
        self._name, self._text, self._labels = name, text, labels
        self._registry, self._merge, self._bounds = registry, merge, bounds
        self._cells = len(bounds) + 2 if bounds else 1  # of a series
        self._series: dict[tuple[str | int, ...], Series] = {}
        registry.register(self)
        registry.families.append(self)

    def labels(self, *values: str | int) -> Series:
        """This worker's series with these label values, in the order of the names."""
        series = self._series.get(values)
        if series is None:
            names = tuple(map(str, values))
            if names == values:
                cells = self._registry.cells(self.section, self._name, names, self._cells)
                series = self._over(cells)
            else:
                series = self.labels(*names)
            self._series[values] = series
        return series

    def totals(self) -> dict[Labels, Series]:
        """Each series with the numbers of all workers now, by its label values."""
        self.publish()
        merged = self._registry.merged(self._name, self._cells, self._merge)
        return {names: self._over(memoryview(array("d", cells))) for names, cells in merged.items()}

    def collect(self) -> Iterator[Metric]:
        metric = self.shown(self._name, self._text, labels=self._labels)
        for names, series in self.totals().items():
            self._show(metric, names, series)
        yield metric

    def publish(self) -> None:
        for series in self._series.values():
            series.publish()

    @abstractmethod
    def _over(self, cells: Numbers) -> Series:
        """The series whose numbers are in ``cells``."""

    @abstractmethod
    def _show(self, metric: Any, names: Labels, series: Series) -> None:
        """Add to ``metric``, which ``shown`` made, a series with these label values."""


class _Counts(_Family[Count]):
    """A metric of which each series is one number."""

    def _over(self, cells: Numbers) -> Count:
        return Count(cells)

    def _show(self, metric: Any, names: Labels, series: Count) -> None:
        metric.add_metric(names, series.value)


class Counter(_Counts):
    shown = CounterMetricFamily

    def watch(self, total: Callable[[], float]) -> None:
        """Count what ``total`` says that this process has counted since its start."""
        series = self.labels()
        before = series.value  # what an earlier process has counted as this worker
        series.function = lambda: before + total()


class Gauge(_Counts):
    """A gauge: what all workers have at the moment. A worker that has ended has nothing."""

    shown = GaugeMetricFamily
    section = "gauges"

    def watch(self, function: Callable[[], float], *values: str | int) -> None:
        """Let ``function`` give the value of the series with these label values."""
        self.labels(*values).function = function


class InfoGauge(Gauge):
    """A gauge that is not shown with 0, such as one with the value 1 whose labels matter."""

    def show(self, first: str, values: Mapping[Labels, float]) -> None:
        """Of the series whose first label value is ``first``, show only these, by the others."""
        for names, series in self._series.items():
            if names[0] == first:
                series.value = 0
        for others, value in values.items():
            self.labels(first, *others).value = value

    def _show(self, metric: Any, names: Labels, series: Count) -> None:
        if series.value:
            super()._show(metric, names, series)


class Histogram(_Family[Distribution]):
    """A histogram. ``bounds`` are the upper bounds of its buckets, ascending and without +Inf."""

    shown = HistogramMetricFamily

    @cached_property
    def _shown_bounds(self) -> list[str]:
        return [*map(floatToGoString, self._bounds), "+Inf"]

    def _over(self, cells: Numbers) -> Distribution:
        return Distribution(self._bounds, cells)

    def _show(self, metric: Any, names: Labels, series: Distribution) -> None:
        own = self._series.get(names)
        exemplars = own.exemplars if own is not None else {}
        counts = zip(self._shown_bounds, accumulate(series.counts), strict=True)
        buckets = [(*count, exemplars.get(bucket)) for bucket, count in enumerate(counts)]
        metric.add_metric(names, buckets, series.sum)


class GaugeHistogram(Histogram):
    """A histogram of what all workers have at the moment. A worker that has ended has nothing."""

    section = "gauges"
