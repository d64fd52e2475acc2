"""One served model: texts in, predictions out, everything counted and timed."""

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from app.api.explanation import contributions, without_each, word_spans
from app.api.predictions import (
    DEFAULTS,
    EncodedText,
    Options,
    Scored,
    encode,
    encodings,
    infer,
    predict,
)
from app.api.schemas import Prediction, Word
from app.batcher import BatchReport, MicroBatcher
from app.errors import (
    ClientDisconnected,
    DeadlineExceeded,
    NotReady,
    Overloaded,
    ServiceError,
    ShuttingDown,
    TextTooLong,
    TooManyTexts,
)
from app.metrics import STAGES, ModelMetrics
from app.model import Encoding, Model
from app.settings import Settings
from app.traces import Tracer, current_tag
from app.tuning import Plan

# Characters of a request that are tokenised on the event loop, which they hold for about a
# millisecond; more go to a thread, whose switches cost more than tokenising a few tweets.
INLINE_CHARS = 4_000
CHARS_PER_TEXT = 30  # that take as long as there being one text more

PROBE_TEXT = "ready?"
PROBE_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class Classification:
    """What became of a request's texts, in their order, and where its time went."""

    model: Model
    outcomes: list[Prediction | ServiceError]
    tokenize_seconds: float
    queue_seconds: float
    inference_seconds: float


class Classifier:
    """A model behind its batcher. Create it on the event loop."""

    def __init__(
        self,
        model: Model,
        plan: Plan,
        settings: Settings,
        metrics: ModelMetrics,
        *,
        tokenizer: Executor,
        tracer: Tracer | None,
    ) -> None:
        self.model = model
        self.plan = plan
        self._settings = settings
        self._metrics = metrics
        self._tokenizer = tokenizer
        self._tracer = tracer
        self._stopped = False
        self._attempts = 0  # under way
        self._unused = asyncio.Event()
        self._batcher: MicroBatcher[Encoding, Scored] = MicroBatcher(
            partial(infer, model),
            runners=plan.runners,
            budget=plan.budget,
            max_queue_tokens=settings.max_queue_tokens,
            on_batch=self._on_batch,
            on_lag=metrics.lag,
        )
        metrics.watch(
            queue_texts=lambda: self._batcher.queued_texts,
            queue_tokens=lambda: self._batcher.queued_tokens,
            ready=lambda: not (self._stopped or self._batcher.failing),
        )

    async def classify(
        self, texts: Sequence[str], options: Options = DEFAULTS, *, deadline: float
    ) -> Classification:
        """Classify the texts of one request, until ``deadline`` by the event loop's clock.

        Raises:
            Overloaded, TooManyTexts, ShuttingDown: the request was not admitted.
            DeadlineExceeded: tokenising alone took longer than it may.
        """
        with self.counting_failures(len(texts)):
            done = await self.attempt(texts, options, deadline=deadline)
        self.count(done.outcomes)
        return done

    async def explain(
        self, text: str, *, deadline: float
    ) -> tuple[Classification, Prediction, list[Word]]:
        """Classify one text, and say what each of its words contributes.

        Raises:
            TextTooLong: it has more words, or with them more tokens, than are explained.
            ServiceError: it could not be classified, or as ``classify``.
        """
        with self.counting_failures(1):
            spans = word_spans(text)
            texts = [text, *without_each(text, spans)]
            try:
                done = await self.attempt(texts, DEFAULTS, deadline=deadline)
            except TooManyTexts as error:
                raise TextTooLong(f"without each of its {len(spans)} words, {error}") from None
            whole, *without = done.outcomes
            if isinstance(whole, ServiceError):
                raise whole
            words = contributions(whole, spans, without, multi_label=self.model.multi_label)
        self.count([whole])
        return done, whole, words

    async def check(self) -> None:
        """Return while inference works.

        After failures one short text decides, so that the service comes back by itself.

        Raises:
            NotReady: it does not.
        """
        if not self._batcher.failing:
            return
        try:
            probe = await self._batcher.submit(
                [self.model.encode(PROBE_TEXT)], timeout_s=PROBE_TIMEOUT_S
            )
            works = not isinstance(probe.results[0], ServiceError)
        except Overloaded:
            works = False
        if not works:
            raise NotReady(f"inference with {self.model.name} keeps failing", retry_after_s=1.0)

    def stop(self) -> None:
        """Admit nothing more. Safe in a signal handler."""
        self._stopped = True

    async def retire(self, timeout_s: float) -> None:
        """End when what was begun has its answer: another has taken this one's place."""
        self._unused.clear()
        if self._attempts:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._unused.wait(), timeout_s)
        await self.drain(timeout_s)

    async def drain(self, timeout_s: float) -> bool:
        """Finish what was admitted, for at most ``timeout_s`` seconds; whether all ended."""
        return await self._batcher.drain(timeout_s)

    async def attempt(
        self, texts: Sequence[str], options: Options, *, deadline: float
    ) -> Classification:
        """``classify``, but the texts are not counted."""
        if self._stopped:
            raise ShuttingDown("the service is shutting down", retry_after_s=1.0)
        self._attempts += 1
        try:
            return await self._attempt(texts, options, deadline)
        finally:
            self._attempts -= 1
            if not self._attempts:
                self._unused.set()

    async def _attempt(
        self, texts: Sequence[str], options: Options, deadline: float
    ) -> Classification:
        loop = asyncio.get_running_loop()
        begun_ns, started = time.time_ns(), time.perf_counter()
        if (left_s := deadline - loop.time()) <= 0:
            raise DeadlineExceeded("the time allowed was over when the request was read")
        # Before the tokenizer, which would be a third of what it costs to turn a request away.
        self._batcher.check_admission(len(texts), timeout_s=left_s)
        encoded = await self._encode(texts, options, deadline)
        tokenize_seconds = time.perf_counter() - started
        tag = current_tag()
        answer = await self._batcher.submit(
            encodings(encoded), timeout_s=max(0.0, deadline - loop.time()), tag=tag
        )
        if self._tracer is not None and tag is not None:
            stages = (tokenize_seconds, answer.queue_seconds, answer.inference_seconds)
            self._tracer.stages(self.model.name, begun_ns, zip(STAGES, stages, strict=True))
        self._metrics.stage("tokenize", tokenize_seconds)
        if answer.results:
            self._metrics.stage("queue", answer.queue_seconds)
            self._metrics.stage("inference", answer.inference_seconds)
        return Classification(
            self.model,
            predict(self.model, encoded, answer.results),
            tokenize_seconds,
            answer.queue_seconds,
            answer.inference_seconds,
        )

    async def _encode(
        self, texts: Sequence[str], options: Options, deadline: float
    ) -> list[EncodedText | ServiceError]:
        encode_all = partial(
            encode, self.model, texts, max_chars=self._settings.max_text_chars, options=options
        )
        if sum(map(len, texts)) + CHARS_PER_TEXT * len(texts) <= INLINE_CHARS:
            return encode_all()
        try:
            async with asyncio.timeout_at(deadline):
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._tokenizer, encode_all)
        except TimeoutError:
            raise DeadlineExceeded("not tokenised within the time it may take") from None

    def _on_batch(self, report: BatchReport) -> None:
        self._metrics.batch(report)
        if report.others_waited and not report.failed:
            self.plan.budget.learn(
                report.max_tokens,
                texts=report.texts,
                longest=report.padded_tokens // report.texts,
                tokens=report.tokens,
                seconds=report.inference_seconds,
            )
        if self._tracer is not None:
            self._tracer.batch(self.model.name, report)

    @contextmanager
    def counting_failures(self, texts: int) -> Iterator[None]:
        """Count so many texts as failed by what is raised."""
        try:
            yield
        except ServiceError as error:
            self._metrics.failure(error.code, texts)
            if isinstance(error, Overloaded):
                self._metrics.rejection(error.reason)
            elif isinstance(error, ShuttingDown):
                self._metrics.rejection(error.code)
            raise
        except asyncio.CancelledError:
            self._metrics.failure(ClientDisconnected.code, texts)
            raise

    def count(self, outcomes: Iterable[Prediction | ServiceError]) -> None:
        """Count what became of texts."""
        for outcome in outcomes:
            if isinstance(outcome, ServiceError):
                self._metrics.failure(outcome.code)
            else:
                self._metrics.prediction(
                    outcome["label"],
                    outcome["score"],
                    tokens=outcome["tokens"],
                    truncated=outcome["truncated"],
                )
