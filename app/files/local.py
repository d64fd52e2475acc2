"""A model in this process, kept busy: while it computes, the next texts are read and tokenised."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from app.engine.bundle import EMBEDDED_BUNDLE, MANIFEST, Bundle, sha256
from app.engine.machine.cpu import available_cpus, ways_to_share
from app.engine.model import Encoding, Model
from app.engine.predictions import (
    EncodedText,
    Scored,
    encode,
    encodings,
    infer,
    predict,
)
from app.engine.results import item
from app.engine.tuning import tune
from app.errors import ServiceError, UserError
from app.files.classifier import Answered
from app.files.tables import Chunk
from app.settings import Settings

# Where the settings say nothing. Who serves may want less, to answer sooner; here that gains
# nothing, and each batch has its cost.
BATCH_TOKENS = 512


Results = list[Scored | ServiceError]


@dataclass(frozen=True, slots=True)
class _Started:
    """A chunk's texts, tokenised; ``order`` is that of the encodings in ``batches``."""

    encoded: list[EncodedText | ServiceError]
    order: list[int]
    batches: list[Future[Results]]


class Local:
    """A bundle's model with runners and threads as the settings say.

    ``measure`` has what they leave open measured, which takes about 2 s the first time.
    """

    def __init__(self, settings: Settings, *, measure: bool) -> None:
        """Load the model.

        Raises:
            UserError: the bundle or the device cannot be used.
        """
        path = settings.model[0] if settings.model else EMBEDDED_BUNDLE
        cpus = available_cpus()
        *_, (runners, threads) = ways_to_share(
            cpus, runners=settings.runners, threads=settings.threads
        )
        model = Model.load(
            Bundle.open(path), device=settings.device, precision=settings.precision, threads=threads
        )
        max_tokens = settings.max_batch_tokens or BATCH_TOKENS
        if measure:
            plan = tune(model, settings, cpus)
            runners, threads = plan.runners, plan.threads
            max_tokens = settings.max_batch_tokens or max(BATCH_TOKENS, plan.budget.tokens)
        self._model = model.with_threads(threads)
        self._runners = runners
        self._max_tokens = max_tokens
        self._max_chars = settings.max_text_chars
        self.labels = model.labels
        self.identity: dict[str, Any] = {
            "model": model.name,
            "precision": model.precision,
            "manifest": sha256(path / MANIFEST),
            "max_text_chars": settings.max_text_chars,
        }

    def answers(
        self, chunks: Iterable[Chunk], *, ahead: int, advance: Callable[[int], None]
    ) -> Generator[Answered, None, None]:
        """See ``Classifier``."""
        tokenizer, runners = ThreadPoolExecutor(1), ThreadPoolExecutor(self._runners)
        waiting: deque[tuple[Chunk, Future[_Started]]] = deque()
        try:
            for chunk in chunks:
                waiting.append((chunk, tokenizer.submit(self._start, chunk, runners)))
                if len(waiting) > ahead:
                    yield self._finish(*waiting.popleft(), advance)
            while waiting:
                yield self._finish(*waiting.popleft(), advance)
        finally:
            tokenizer.shutdown(wait=False, cancel_futures=True)
            runners.shutdown(wait=False, cancel_futures=True)

    def _start(self, chunk: Chunk, runners: Executor) -> _Started:
        texts = [text for text in chunk.texts if isinstance(text, str)]
        encoded = encode(self._model, texts, max_chars=self._max_chars)
        found = encodings(encoded)
        order = sorted(range(len(found)), key=lambda index: len(found[index]), reverse=True)
        batches = _batches([found[index] for index in order], self._max_tokens)
        return _Started(encoded, order, [runners.submit(self._infer, batch) for batch in batches])

    def _infer(self, batch: Sequence[Encoding]) -> Results:
        try:
            return infer(self._model, batch)
        except Exception as error:  # onnxruntime's exceptions share no base class
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise UserError(f"ONNX Runtime failed: {reason}") from error

    def _finish(
        self, chunk: Chunk, future: Future[_Started], advance: Callable[[int], None]
    ) -> Answered:
        started = future.result()
        results: Results = []
        for batch in started.batches:
            results += (computed := batch.result())
            advance(len(computed))
        advance(len(chunk.texts) - len(results))
        by_text = sorted(zip(started.order, results, strict=True), key=itemgetter(0))
        outcomes = iter(predict(self._model, started.encoded, [result for _, result in by_text]))
        return chunk, [
            item(next(outcomes) if isinstance(text, str) else text) for text in chunk.texts
        ]


def _batches(encodings: Iterable[Encoding], max_tokens: int) -> Iterator[list[Encoding]]:
    """Cut a list, longest first, each batch at most ``max_tokens`` with its padding."""
    batch: list[Encoding] = []
    for encoding in encodings:
        if batch and (len(batch) + 1) * len(batch[0]) > max_tokens:
            yield batch
            batch = []
        batch.append(encoding)
    if batch:
        yield batch
