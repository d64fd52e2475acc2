"""Texts per second and latency of the service over HTTP, and the load and memory of the GPU."""

import json
import time
from collections.abc import Iterator

from benchmarks.load import Generator, Load
from benchmarks.service import Service
from benchmarks.tables import Row
from benchmarks.texts import texts_of, tweet_lengths
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
    with Generator(load) as generator:
        time.sleep(load.warm_up_seconds)
        before, cpu, started = service.metrics(), service.cpu_seconds(), time.perf_counter()
        time.sleep(seconds * 0.8)
        after, used = service.metrics(), service.cpu_seconds() - cpu
        took = time.perf_counter() - started
        outcome = generator.outcome()
    grown = {name: after[name] - before[name] for name in after}
    row: Row = {
        "texts/s": grown["texts_total"] / took,
        "p50 ms": outcome.percentile_ms(50),
        "p99 ms": outcome.percentile_ms(99),
        "not 200": sum(map(len, outcome.latencies.values())) - outcome.ok(),
        "texts a batch": grown["batch_texts_sum"] / max(1, grown["batch_texts_count"]),
        "computed once": grown["texts_shared_total"] / max(1, grown["texts_total"]),
        "CPUs": used / took,
    }
    if "gpu_utilization_ratio" in after:
        row["GPU load"] = after["gpu_utilization_ratio"]
    return row
