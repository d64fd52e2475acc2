"""Fills the graphs with random weights. Where there are no graphs, they are exported first.

The export needs its packages and PyTorch. A pack brings the graphs.
"""

import time
from collections.abc import Iterator

from benchmarks.tables import Row
from checks.gpu.graphs import fill, make
from checks.gpu.setup import Setup


def run(setup: Setup) -> Iterator[Row]:
    """Make the bundles. What exists is not made again."""
    setup.work.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    made = not setup.bundle.exists()
    if made:
        make(setup)
    for bundle in setup.bundles:
        fill(bundle)
    row: Row = {"graphs": "exported" if made else "there already"}
    yield row | {"s": time.perf_counter() - started}
