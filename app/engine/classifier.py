"""One served model: it turns texts into predictions, and counts and times its work.

The module is long because tokenising, the batcher, the model's health and counting meet here.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

from app.config.settings import Settings
from app.engine.batching.admission import REQUEST_SHARE
from app.engine.batching.batcher import MicroBatcher
from app.engine.batching.fair_queue import LOOK_AHEAD
from app.engine.batching.pending import Answer
from app.engine.batching.report import BatchReport
from app.engine.cache import ResultCache
from app.engine.explanation import contributions, without_each, word_spans
from app.engine.model.model import Model
from app.engine.observer import Observer
from app.engine.predictions import (
    CHARS_PER_TEXT,
    DEFAULTS,
    EncodedText,
    Options,
    Scored,
    encode,
    encode_steps,
    encodings,
    infer,
    predict,
)
from app.engine.results import Outcome, Prediction, Word
from app.engine.text.encoding import Encoding
from app.engine.text.pairs import Input
from app.engine.tuning.plan import Plan
from app.engine.worker import Worker
from app.errors import (
    ClientDisconnected,
    DeadlineExceeded,
    NotReady,
    Overloaded,
    ServiceError,
    TextTooLong,
    TooManyTexts,
)
from app.lifecycle import Lifecycle

# Requests of up to this many characters are tokenised on the event loop. This takes 0.3 ms for
# tweets whose words are known, and 1 to 3 ms for Chinese, emoji or words that are all new. Longer
# requests go to a thread, so single texts beside them are answered sooner. Switching to the thread
# and back takes 0.03 to 0.05 ms, as long as tokenising one or two tweets.
INLINE_CHARS = 2_000
SPLIT_COST = 8  # finding and tokenising sentences as well takes up to this many times as long

STAGES = ("tokenize", "queue", "inference")

# Streams fill the queue with this many times the tokens that a batch looks ahead. The look-ahead
# alone is not enough, because the texts of streams come and go in whole groups.
STREAM_LOOKS = 2

# Submits items with a tag to a batcher, at a time of its own choice, and returns the answer.
Submit = Callable[
    [MicroBatcher[Encoding, Scored], Sequence[Encoding], object], Awaitable[Answer[Scored]]
]

PROBE_TEXT = "ready?"
PROBE_TIMEOUT_S = 1.0

# Idle runners get at least this long to end, also if ``retire`` has no time left.
LEAST_DRAIN_S = 0.1


@dataclass(slots=True)
class Classification:
    """The outcomes of a request's texts, in their order, and the time that each stage took."""

    model: Model
    outcomes: list[Outcome]
    tokenize_seconds: float
    queue_seconds: float
    inference_seconds: float


class Classifier:
    """A model and the batcher in front of it. Create it on the event loop."""

    def __init__(
        self,
        model: Model,
        plan: Plan,
        settings: Settings,
        observer: Observer,
        *,
        worker: Worker,
        lifecycle: Lifecycle,
    ) -> None:
        self.model = model
        self.plan = plan
        self._settings = settings
        self._observer = observer
        self._worker = worker
        self._lifecycle = lifecycle
        self._attempts = 0  # number in progress
        self._unused = asyncio.Event()
        self._batcher: MicroBatcher[Encoding, Scored] = MicroBatcher(
            partial(infer, model),
            key=attrgetter("key"),
            runners=plan.runners,
            budget=plan.budget,
            max_queue_tokens=settings.max_queue_tokens,
            on_batch=self._on_batch,
            on_lag=observer.lag,
            on_loss=observer.runner_lost,
            on_stall=observer.batch_stalled,
        )
        self._cache: ResultCache | None = None
        if settings.cache_mb:
            self._cache = ResultCache(
                settings.cache_mb * 2**20, labels=len(model.labels), on_lookup=observer.cache_lookup
            )
        runners = self._batcher.runners
        observer.watch(
            queue_texts=lambda: self._batcher.queued_texts,
            queue_tokens=lambda: self._batcher.queued_tokens,
            runners_stuck=lambda: runners.stuck,
            device_lost=lambda: self._batcher.device_lost is not None,
            cache_bytes=lambda: self._cache.size if self._cache is not None else 0,
            ready=lambda: runners.complete and not (lifecycle.stopping or self._batcher.failing),
        )

    @property
    def stream_tokens(self) -> int:
        """The number of tokens that all streams together may have in the queue and in batches.

        It is enough to give the runners good batches, and at most what a single request may have.
        More would only make other requests and later streams wait.
        """
        batches = self.plan.runners + STREAM_LOOKS * LOOK_AHEAD
        share = int(self._settings.max_queue_tokens * REQUEST_SHARE)
        return min(batches * self.plan.budget.tokens, share)

    async def classify(
        self, texts: Sequence[Input], options: Options = DEFAULTS, *, deadline: float
    ) -> Classification:
        """Classify the texts of one request. ``deadline`` is a time on the event loop's clock.

        Raises:
            Overloaded, TooManyTexts, ShuttingDown: the request was not admitted.
            DeadlineExceeded: the deadline passed before the texts were tokenised.
        """
        with self.counting_failures(len(texts)):
            done = await self.attempt(texts, options, deadline=deadline)
        self.count(done.outcomes)
        return done

    async def explain(
        self, text: str, *, deadline: float
    ) -> tuple[Classification, Prediction, list[Word]]:
        """Classify one text, and compute what each of its words contributes.

        Raises:
            TextTooLong: the text has too many characters or words, or its copies that each lack
                a word have too many tokens together.
            ServiceError: the text could not be classified, or ``classify`` would raise the error.
        """
        with self.counting_failures(1):
            spans = word_spans(text)
            texts = [text, *without_each(text, spans)]
            try:
                done = await self.attempt(texts, DEFAULTS, deadline=deadline)
            except TooManyTexts as error:
                raise TextTooLong(
                    f"the text and its {len(spans)} copies, each without one word, are too long: "
                    f"{error}"
                ) from None
            whole, *without = done.outcomes
            if isinstance(whole, ServiceError):
                raise whole
            words = contributions(whole, spans, without, multi_label=self.model.multi_label)
        self.count([whole])
        return done, whole, words

    def check_admission(self, *, timeout_s: float) -> None:
        """Return if the queue would admit one more token.

        Raises:
            Overloaded, ShuttingDown: it would not.
        """
        with self.counting_failures(0):
            self._batcher.check_admission(1, timeout_s=timeout_s)

    def count_rejection(self, reason: str) -> None:
        """Count a request that was refused for a reason other than the queue."""
        self._observer.rejection(reason)

    def check_live(self) -> None:
        """Return if the device works and at least one runner can still answer.

        Raises:
            NotReady: only a new process can help.
        """
        self._check_device()
        if self._batcher.runners.hopeless:
            raise NotReady(f"every runner of {self.model.name} hangs or has failed")

    def _check_device(self) -> None:
        if reason := self._batcher.device_lost:
            raise NotReady(f"{self.model.name}: {reason}")

    async def check(self) -> None:
        """Return if inference works and no runner hangs or is lost.

        After several failed batches, a short text is classified as a test. If that works, the
        service becomes ready again by itself.

        Raises:
            NotReady: the device is lost, a runner hangs or is lost, or inference keeps failing.
        """
        self._check_device()
        if not self._batcher.runners.complete:
            raise NotReady(f"a runner of {self.model.name} hangs or was lost")
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
            raise NotReady(f"inference with {self.model.name} keeps failing")

    async def retire(self, timeout_s: float) -> bool:
        """Finish the requests in progress, for at most ``timeout_s`` seconds, then end the runners.

        Later requests are not admitted: either the service is stopping, or another classifier has
        replaced this one. Returns whether all requests were finished and all runners have ended.
        """
        until = time.monotonic() + timeout_s
        self._unused.clear()
        if self._attempts:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._unused.wait(), timeout_s)
        finished = not self._attempts
        return await self._batcher.drain(max(LEAST_DRAIN_S, until - time.monotonic())) and finished

    @property
    def computing(self) -> bool:
        """Whether a runner's thread still runs. It may run longer than the time that it had."""
        return self._batcher.runners.running

    async def attempt(
        self,
        texts: Sequence[Input],
        options: Options,
        *,
        deadline: float,
        submit: Submit | None = None,
    ) -> Classification:
        """Do the same as ``classify``, but do not count the texts.

        If ``submit`` is given, it submits the texts. It may wait for room in the queue, where other
        requests are refused.
        """
        self._lifecycle.check()
        self._attempts += 1
        try:
            return await self._attempt(texts, options, deadline, submit)
        finally:
            self._attempts -= 1
            if not self._attempts:
                self._unused.set()

    async def _attempt(
        self, texts: Sequence[Input], options: Options, deadline: float, submit: Submit | None
    ) -> Classification:
        loop = asyncio.get_running_loop()
        begun_ns, started = time.time_ns(), time.perf_counter()
        if (left_s := deadline - loop.time()) <= 0:
            raise DeadlineExceeded("the time allowed was over when the request was read")
        if submit is None and self._cache is None:
            # Check before tokenising, which would be a third of the cost of refusing a request.
            # With a cache, a full queue need not refuse: only the token ids tell what is missing.
            self._batcher.check_admission(len(texts), timeout_s=left_s)
        encoded = await self._encode(texts, options, deadline)
        tokenize_seconds = time.perf_counter() - started
        tag, items = self._observer.tag(), encodings(encoded)

        def compute(items: Sequence[Encoding]) -> Awaitable[Answer[Scored]]:
            if submit is not None:
                return submit(self._batcher, items, tag)
            timeout_s = max(0.0, deadline - loop.time())
            return self._batcher.submit(items, timeout_s=timeout_s, tag=tag)

        if self._cache is None:
            answer = await compute(items)
        else:
            answer = await self._cache.answer(items, compute)
        seconds = [tokenize_seconds]
        if answer.queue_seconds or answer.inference_seconds:
            seconds += [answer.queue_seconds, answer.inference_seconds]
        self._observer.stages([*zip(STAGES, seconds, strict=False)], begun_ns=begun_ns, tag=tag)
        return Classification(
            self.model,
            predict(self.model, encoded, answer.results),
            tokenize_seconds,
            answer.queue_seconds,
            answer.inference_seconds,
        )

    async def _encode(
        self, texts: Sequence[Input], options: Options, deadline: float
    ) -> list[EncodedText | ServiceError]:
        max_chars = self._settings.max_text_chars
        cost = sum(map(len, texts)) + CHARS_PER_TEXT * len(texts)
        if cost * (SPLIT_COST if options.split else 1) <= INLINE_CHARS:
            return encode(self.model, texts, max_chars=max_chars, options=options)
        loop = asyncio.get_running_loop()
        tokens = 0

        def check(found: Sequence[Encoding]) -> None:
            # ``submit`` makes this check later. Made here as well, it stops the tokenising of a
            # request that would be refused.
            nonlocal tokens
            missing = found if self._cache is None else self._cache.missing(found)
            tokens += sum(map(len, missing))
            if missing:
                left_s = max(0.0, deadline - loop.time())
                self._batcher.check_admission(tokens, timeout_s=left_s)

        steps = encode_steps(self.model, texts, max_chars=max_chars, options=options, check=check)
        return await self._worker.run(steps, deadline=deadline)

    def _on_batch(self, report: BatchReport) -> None:
        self._observer.batch(report)
        if report.others_waited and not (report.failed or report.retried):
            self.plan.budget.learn(
                report.max_tokens,
                texts=report.texts,
                longest=report.padded_tokens // report.texts,
                tokens=report.tokens,
                seconds=report.inference_seconds,
            )

    def counting_failures(self, texts: int) -> "_CountingFailures":
        """A context that counts ``texts`` failed texts if it raises an error or is cancelled."""
        return _CountingFailures(self._observer, texts)

    def count(self, outcomes: Iterable[Outcome]) -> None:
        """Count the outcome of each text."""
        self._observer.predictions(outcomes)


class _CountingFailures:
    # A class, because contextlib's generator takes several times as long.
    __slots__ = ("_observer", "_texts")

    def __init__(self, observer: Observer, texts: int) -> None:
        self._observer, self._texts = observer, texts

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ServiceError):
            self._observer.failure(error.code, self._texts)
            if error.rejection:
                self._observer.rejection(error.rejection)
        elif isinstance(error, asyncio.CancelledError):
            self._observer.failure(ClientDisconnected.code, self._texts)
