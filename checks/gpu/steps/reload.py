"""Reloads under load: whether each answer is right, and what they leave in the GPU's memory."""

import json
import time
import urllib.request
from collections.abc import Iterator

from sentiment_service.cli.load_generator import Generator, Load, tweet_lengths
from sentiment_service.engine.model.bundle import Bundle

from benchmarks.service import Service
from benchmarks.tables import Row
from benchmarks.texts import texts_of
from checks.gpu.models import load, precisions
from checks.gpu.setup import Setup

KEY = "key-of-the-check"
TEXTS_A_REQUEST = 16


def run(setup: Setup) -> Iterator[Row]:
    """Reload the model again and again while requests come; a row for each reload.

    Raises:
        AssertionError: a request was not answered with 200.
    """
    for shape in setup.shapes:
        bundle = setup.bundle(shape)
        precision = precisions(bundle)[-1]
        model = load(bundle, precision, "cpu")
        lengths = [min(n, model.max_tokens) for n in tweet_lengths(setup.size.independence_texts)]
        texts = texts_of(model.tokenizer.library, lengths)
        del model
        starts = range(0, len(texts), TEXTS_A_REQUEST)
        bodies = [json.dumps({"inputs": texts[i : i + TEXTS_A_REQUEST]}) for i in starts]
        flags = ("--device", setup.device, "--precision", precision, "--admin-keys", KEY)
        with Service(bundle, *flags) as service:
            seconds = setup.size.load_seconds * setup.size.reloads
            sent = Load(f"{service.url}/classify", bodies, setup.size.connections, seconds, 0)
            with Generator(sent) as generator:
                for number in range(setup.size.reloads):
                    yield {"shape": shape, "reload": number + 1} | _reloaded(
                        service, Bundle.open(bundle).manifest.name
                    )
                outcome = generator.outcome()
            answers = sum(map(len, outcome.latencies.values()))
            yield {
                "shape": shape,
                "answers": answers,
                "not 200": answers - outcome.ok(),
                "p99 ms": outcome.percentile_ms(99),
            }
            assert outcome.ok() == answers, outcome


def _reloaded(service: Service, name: str) -> Row:
    url = f"{service.url}/models/{name}/reload"
    request = urllib.request.Request(url, method="POST", headers={"authorization": f"Bearer {KEY}"})  # noqa: S310
    started = time.perf_counter()
    with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
        answer.read()
    row: Row = {"s": time.perf_counter() - started}
    time.sleep(1)  # what the old model held is given back when its last batch has ended
    row["RSS MB"] = service.memory_mb()["Rss"]
    metrics = service.metrics()
    if "gpu_memory_used_bytes" in metrics:
        row["GPU memory MB, all processes"] = metrics["gpu_memory_used_bytes"] / 1e6
    return row
