"""Texts per second and latency of the service over HTTP, and the load and memory of the GPU."""

import json
from collections.abc import Iterator

from app.cli.bench.load import Load
from app.cli.bench.texts import tweet_lengths
from benchmarks.service import Service
from benchmarks.tables import Row
from benchmarks.texts import texts_of
from benchmarks.watched import watched
from checks.gpu.models import load, precisions
from checks.gpu.setup import Setup


def run(setup: Setup) -> Iterator[Row]:
    """Serve each shape in its best precision, and send requests of several sizes."""
    for shape in setup.shapes:
        bundle = setup.bundle(shape)
        precision = precisions(bundle)[-1]
        model = load(bundle, precision, "cpu")
        lengths = [min(n, model.max_tokens) for n in tweet_lengths(setup.size.service_texts)]
        texts = texts_of(model.tokenizer.library, lengths)
        flags = ("--device", setup.device, "--precision", precision)
        with Service(bundle, *flags) as service:
            plan = next(line for line in service.log.splitlines() if "runners" in line)
            yield {"shape": shape, "precision": precision, "tuning": json.loads(plan)["message"]}
            for connections in setup.size.connections:
                for count in setup.size.request_texts:
                    what = {"shape": shape, "connections": connections, "texts a request": count}
                    yield what | _loaded(service, texts, connections, count, setup)


def _loaded(service: Service, texts: list[str], connections: int, count: int, setup: Setup) -> Row:
    lists = [texts[i : i + count] for i in range(0, len(texts), count)]
    bodies = [json.dumps({"inputs": one[0] if count == 1 else one}) for one in lists]
    seconds = setup.size.load_seconds
    load = Load(service.port, "/classify", bodies, connections, seconds, seconds / 4)
    seen = watched(service, load)
    texts_done = seen.grown("texts_total")
    row: Row = {
        "texts/s": texts_done / seen.seconds,
        "p50 ms": seen.outcome.percentile_ms(50),
        "p99 ms": seen.outcome.percentile_ms(99),
        "not 200": sum(map(len, seen.outcome.latencies.values())) - seen.outcome.ok(),
        "texts a batch": seen.mean("batch_texts"),
        "CPUs": seen.cpu_seconds / seen.seconds,
    }
    if "gpu_utilization_ratio" in seen.after:
        row["GPU load"] = seen.after["gpu_utilization_ratio"]
    return row
