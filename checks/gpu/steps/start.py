"""Starts: what tuning chooses each time that it measures, seconds until the service answers, and
memory."""

import json
import tempfile
from collections.abc import Iterator

from benchmarks.service import Service
from benchmarks.tables import Row
from checks.gpu.models import precisions
from checks.gpu.setup import Setup


def run(setup: Setup) -> Iterator[Row]:
    """Start the service with the bundle in its best precision; the last time with a cache."""
    bundle = setup.bundle
    precision = precisions(bundle)[-1]
    for number in range(setup.size.starts):
        with tempfile.TemporaryDirectory() as cache:
            flags = ("--device", setup.device, "--precision", precision, "--cache-dir", cache)
            last = number == setup.size.starts - 1
            for kept in (False, True) if last else (False,):
                with Service(bundle, *flags) as service:
                    yield {"measured": "earlier" if kept else "now"} | _seen(service)


def plan(service: Service) -> str:
    """What tuning has chosen, as the service logs it."""
    line = next(line for line in service.log.splitlines() if "runners" in line)
    return str(json.loads(line)["message"])


def _seen(service: Service) -> Row:
    return {"s to serve": service.start_seconds, "tuning": plan(service)} | memory(service)


def memory(service: Service) -> Row:
    """The memory of the service, and of the GPU where there is one."""
    row: Row = {"RSS MB": service.memory_mb()["Rss"]}
    metrics = service.metrics()
    if "gpu_memory_used_bytes" in metrics:
        row["GPU memory MB, all processes"] = metrics["gpu_memory_used_bytes"] / 1e6
    return row
