"""Measures texts that come again: while an equal text waits, and with the cache of results."""

import random
import statistics
from collections.abc import Iterator
from itertools import product

from benchmarks.load import watched
from benchmarks.service import Service
from benchmarks.subject import Goal, Subject
from benchmarks.tables import Row
from benchmarks.texts import texts_of, tweet_lengths

CONNECTIONS = 64
POPULAR = (500, 20)  # texts that come again and again ...
REPEATED = 0.3  # ... and their share in the stream
CACHE_MB = 64
TEXTS = 12_000  # more than are sent in one measurement, so that no other texts come again
SECONDS = 5.0
DIFFERENT, SHARED, CACHED = "all different", "30 % repeated", "30 % repeated, with cache"


def repeats(subject: Subject, rounds: int) -> Iterator[Row | Goal]:
    """A stream with repeated texts beside one without: texts per second, and CPU time per text.

    The CPU time of the server says more while other programs use the machine.
    """
    for count, texts in product(POPULAR, (1, 16)):
        tokenizer = subject.model.tokenizer.library
        popular = texts_of(tokenizer, tweet_lengths(count, seed=rounds), seed=rounds)
        rates: dict[str, list[float]] = {DIFFERENT: [], SHARED: [], CACHED: []}
        costs: dict[str, list[float]] = {DIFFERENT: [], SHARED: [], CACHED: []}
        with subject.serve() as plain, subject.serve("--cache-mb", str(CACHE_MB)) as cached:
            _measured(subject, cached, texts, popular)
            start = cached.metrics()
            for number in range(rounds):
                different = texts_of(tokenizer, tweet_lengths(TEXTS, seed=number), seed=number)
                stream = _with_repeats(different, popular)
                for name, service, wanted in (
                    (DIFFERENT, plain, different),
                    (SHARED, plain, stream),
                    (CACHED, cached, stream),
                ):
                    rate, cost = _measured(subject, service, texts, wanted)
                    rates[name].append(rate)
                    costs[name].append(cost)
            end = cached.metrics()
        hits = end["cache_hits_total"] - start["cache_hits_total"]
        misses = end["cache_misses_total"] - start["cache_misses_total"]
        row: Row = {"model": subject.name, "popular texts": count, "texts a request": texts}
        row |= {f"{name}: texts/s": statistics.median(rates[name]) for name in rates}
        row |= {f"{name}: CPU ms a text": statistics.median(costs[name]) for name in costs}
        for above, below in ((SHARED, DIFFERENT), (CACHED, DIFFERENT), (CACHED, SHARED)):
            row[f"texts/s, {above} ÷ {below}"] = _ratio(rates[above], rates[below])
            row[f"CPU a text, {above} ÷ {below}"] = _ratio(costs[above], costs[below])
        yield row | {"hits": hits / (hits + misses), "cache MB": end["cache_bytes"] / 1e6}


def _with_repeats(different: list[str], popular: list[str]) -> list[str]:
    generator = random.Random(0)
    return [
        generator.choice(popular) if generator.random() < REPEATED else text for text in different
    ]


def _ratio(above: list[float], below: list[float]) -> str:
    """The median of the rounds' ratios, and their range."""
    ratios = [a / b for a, b in zip(above, below, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def _measured(
    subject: Subject, service: Service, texts: int, wanted: list[str]
) -> tuple[float, float]:
    """Texts answered per second, and the server's CPU time per text in milliseconds."""
    seen = watched(
        service, subject.load(service, CONNECTIONS, texts, wanted=wanted, seconds=SECONDS)
    )
    answered = seen.grown("texts_total")
    return answered / seen.seconds, seen.cpu_seconds / answered * 1000
