"""The numbers of all series, in the memory that the workers of a service share.

A worker writes the names of its series one after the other; each says how many cells it has for its
numbers, which follow one another in the same order. A name is written first, and then how far the
names can be read: so nobody reads half a name, even if its worker was killed while it wrote.

Whoever shows the metrics reads the parts of all workers, also of those that ended. A worker that
takes the place of another finds the series in its part, and goes on counting.
"""

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable

from sentiment_service.shared_memory import NUMBER_BYTES, Board, Numbers

Labels = tuple[str, ...]  # the label values of a series, in the order of the labels' names

logger = logging.getLogger(__name__)


class SeriesStore:
    """This worker's series, and those of all workers together.

    ``continued`` says whether an earlier process has counted as this worker.
    """

    def __init__(self, board: Board) -> None:
        self._parts = [*map(_Part, *map(board.parts, ("series", "counts", "gauges")))]
        self._own = self._parts[0]
        self.continued = bool(self._own.series)

    def cells(self, section: str, metric: str, labels: Labels, count: int) -> Numbers:
        """The numbers of one of this worker's series: ``count`` of them, in the ``section``."""
        series = self._own.series[metric, count]
        if labels not in series:
            self._own.add(section, metric, labels, count)
        return series[labels]

    def merged(
        self, metric: str, count: int, merge: Callable[[Iterable[float]], float]
    ) -> dict[Labels, list[float]]:
        """The numbers of all series of a metric that has ``count`` of them for each series.

        ``merge`` makes one number of those of several workers.
        """
        found: defaultdict[Labels, list[Numbers]] = defaultdict(list)
        for part in self._parts:
            part.read()
            for labels, cells in part.series[metric, count].items():
                found[labels].append(cells)
        return {
            labels: [merge(numbers) for numbers in zip(*parts, strict=True)]
            for labels, parts in found.items()
        }


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
