"""The throughput of ONNX Runtime alone with the same texts, without queue and HTTP.

The texts are tokenised beforehand, sorted by length and cut into batches with hardly any padding.
Runner threads call the session in a loop. The batches come in random order, because the first ones
in sorted order would all have texts of similar lengths.
"""

import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from sentiment_service.engine.model.model import Model
from sentiment_service.files.local import sorted_batches

BATCH_TOKENS = (128, 256, 512)


class Ideal:
    """A model and its texts. The constructor finds the fastest number of runners and threads."""

    def __init__(self, model: Model, texts: Sequence[str], cpus: int) -> None:
        self._encodings = sorted(
            (model.tokenizer.encode(text) for text in texts), key=len, reverse=True
        )
        self._models = {model.threads: model}
        candidates = [
            (runners, threads, tokens)
            for runners, threads in ((cpus, 1), (1, cpus))
            for tokens in BATCH_TOKENS
        ]
        for candidate in candidates:
            self.rate(*candidate)  # allocates the memory for these shapes
        self._best = max(candidates, key=lambda way: self.rate(*way))
        runners, threads, tokens = self._best
        self.name = f"{runners} x {threads}, {tokens} tokens a batch"

    def texts_per_second(self) -> float:
        """Compute all texts once with the fastest plan; returns texts per second."""
        return self.rate(*self._best)

    def rate(self, runners: int, threads: int, tokens: int) -> float:
        """Compute all texts once; returns texts per second. ``tokens`` is the limit of a batch."""
        if threads not in self._models:
            self._models[threads] = next(iter(self._models.values())).with_threads(threads)
        model = self._models[threads]
        shuffled = list(sorted_batches(self._encodings, tokens))
        random.Random(0).shuffle(shuffled)
        started = time.perf_counter()
        on_threads(runners, [partial(model.infer, batch) for batch in shuffled])
        return len(self._encodings) / (time.perf_counter() - started)


def on_threads(count: int, calls: Iterable[Callable[[], object]]) -> None:
    """Make all calls, each thread the next one as soon as it is free."""
    left = iter(calls)
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                call = next(left, None)
            if call is None:
                return
            call()

    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def lone_ms(model: Model, texts: Sequence[str]) -> list[float]:
    """Milliseconds of a plain ``session.run`` for each text; its arrays are made beforehand."""
    milliseconds = []
    for text in texts:
        feeds = model.feeds([model.tokenizer.encode(text)])
        started = time.perf_counter()
        model.session.run(None, feeds)
        milliseconds.append((time.perf_counter() - started) * 1000)
    return milliseconds
