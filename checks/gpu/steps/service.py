"""Texts per second and latency of the service over HTTP, and the load and memory of the GPU.

There are as many clients as workers, so that enough is in flight.
"""

import json
import time
from collections.abc import Iterator

from sentiment_service.cli.load_generator import Load

from benchmarks.service import Service
from benchmarks.tables import Row
from benchmarks.watched import watched
from checks.gpu.models import load, precisions, tweets
from checks.gpu.setup import Setup
from checks.gpu.steps.start import plan


def run(setup: Setup) -> Iterator[Row]:
    """Serve the bundle in its best precision, and send requests of several sizes."""
    bundle = setup.bundle
    precision = precisions(bundle)[-1]
    texts = tweets(load(bundle, precision, "cpu"), setup.size.service_texts)
    for workers in setup.size.workers:
        flags = ("--device", setup.device, "--precision", precision, "--workers", str(workers))
        with Service(bundle, *flags) as service:
            while workers > 1 and len(service.info()["workers"]) < workers:
                time.sleep(0.1)
            what: Row = {"workers": workers}
            yield what | {"tuning": plan(service)}
            for count in setup.size.request_texts:
                yield (
                    what
                    | {"texts a request": count}
                    | _loaded(service, texts, workers, count, setup)
                )


def _loaded(service: Service, texts: list[str], clients: int, count: int, setup: Setup) -> Row:
    lists = [texts[i : i + count] for i in range(0, len(texts), count)]
    bodies = [json.dumps({"inputs": one[0] if count == 1 else one}) for one in lists]
    seconds, size = setup.size.load_seconds, -(-len(bodies) // clients)
    loads = [
        Load(
            f"{service.url}/classify",
            bodies[at : at + size],
            setup.size.connections,
            seconds,
            seconds / 4,
        )
        for at in range(0, len(bodies), size)
    ]
    seen = watched(service, *loads)
    row: Row = {
        "texts/s": seen.grown("texts_total") / seen.seconds,
        "p50 ms": seen.outcome.percentile_ms(50),
        "p99 ms": seen.outcome.percentile_ms(99),
        "not 200": sum(map(len, seen.outcome.latencies.values())) - seen.outcome.ok(),
        "texts a batch": seen.mean("batch_texts"),
        "CPUs": seen.cpu_seconds / seen.seconds,
    }
    if "gpu_utilization_ratio" in seen.after:
        row["GPU load"] = seen.after["gpu_utilization_ratio"]
    return row
