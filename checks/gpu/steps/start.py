"""Seconds until the service answers, at the first start and at the next ones, and its memory."""

import tempfile
from collections.abc import Iterator

from benchmarks.service import Service
from benchmarks.tables import Row
from checks.gpu.models import precisions
from checks.gpu.setup import Setup


def run(setup: Setup) -> Iterator[Row]:
    """Start the service with each shape in its best precision."""
    for shape in setup.shapes:
        bundle = setup.bundle(shape)
        precision = precisions(bundle)[-1]
        seconds = []
        with tempfile.TemporaryDirectory() as cache:
            flags = ("--device", setup.device, "--precision", precision, "--cache-dir", cache)
            for _ in range(setup.size.starts):
                with Service(bundle, *flags) as service:
                    seconds.append(service.start_seconds)
                    memory, metrics = service.memory_mb()["Rss"], service.metrics()
        row: Row = {
            "shape": shape,
            "precision": precision,
            "s to serve, first": seconds[0],
            "s to serve, then": min(seconds[1:]),
            "RSS MB": memory,
        }
        if "gpu_memory_used_bytes" in metrics:
            row["GPU memory MB, all processes"] = metrics["gpu_memory_used_bytes"] / 1e6
        yield row
