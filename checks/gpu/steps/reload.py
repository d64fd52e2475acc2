"""Reloads under load: whether each request is answered, and what they leave in memory."""

import json
import time
import urllib.request
from collections.abc import Iterator

from sentiment_service.cli.load_generator import Generator, Load
from sentiment_service.engine.model.bundle import Bundle

from benchmarks.service import Service
from benchmarks.tables import Row
from checks.gpu.models import load, precisions, tweets
from checks.gpu.setup import Setup
from checks.gpu.steps.start import memory

KEY = "key-of-the-check"
TEXTS_A_REQUEST = 16


def run(setup: Setup) -> Iterator[Row]:
    """Reload the model again and again while requests come; a row for each reload."""
    bundle = setup.bundle
    name, precision = Bundle.open(bundle).manifest.name, precisions(bundle)[-1]
    texts = tweets(load(bundle, precision, "cpu"), setup.size.independence_texts)
    starts = range(0, len(texts), TEXTS_A_REQUEST)
    bodies = [json.dumps({"inputs": texts[i : i + TEXTS_A_REQUEST]}) for i in starts]
    flags = ("--device", setup.device, "--precision", precision, "--admin-keys", KEY)
    with Service(bundle, *flags) as service:
        length_s = setup.size.load_seconds * setup.size.reloads
        sent = Load(f"{service.url}/classify", bodies, setup.size.connections, length_s, 0)
        with Generator(sent) as generator:
            for number in range(setup.size.reloads):
                seconds = _reload(service, name)
                # What the old model held is given back when its last batch has ended.
                time.sleep(1)
                row: Row = {"reload": number + 1, "s": seconds}
                yield row | memory(service)
            outcome = generator.outcome()
        answers = sum(map(len, outcome.latencies.values()))
        yield {
            "answers": answers,
            "not 200": answers - outcome.ok(),
            "p99 ms": outcome.percentile_ms(99),
        }
        assert 0 < outcome.ok() == answers, [*outcome.latencies]


def _reload(service: Service, name: str) -> float:
    url = f"{service.url}/models/{name}/reload"
    headers = {"authorization": f"Bearer {KEY}"}
    request = urllib.request.Request(url, method="POST", headers=headers)  # noqa: S310
    started = time.perf_counter()
    with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
        answer.read()
    return time.perf_counter() - started
