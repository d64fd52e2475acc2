"""One served model: it turns the texts of requests into predictions, and reports its work.

With a cache, a text that comes again is not computed again.
"""

import asyncio
import struct
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import Protocol

from sentiment_service.engine.batching.batcher import MicroBatcher, StreamGate
from sentiment_service.engine.batching.fair_queue import LOOK_AHEAD, REQUEST_SHARE, Answer
from sentiment_service.engine.batching.runners import BatchObserver
from sentiment_service.engine.health import Health, Lifecycle, Phase
from sentiment_service.engine.model.model import Model, Scored, outcomes_of
from sentiment_service.engine.options import DEFAULTS, EngineConfig, TextOptions, wider
from sentiment_service.engine.shadow import Shadow
from sentiment_service.engine.step_thread import Kind, StepThread
from sentiment_service.engine.text.input_tokenizer import EncodedText, encodings
from sentiment_service.engine.text.steps import CHARS_PER_TEXT, chars_of, encode_steps
from sentiment_service.engine.text.text_tokenizer import Encoding, Input
from sentiment_service.engine.tuning import ServingPlan
from sentiment_service.errors import DeadlineExceeded, ModelNotFound, ServiceError, TooManyTexts
from sentiment_service.results import FailedItem, Outcome, Prediction, item

# The stages of a request in the engine, in their order.
STAGES = ("tokenize", "queue", "inference")
# An answer has at most so many scores, so that none holds the event loop or the memory for long.
MOST_SCORES = 100_000
Gauge = Callable[[], float]


class Observer(BatchObserver, Protocol):
    """Gets the reports of a classifier, and of the requests that it answers.

    All methods are called on the event loop, except ``batch``.
    """

    def watch(self, gauges: Mapping[str, Gauge]) -> None:
        """The model answers from now on; its gauges, named like metrics, replace earlier ones."""

    def tag(self) -> object:
        """A tag that links the reports of batches to the current request, or None."""

    def answered(self, done: "Classification", texts: int) -> None:
        """Of what was done, the first outcomes are those of a request's ``texts``."""

    def failure(self, error: BaseException, texts: int) -> None:
        """A request failed, so this many texts got no prediction."""

    def cache_lookup(self, hits: int, misses: int) -> None:
        """A request was looked up in the cache. Windows and sentences count as texts."""


# What CPython takes for a result beside its numbers: of the OrderedDict at most 168 bytes in its
# tables, which have up to six places per entry, and 32 in its list; 64 for the digest; up to 48 for
# the object that holds the numbers.
ENTRY_BYTES = 168 + 32 + 64 + 48


class ResultCache:
    """The results of one model's latest texts, in at most ``max_bytes`` bytes.

    They are kept by a digest of the token ids, never with the text. Use it on the event loop.
    """

    def __init__(
        self, max_bytes: int, *, labels: int, on_lookup: Callable[[int, int], None]
    ) -> None:
        self._labels = labels
        self._on_lookup = on_lookup
        # Bytes instead of lists: they are small, and the garbage collector does not visit them.
        self._numbers = struct.Struct(f"{2 * labels}d")
        self._entry_bytes = ENTRY_BYTES + self._numbers.size
        self._max_entries = max_bytes // self._entry_bytes
        self._results: OrderedDict[bytes, bytes] = OrderedDict()  # the latest use comes last

    @property
    def size(self) -> int:
        return len(self._results) * self._entry_bytes

    async def answer(
        self,
        items: Sequence[Encoding],
        compute: Callable[[Sequence[Encoding]], Awaitable[Answer[Scored]]],
    ) -> Answer[Scored]:
        """The results, in order: from here, and from ``compute`` for those that are missing.

        Computed results are kept, errors are not. If nothing is missing, the answer took no time.
        """
        digests = [blake2b(item.key, digest_size=16).digest() for item in items]
        known = [self._get(digest) for digest in digests]
        places = [place for place, result in enumerate(known) if result is None]
        self._on_lookup(len(known) - len(places), len(places))
        answer: Answer[Scored] = Answer([], 0.0, 0.0)
        if places:
            answer = await compute([items[place] for place in places])
        for place, result in zip(places, answer.results, strict=True):
            if not isinstance(result, ServiceError):
                self._store(digests[place], result)
        computed = iter(answer.results)
        results = [next(computed) if result is None else result for result in known]
        return replace(answer, results=results)

    def _get(self, digest: bytes) -> Scored | None:
        packed = self._results.get(digest)
        if packed is None:
            return None
        self._results.move_to_end(digest)
        numbers = self._numbers.unpack(packed)
        return [*numbers[: self._labels]], [*numbers[self._labels :]]

    def _store(self, digest: bytes, result: Scored) -> None:
        logits, scores = result
        self._results[digest] = self._numbers.pack(*logits, *scores)
        if len(self._results) > self._max_entries:
            self._results.popitem(last=False)


# Requests of up to this many characters are tokenised on the event loop. This takes 0.3 ms for
# tweets whose words are known, and 1 to 3 ms for Chinese, emoji or words that are all new. Longer
# requests, and those for sentences, go to a thread, so that single texts are answered sooner.
INLINE_CHARS = 2_000

# Nearly no text has fewer tokens than one for so many of its characters.
MOST_CHARS_PER_TOKEN = 16

# The first guess of what a character takes on the thread.
TOKENISING_S, SPLITTING_S = 1e-6, 8e-6

# Streams fill the queue with this many times the tokens that a batch looks ahead. The look-ahead
# alone is not enough, because the texts of streams come and go in whole groups.
STREAM_LOOKS = 4

# Idle runners get at least this long to end, also if ``retire`` has no time left.
LEAST_DRAIN_S = 0.1


@dataclass(slots=True)
class Classification:
    """The outcomes of a request's texts, in their order, and the seconds of each stage."""

    model: Model
    outcomes: list[Outcome]
    stages: dict[str, float]  # by ``STAGES``; if nothing was computed, two are 0
    unknown: list[int]  # tokens of each text that the model does not know

    def items(self, *, single: bool = False) -> list[Prediction | FailedItem]:
        """The outcomes as ``results`` of an answer, which has a place for the error of each text.

        If no text has a result, the error of a ``single`` text is raised, or the first of the
        server (5xx).
        """
        outcomes = self.outcomes
        if isinstance(outcomes[0], ServiceError):  # seldom
            errors = [outcome for outcome in outcomes if isinstance(outcome, ServiceError)]
            if len(errors) == len(outcomes):
                for error in errors:
                    if single or error.status >= 500:
                        raise error
        return [
            item(outcome) if isinstance(outcome, ServiceError) else outcome for outcome in outcomes
        ]

    @property
    def server_timing(self) -> str:
        stages = self.stages.items()
        return ", ".join([f"{stage};dur={spent * 1000:.2f}" for stage, spent in stages])


class Classifier:
    """A model and the batcher in front of it. Create it on the event loop."""

    def __init__(
        self,
        model: Model,
        plan: ServingPlan,
        config: EngineConfig,
        observer: Observer,
        *,
        step_thread: StepThread,
        lifecycle: Lifecycle,
    ) -> None:
        self.model = model
        self.plan = plan
        self._config = config
        self.observer = observer
        self._step_thread = step_thread
        self._tokenising, self._splitting = Kind(TOKENISING_S), Kind(SPLITTING_S)
        self._lifecycle = lifecycle
        self._loop = asyncio.get_running_loop()
        # The number of texts and sentences that one answer may have.
        self.answer_texts = max(1, MOST_SCORES // len(model.labels))
        self._uses = 0  # number in progress
        self._unused = asyncio.Event()
        self.ended = asyncio.Event()  # nothing more is classified: see ``retire``
        self.shadow: Shadow | None = None  # what is tried beside the first model
        self._batcher: MicroBatcher[Encoding, Scored] = MicroBatcher(
            model.compute,
            observer,
            runners=plan.runners,
            budget=plan.budget,
            max_queue_tokens=plan.max_queue_tokens,
        )
        self.stream_gate = StreamGate(self._batcher, lambda: self.stream_tokens)
        self.health = Health(model, self._batcher)
        self._cache: ResultCache | None = None
        if config.cache_mb:
            self._cache = ResultCache(
                config.cache_mb * 2**20, labels=len(model.labels), on_lookup=observer.cache_lookup
            )
        observer.watch(
            {
                "queue_texts": lambda: len(self._batcher.queue),
                "queue_tokens": lambda: self._batcher.queue.tokens,
                "queue_wait_seconds": lambda: self._batcher.queue_wait_s,
                "runners_stuck": lambda: self._batcher.runners.stuck,
                "device_lost": lambda: self._batcher.device_lost is not None,
                "cache_bytes": lambda: self._cache.size if self._cache is not None else 0,
                "model_ready": lambda: self.health.good and not self._lifecycle.stopping,
            }
        )

    @property
    def request_tokens(self) -> int:
        return int(self.plan.max_queue_tokens * REQUEST_SHARE)

    @property
    def stream_tokens(self) -> int:
        """The number of tokens that all streams together may have in the queue and in batches.

        It is enough for good batches. More would only make other requests and later streams wait.
        """
        batches = self.plan.runners + STREAM_LOOKS * LOOK_AHEAD
        return min(batches * self.plan.budget.tokens, self.request_tokens)

    def check_admission(self, *, timeout_s: float) -> None:
        """Raise the error with which the queue would refuse one more token, if it would."""
        self._batcher.check_admission(1, timeout_s=timeout_s)

    @contextmanager
    def in_use(self, *, computes: bool = False) -> Iterator[None]:
        """For a request that classifies in parts: ``retire`` waits for its end.

        While any of them ``computes``, a candidate does not.
        """
        shadow = self.shadow if computes else None
        self._uses += 1
        if shadow is not None:
            shadow.begin()
        try:
            yield
        finally:
            self._uses -= 1
            if not self._uses:
                self._unused.set()
            if shadow is not None:
                shadow.end()

    async def retire(self, timeout_s: float) -> bool:
        """Finish the requests in progress, for at most ``timeout_s`` seconds, then end the runners.

        Later requests are not admitted. Returns whether all requests were finished.
        """
        until = time.monotonic() + timeout_s
        if self.shadow is not None and self.shadow.model is self.model:
            self.shadow.close()
        self._unused.clear()
        if self._uses:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._unused.wait(), timeout_s)
        finished = not self._uses
        self.ended.set()
        return await self._batcher.drain(max(LEAST_DRAIN_S, until - time.monotonic())) and finished

    @property
    def computing(self) -> bool:
        """Whether a runner's thread still runs. It may run longer than the time that it had."""
        return self._batcher.runners.running

    async def classify(
        self,
        texts: Sequence[Input | ServiceError],
        options: TextOptions = DEFAULTS,
        *,
        deadline: float,
        admitted: asyncio.Event | None = None,
    ) -> Classification:
        """Classify the texts of one request. ``deadline`` is a time on the event loop's clock.

        A text that could not be read is the error that says so, and stays in its place. If
        ``admitted`` is given, the texts wait at the stream gate for room in the queue, where other
        requests are refused. It is set when they have passed.
        """
        if self._lifecycle.phase is not Phase.READY:
            self._lifecycle.check()
        if options.threshold is not None:
            self.model.check(options)
        with self.in_use(computes=True):
            started = time.perf_counter()
            encoded = await self._encode(texts, options, deadline, refuse=admitted is None)
            tokenize_s = time.perf_counter() - started
            tag = self.observer.tag()
            timeout_s = max(0.0, deadline - self._loop.time())
            compute = (
                partial(self._batcher.submit, timeout_s=timeout_s, tag=tag)
                if admitted is None
                else partial(self.stream_gate.submit, tag=tag, admitted=admitted)
            )
            items = encodings(encoded)
            if len(items) > self.answer_texts and admitted is None:
                self._check_scores(encoded)
            if self._cache is not None:
                answer = await self._cache.answer(items, compute)
            else:
                answer = await compute(items)
            seconds = (tokenize_s, answer.queue_seconds, answer.inference_seconds)
            stages = dict(zip(STAGES, seconds, strict=True))
            outcomes = outcomes_of(self.model, encoded, answer.results)
            unknown = [text.unknown if isinstance(text, EncodedText) else 0 for text in encoded]
            return Classification(self.model, outcomes, stages, unknown)

    def _check_scores(self, texts: Sequence[EncodedText | ServiceError]) -> None:
        """Refuse a request whose answer would be very large, because the model has many labels."""
        parts = sum(1 + len(text.sentences) for text in texts if isinstance(text, EncodedText))
        if parts > self.answer_texts:
            raise TooManyTexts(
                f"there are {parts} texts, with their sentences; of a model with "
                f"{len(self.model.labels)} labels, at most {self.answer_texts} are accepted"
            )

    async def _encode(
        self,
        texts: Sequence[Input | ServiceError],
        options: TextOptions,
        deadline: float,
        *,
        refuse: bool,
    ) -> list[EncodedText | ServiceError]:
        """Tokenise the texts; with ``refuse``, long ones only while the queue has room for them."""
        if deadline <= self._loop.time():
            raise DeadlineExceeded("the time allowed was over when the request was read")
        tokenizer, max_chars = self.model.tokenizer, self._config.max_text_chars
        chars = sum([len(text) for text in texts if not isinstance(text, ServiceError)])
        cost = chars + CHARS_PER_TEXT * len(texts)
        if cost <= INLINE_CHARS and not options.split:
            return tokenizer.encode_texts(texts, options, max_chars=max_chars)
        # Streams wait for room. A cache may know the texts, and knows so only of their token ids.
        refuse = refuse and self._cache is None

        def check(tokens: int) -> None:
            if refuse:
                left_s = max(0.0, deadline - self._loop.time())
                self._batcher.check_admission(tokens, timeout_s=left_s)

        # At least so many, so that work which the queue will not take is not begun.
        most = tokenizer.max_tokens
        least = sum(min(chars_of(text) // MOST_CHARS_PER_TOKEN, most) for text in texts)
        check(max(len(texts), min(least, self.request_tokens)))
        steps = encode_steps(tokenizer, texts, options, max_chars=max_chars, check=check)
        kind = self._splitting if options.split else self._tokenising
        return await self._step_thread.run(steps, deadline=deadline, kind=kind, size=cost)


class Classifiers(dict[str, Classifier]):
    """Classifiers by the names of their models. Requests that name no model go to the first."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        super().__init__()
        self._lifecycle = lifecycle

    def of(self, name: str | None, language: str | None = None) -> Classifier:
        """The classifier of the named model, or of the first one.

        If a language is given instead, the first one that names it, or else a wider tag of it, or
        else another variant of the same language.
        """
        if not self:
            self._lifecycle.check()
        if name is None:
            if language and len(self) > 1:
                return self._for_language(language)
            return next(iter(self.values()))
        try:
            return self[name]
        except KeyError:
            raise ModelNotFound(
                f"no model has that name; the served models are: {', '.join(self)}"
            ) from None

    def _for_language(self, language: str) -> Classifier:
        for tag in wider(language):
            for classifier in self.values():
                if any(tag in wider(named) for named in classifier.model.languages):
                    return classifier
        return next(iter(self.values()))
