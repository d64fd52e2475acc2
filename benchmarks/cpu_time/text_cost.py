"""Measures the CPU time of the whole server for each text, beside ONNX Runtime alone.

CPU time says more than throughput where the client shares the cores with the server. ONNX Runtime
alone is ``session.run`` on as many threads as there are CPUs, with arrays that were made before,
in ideal batches of the size that is cheapest. Both compute the same texts, in turns.
"""

import asyncio
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import uvloop
from sentiment_service.cli.load_generator import tweet_lengths
from sentiment_service.engine.host import available_cpus
from sentiment_service.engine.model.model import Model
from sentiment_service.files.local import sorted_batches

from benchmarks.cpu_time.client import Times, send_slice
from benchmarks.cpu_time.turns import LONG_DEADLINE, spread
from benchmarks.ideal import BATCH_TOKENS, on_threads
from benchmarks.service import Service
from benchmarks.subject import Goal, Subject
from benchmarks.tables import Row
from benchmarks.texts import texts_of

# More than wait at the same time, and each request has others.
TEXTS = 6_000
PASSES = 3  # of ONNX Runtime alone with each batch size, to find the cheapest


def text_cost(
    subject: Subject, rounds: int, goals: dict[int, float | None]
) -> Iterator[Row | Goal]:
    """The server's CPU time for each text ÷ that of ONNX Runtime alone, by texts per request."""
    texts = texts_of(subject.model.tokenizer.library, tweet_lengths(TEXTS))
    alone = Alone(subject.model, texts[: subject.count], max(1, int(available_cpus())))
    # Of each round: CPU µs a text of the event loop, of the server, and of ONNX Runtime alone.
    found: dict[int, list[tuple[float, float, float]]] = {count: [] for count in goals}
    with (
        subject.serve(*LONG_DEADLINE) as service,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        for _ in range(rounds):
            for count in goals:
                before = alone.cpu_us()
                sending = send_slice(
                    f"{service.url}/classify",
                    subject.bodies(count, texts),
                    connections=subject.connections,
                    seconds=subject.seconds,
                    cpu_ns=partial(_cpu_ns, service),
                )
                loop, whole = runner.run(sending).cpu_us / count
                found[count].append((loop, whole, statistics.mean((before, alone.cpu_us()))))
    for count, most in goals.items():
        loops, costs, bases = np.array(found[count]).T
        yield {
            "model": subject.name,
            "connections": subject.connections,
            "texts a request": count,
            **spread("server's CPU µs a text", costs),
            **spread("of this, event loop", loops),
            **spread("session.run alone, CPU µs a text", bases),
            "alone is": f"{alone.tokens} tokens a batch",
            **spread("÷ alone", costs / bases),
        }
        if most is not None:
            name = f"{subject.name}, {count} a request: server's CPU a text ÷ session.run alone"
            yield Goal.of_rounds(name, [*(costs / bases)], most, most=True)


class Alone:
    """``session.run`` in ideal batches of at most ``tokens`` tokens, the cheapest of several."""

    def __init__(self, model: Model, texts: Sequence[str], runners: int) -> None:
        self._model = model
        self._texts = len(texts)
        self._runners = runners
        encodings = sorted(map(model.tokenizer.encode, texts), key=len, reverse=True)
        batches = {tokens: [*sorted_batches(encodings, tokens)] for tokens in BATCH_TOKENS}
        feeds = {tokens: [*map(model.feeds, found)] for tokens, found in batches.items()}
        costs = {
            tokens: min(self._cpu_us(one) for _ in range(PASSES)) for tokens, one in feeds.items()
        }
        self.tokens = min(costs, key=costs.__getitem__)
        self._feeds = feeds[self.tokens]

    def cpu_us(self) -> float:
        return self._cpu_us(self._feeds)

    def _cpu_us(self, feeds: Sequence[object]) -> float:
        # In sorted order, the threads would compute texts of the same length at the same time.
        shuffled = random.Random(0).sample(feeds, len(feeds))
        started = time.process_time_ns()
        on_threads(self._runners, [partial(self._model.session.run, None, one) for one in shuffled])
        return (time.process_time_ns() - started) / 1000 / self._texts


def _cpu_ns(service: Service) -> Times:
    """CPU times until now: of the event loop's thread, and of the process."""
    return np.array([service.event_loop_ns(), int(service.cpu_seconds() * 1e9)])
