"""Measures throughput, latency and memory of the service, beside ONNX Runtime alone.

Each measurement yields rows for the tables, and a ``Goal`` if it has one.
"""

import statistics
import tempfile
from collections.abc import Iterator

from sentiment_service.cli.load_generator import run, tweet_lengths
from sentiment_service.engine.host import available_cpus

from benchmarks.ideal import lone_ms
from benchmarks.subject import Goal, Subject, latencies
from benchmarks.tables import Row
from benchmarks.texts import texts_of
from benchmarks.watched import watched

CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64, 128)
LENGTHS = (8, 16, 32, 64, 128, 256, 512)


def against_ideal(subject: Subject, rounds: int, goals: dict[int, float]) -> Iterator[Row | Goal]:
    """Texts per second over HTTP ÷ those of ONNX Runtime alone, by texts per request."""
    ratios: dict[int, list[float]] = {texts: [] for texts in goals}
    rates: dict[int, list[float]] = {texts: [] for texts in goals}
    paddings: list[float] = []
    ideals = [subject.ideal.texts_per_second()]
    with subject.serve() as service:
        for _ in range(rounds):
            for texts in goals:
                load = subject.load(service, subject.connections, texts, warm_up_seconds=2.0)
                seen = watched(service, load)
                ideals.append(subject.ideal.texts_per_second())
                rates[texts].append(seen.grown("batch_texts_sum") / seen.seconds)
                ratios[texts].append(rates[texts][-1] / statistics.mean(ideals[-2:]))
                if texts == 1:
                    paddings.append(seen.mean("batch_padding_ratio"))
        tuning = service.info()["tuning"]
    yield {
        "model": subject.name,
        "ideal texts/s": statistics.median(ideals),
        "ideal is": subject.ideal.name,
        **{f"HTTP, {n} a request": statistics.median(rate) for n, rate in rates.items()},
        **{f"÷ ideal, {n} a request": statistics.median(ratio) for n, ratio in ratios.items()},
        "padding": statistics.median(paddings),
        "tuning": tuning,
    }
    for texts, bound in goals.items():
        name = f"{subject.name}, {subject.connections} connections, {texts} a request ÷ ideal"
        yield Goal.of_rounds(name, ratios[texts], bound)
    if subject.connections == 32:
        name = f"{subject.name}, padding's share of a batch at 32 connections"
        yield Goal(name, statistics.median(paddings), 0.06, most=True)


def sweep(subject: Subject) -> Iterator[Row | Goal]:
    """Throughput and latency by the number of connections, with one text per request."""
    texts = texts_of(subject.model.tokenizer.library, tweet_lengths(8 * max(CONCURRENCIES)))
    with subject.serve() as service:
        for connections in CONCURRENCIES:
            seen = watched(service, subject.load(service, connections, wanted=texts))
            yield {
                "model": subject.name,
                "connections": connections,
                "texts/s": seen.outcome.ok_per_second(),
                **latencies(seen.outcome),
                "texts a batch": seen.mean("batch_texts"),
                "padding": seen.mean("batch_padding_ratio"),
                "CPU ms a text": seen.cpu_seconds / seen.grown("batch_texts_sum") * 1000,
            }


def lone(subject: Subject, rounds: int, most: float | None) -> Iterator[Row | Goal]:
    """One request at a time, with the service tuned for latency."""
    texts = [text for text in subject.texts if len(subject.model.tokenizer.encode(text)) < 48][:64]
    ratios, bare, medians = [], [], []
    with subject.serve("--target-latency-ms", "1") as service:
        threads = max(1, int(available_cpus()))
        model = subject.model.with_threads(threads)
        lone_ms(model, texts)
        for _ in range(rounds):
            before = statistics.median(lone_ms(model, texts))
            outcome = run(subject.load(service, 1, wanted=texts))
            after = statistics.median(lone_ms(model, texts))
            bare.append(statistics.mean((before, after)))
            medians.append(outcome.percentile_ms(50))
            ratios.append(medians[-1] / bare[-1])
        for count in (1, 16, 256):
            outcome = run(subject.load(service, 1, count))
            yield {"model": subject.name, "texts in the request": count, **latencies(outcome)}
    yield {"model": subject.name, "p50 ÷ bare session.run": statistics.median(ratios)}
    if most is not None:
        name = f"{subject.name}, p50 of a lone request ÷ bare session.run"
        remark = f"bare {statistics.median(bare):.1f} ms"
        yield Goal.of_rounds(name, ratios, most, most=True, remark=remark)


def start(subject: Subject) -> Iterator[Row | Goal]:
    """Seconds until it serves, at the first start and with a filled cache; and memory."""
    seconds = []
    with tempfile.TemporaryDirectory() as cache:
        for _ in range(4):
            with subject.serve("--cache-dir", cache) as service:
                seconds.append(service.start_seconds)
                idle = service.memory_mb()
                run(subject.load(service, 64))
                loaded = service.memory_mb()
    yield {
        "model": subject.name,
        "s to serve, first": seconds[0],
        "s to serve, then": statistics.median(seconds[1:]),
        "idle RSS MB": idle["Rss"],
        "PSS": idle["Pss"],
        "loaded RSS MB": loaded["Rss"],
        "loaded PSS": loaded["Pss"],
    }


def growth(subject: Subject) -> Iterator[Row | Goal]:
    """Throughput and memory by the length of texts."""
    with subject.serve() as service:
        for length in LENGTHS:
            wanted = texts_of(subject.model.tokenizer.library, [length] * 64)
            outcome = run(subject.load(service, 32, wanted=wanted))
            yield {
                "model": subject.name,
                "tokens a text": length,
                "texts/s": outcome.ok_per_second(),
                "tokens/s": outcome.ok_per_second() * length,
                "RSS MB": service.memory_mb()["Rss"],
            }
