"""Classify with a model in this process.

While the model computes, the next texts are read and tokenised.
"""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Executor, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

from sentiment_service.engine.batching.batcher import infer_each
from sentiment_service.engine.batching.fair_queue import TokenBudget
from sentiment_service.engine.host import available_cpus, ways_to_share
from sentiment_service.engine.loading import load_as_set
from sentiment_service.engine.model.bundle import bundles_to_use
from sentiment_service.engine.model.device import CUDA
from sentiment_service.engine.model.model import Scored, outcomes_of
from sentiment_service.engine.options import DEFAULTS, TextOptions
from sentiment_service.engine.step_thread import finish
from sentiment_service.engine.text.input_tokenizer import encodings
from sentiment_service.engine.text.steps import encode_steps
from sentiment_service.engine.text.text_tokenizer import Encoding
from sentiment_service.engine.tuning import RUNNERS_PER_GPU, tune
from sentiment_service.errors import ServiceError, UserError, first_line
from sentiment_service.files.results import Advance, ResultColumns, with_reason
from sentiment_service.files.table import READ_AHEAD_CHUNKS, Chunk, ClassifiedChunk, TextOrError
from sentiment_service.results import Outcome, item
from sentiment_service.settings.settings import Settings

# Padded tokens of a batch, unless the settings say otherwise or more was measured to be better.
# A server may want smaller batches, to answer sooner. Files gain nothing from that, and each
# batch has a fixed cost.
MIN_BATCH_TOKENS = 512

T = TypeVar("T")
BatchResults = list[Scored | ServiceError]


class LocalClassifier:
    """A bundle's model. Threads may share it: together, they compute as many batches as it has
    runners.

    ``measure`` finds the best values for what the settings leave open; the first time, that takes
    about 2 s. ``threshold`` is for multi-label models.
    """

    def __init__(
        self, settings: Settings, *, measure: bool, threshold: float | None = None
    ) -> None:
        path = bundles_to_use(settings.model)[0]
        cpus, config = available_cpus(), settings.engine_config()
        *_, (runners, threads) = ways_to_share(
            cpus, runners=settings.runners, threads=settings.threads
        )
        model = load_as_set(path, config, threads=threads)
        if model.provider == CUDA:
            runners = settings.runners or RUNNERS_PER_GPU * model.device.copies
        max_tokens = settings.max_batch_tokens or MIN_BATCH_TOKENS
        if measure:
            plan = tune(model, config, cpus)
            runners, threads = plan.runners, plan.threads
            max_tokens = settings.max_batch_tokens or max(MIN_BATCH_TOKENS, plan.budget.tokens)
        self._model = model.with_threads(threads)
        self._runners = runners
        self._free = threading.Semaphore(runners)
        self._budget = TokenBudget(max_tokens)
        self._max_chars = settings.max_text_chars
        self._options = TextOptions(threshold=threshold)
        self.columns = ResultColumns(model.labels, multi_label=model.multi_label)
        self.version = model.version
        # Only a classifier with the same identity can continue a run. The values are for JSON.
        self.identity: dict[str, Any] = {
            "model": model.name,
            "device": str(model.device).partition(":")[0],  # GPUs may give other bits than CPUs
            "precision": model.precision,
            "digest": model.digest,
            "max_text_chars": settings.max_text_chars,
        }

    def classify(
        self,
        chunks: Iterable[Chunk],
        *,
        read_ahead: int = READ_AHEAD_CHUNKS,
        advance: Advance = lambda *_: None,
    ) -> Generator[ClassifiedChunk, None, None]:
        """Classify the chunks in order.

        Up to ``read_ahead`` more chunks are read before a chunk's results are given. ``advance(n)``
        is called when n more texts are done.
        """
        classified = self.outcomes(
            chunks, read_ahead=read_ahead, advance=advance, options=self._options
        )
        with closing(classified):
            for chunk, outcomes in classified:
                yield chunk, [*map(with_reason, chunk.texts, map(item, outcomes))]

    def outcomes(
        self,
        chunks: Iterable[Chunk],
        *,
        read_ahead: int = READ_AHEAD_CHUNKS,
        advance: Advance = lambda *_: None,
        options: TextOptions = DEFAULTS,
        ended: threading.Event | None = None,
    ) -> Generator[tuple[Chunk, list[Outcome]], None, None]:
        """As ``classify``, for programs: in the place of a text that fails is its exception.

        Once ``ended`` is set, no more is computed, whoever still holds the run.
        """
        self._model.check(options)
        ended = ended or threading.Event()
        tokenize = partial(_submit, ThreadPoolExecutor(1), ended)
        compute = partial(_submit, ThreadPoolExecutor(self._runners), ended)
        read: deque[Chunk] = deque()
        # Each waits until its chunk is tokenised; what it returns waits for the outcomes.
        waiting: deque[Callable[[], Callable[[Advance], list[Outcome]]]] = deque()
        try:
            for chunk in chunks:
                read.append(chunk)
                waiting.append(tokenize(self._begin, chunk.texts, options, compute))
                if len(waiting) > read_ahead:
                    yield read.popleft(), waiting.popleft()()(advance)
            while waiting:
                yield read.popleft(), waiting.popleft()()(advance)
        finally:
            # Not the pools' shutdown, which takes their locks. If nobody uses the run any more, the
            # garbage collector ends it on any thread, also on one that holds such a lock.
            ended.set()
            # The threads end with the pools, which the frames of an exception would keep.
            del tokenize, compute

    def _begin(
        self,
        texts: Sequence[TextOrError],
        options: TextOptions,
        compute: Callable[..., Callable[[], BatchResults]],
    ) -> Callable[[Advance], list[Outcome]]:
        """Tokenise the texts and hand their batches to the runners.

        What is returned waits for the outcomes, and gives them in the order of the texts.
        """
        tokenizer, max_chars = self._model.tokenizer, self._max_chars
        if options.split:
            encoded = finish(encode_steps(tokenizer, texts, options, max_chars=max_chars))
        else:
            encoded = tokenizer.encode_texts(texts, options, max_chars=max_chars)
        to_infer = encodings(encoded)
        # The batches have the encodings sorted by length.
        order = sorted(range(len(to_infer)), key=lambda index: len(to_infer[index]), reverse=True)
        batches = [
            compute(self._infer, batch)
            for batch in sorted_batches([to_infer[index] for index in order], self._budget.tokens)
        ]

        def outcomes(advance: Advance) -> list[Outcome]:
            results: BatchResults = []
            for batch in batches:
                computed = batch()
                results += computed
                advance(len(computed))
            advance(len(texts) - len(results))  # the texts that failed before
            numbered = sorted(zip(order, results, strict=True), key=itemgetter(0))
            return outcomes_of(self._model, encoded, [result for _, result in numbered])

        return outcomes

    def _infer(self, batch: Sequence[Encoding]) -> BatchResults:
        with self._free:
            results, raised = infer_each(self._model.compute, batch, self._budget)
            if raised:
                self._check_model()
        return results

    def _check_model(self) -> None:
        """Stop the run if the model fails on a plain text, too, and not only on some texts."""
        try:
            self._model.compute([self._model.tokenizer.encode("a")])
        except Exception as error:  # onnxruntime's exceptions share no base class
            raise UserError(f"the model fails on every text: {first_line(error)}") from error


def _submit(
    pool: Executor, ended: threading.Event, function: Callable[..., T], *arguments: Any
) -> Callable[[], T]:
    """Have the pool call the function; what is returned waits for its result.

    Once ``ended`` is set, nothing is called. When the main thread has ended, Python starts no more
    threads of pools, but other threads may go on. Then the thread that waits calls it.
    """

    def call() -> T:
        if ended.is_set():
            raise CancelledError
        return function(*arguments)

    try:
        return pool.submit(call).result
    except RuntimeError:
        return call


def sorted_batches(encodings: Iterable[Encoding], max_tokens: int) -> Iterator[list[Encoding]]:
    """Batches of at most ``max_tokens`` tokens with padding, or of one longer text.

    The encodings must be sorted by length, the longest first.
    """
    batch: list[Encoding] = []
    for encoding in encodings:
        if batch and (len(batch) + 1) * len(batch[0]) > max_tokens:
            yield batch
            batch = []
        batch.append(encoding)
    if batch:
        yield batch
