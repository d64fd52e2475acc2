"""Fills the graphs with random weights. Where there are no graphs, they are exported first.

The export needs its packages and PyTorch. A pack brings the graphs.
"""

import time
from collections.abc import Iterator

from benchmarks.tables import Row
from checks.gpu.graphs import fill, make
from checks.gpu.setup import Setup


def run(setup: Setup) -> Iterator[Row]:
    """Make the bundles of all shapes. What exists is not made again."""
    setup.work.mkdir(parents=True, exist_ok=True)
    for shape, (model_type, config) in setup.size.shapes.items():
        started = time.perf_counter()
        made = not setup.bundle(shape).exists()
        if made:
            make(setup.bundle(shape), setup.others(shape), model_type, config)
        for bundle in setup.bundles(shape):
            fill(bundle)
        row: Row = {"shape": shape, "graphs": "exported" if made else "there already"}
        yield row | {"s": time.perf_counter() - started}
