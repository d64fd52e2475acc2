"""One request over HTTP or gRPC: its state, and the envelope that both protocols share."""

import asyncio
import logging
import random
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from sentiment_service import errors
from sentiment_service.engine.classifier import Classification, Classifier
from sentiment_service.engine.options import DEFAULTS, TextOptions
from sentiment_service.engine.step_thread import Steps, finish
from sentiment_service.engine.text.text_tokenizer import Input
from sentiment_service.observability.logs import log_request, trace_id
from sentiment_service.observability.observers import count_request
from sentiment_service.requests.limits import READING, timeout_ms
from sentiment_service.requests.service import Service
from sentiment_service.requests.validation import INLINE_BYTES

UNMATCHED = "unmatched"  # the route of requests that no route answers
OTHER_METHOD = "other"  # any word that is none of HTTP's methods: each would be a series

REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")

T = TypeVar("T")
logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Arrival:
    """What the server says of a request, beside what ASGI has a place for."""

    # When the head arrived; under load it waits to be read. This is the event loop's clock, which
    # uvloop rounds to milliseconds.
    at: float = field(default_factory=time.monotonic)
    complete: bool = False  # whether the whole body has arrived with it
    endless: bool = False  # whether nobody knows yet where the body ends
    followed: bool = False  # whether the next request has arrived
    refused: bool = False  # set by the answer
    departed: bool = False  # whether the client has closed the connection; then this is called:
    on_departure: Callable[[], object] | None = None


class Exchange(ABC):
    """A request and its answer. Each protocol says how it answers, and how it says an error.

    ``run`` is the envelope: access, deadline, counting, log, trace and errors. Times are on the
    event loop's clock. ``route`` is the template of the route, never a path that the client chose;
    ``status`` is that of the answer, by HTTP's numbers.
    """

    def __init__(
        self,
        service: Service,
        *,
        verb: str,
        path: str,
        query: bytes = b"",
        headers: Sequence[tuple[bytes, bytes]],
        client: str,
        arrival: Arrival,
    ) -> None:
        """``verb`` is HTTP's method or GRPC. ``client``, if known, is who is connected."""
        self.service = service
        self.verb = verb
        self.path = path
        self.query = query
        named = dict(headers)  # of several with one name, the last ...
        if b"authorization" in named:  # ... but the first key, as proxies in front of us check it
            named[b"authorization"] = next(v for name, v in headers if name == b"authorization")
        self.headers: Mapping[bytes, bytes] = named
        self.client = client
        if b"x-forwarded-for" in named:
            lines = [value for name, value in headers if name == b"x-forwarded-for"]
            self.client = service.proxies.client(client, lines)
        self.key = ""  # the name of the client's key, if that has one
        self.arrival = arrival
        self.request_id = request_id(named.get(b"x-request-id"))
        # The time by which it must be answered, and the milliseconds that the client allows, if
        # they are fewer than the service's.
        self.deadline = arrival.at + service.settings.deadline_ms / 1000
        self.asked_ms: float | None = None
        self.route = UNMATCHED
        self.status = errors.InferenceFailed.status  # until the answer says otherwise
        self.code = ""  # of the error that was answered
        self.outcome = "ok"  # as metrics count the request
        self.model_of_path: str | None = None  # the model that its path names
        # For the log: what it asks of a model, and what that takes. The tokens are those of the
        # texts that have a result, special ones included, before truncation.
        self.model = ""
        self.texts = self.tokens = 0
        self.stages: dict[str, float] = {}  # seconds
        self._held = 0  # bytes of its body

    @abstractmethod
    def _answer(self) -> Awaitable[None]:
        """Read the request and answer it."""

    @abstractmethod
    async def _fail(self, error: errors.ServiceError, cause: BaseException) -> None:
        """Answer with an error, which ``cause`` led to."""

    async def run(self) -> None:
        """Check and answer the request; count, log and trace it."""
        service = self.service
        tracer, metrics = service.tracer, service.metrics
        span = tracer.request(self.headers, self.verb, self.arrival.at) if tracer else None
        metrics.requests_in_flight.value += 1
        try:
            service.access.check(self)
            if asked := self.headers.get(b"x-request-timeout-ms"):
                self.allow(timeout_ms(asked))
            await self._answer()
        except (Exception, asyncio.CancelledError) as cause:
            error = self._error(cause)
            errors.forget_frames(cause)
            await self._fail(error, cause)
        finally:
            seconds = time.monotonic() - self.arrival.at
            metrics.requests_in_flight.value -= 1
            self.release()
            traced = span or b"traceparent" in self.headers
            trace, kept = trace_id(span, self.headers) if traced else (None, False)
            if service.logs_requests:
                self._log(seconds, trace)
            exemplar = trace if kept else None
            count_request(
                metrics, self.verb, self.route, self.status, self.outcome, seconds, exemplar
            )
            if self.key:
                metrics.key_requests.labels(self.key, self.outcome).value += 1
            if tracer and span:
                tracer.end_request(span, method=self.verb, route=self.route, status=self.status)

    def allow(self, asked_ms: float) -> None:
        """Answer within the time that the client allows, if that is less than the service's."""
        longest_ms = self.service.settings.deadline_ms if self.asked_ms is None else self.asked_ms
        if asked_ms < longest_ms:
            self.asked_ms = asked_ms
            self.deadline = min(self.deadline, self.arrival.at + asked_ms / 1000)

    def _whose(self, error: object) -> None:
        """Note in an error that only the client's own deadline has caused it, if so."""
        if self.asked_ms is None:
            return
        if isinstance(error, errors.DeadlineExceeded):
            error.of_client = True
        elif isinstance(error, errors.Overloaded) and error.rejection == "deadline":
            # By so much, the wait would exceed the client's deadline. Would it exceed ours?
            spared_s = (self.service.settings.deadline_ms - self.asked_ms) / 1000
            if (error.retry_after_s or 0.0) <= spared_s:
                error.rejection = errors.CLIENT_DEADLINE

    async def classify(
        self,
        texts: Sequence[Input | errors.ServiceError],
        *,
        model: str | None = None,
        options: TextOptions = DEFAULTS,
    ) -> Classification:
        """Classify all texts of the request, of which some may be errors already."""
        self.check_number(len(texts))
        classifier = self.service.models.classifiers.of(model, options.language)
        return await self.classify_by(classifier, texts, options)

    def classify_by(
        self,
        classifier: Classifier,
        texts: Sequence[Input | errors.ServiceError],
        options: TextOptions = DEFAULTS,
    ) -> Awaitable[Classification]:
        """Classify texts by the request's deadline, unless the client leaves, and count them."""
        work = classifier.classify(texts, options, deadline=self.deadline)
        return self.counted(classifier, texts, self.while_connected(work))

    async def counted(
        self, classifier: Classifier, texts: Sequence[object], work: Awaitable[Classification]
    ) -> Classification:
        """What ``work`` returns. Its first outcomes, those of ``texts``, are counted and logged."""
        number = len(texts)
        self.asks(classifier.model.name, number)
        try:
            done = await work
        except BaseException as error:
            self._whose(error)
            classifier.observer.failure(error, number)
            raise
        outcomes = done.outcomes[:number]
        if self.asked_ms is not None:
            for outcome in outcomes:
                self._whose(outcome)
        classifier.observer.answered(done, number)
        if classifier.shadow is not None:
            classifier.shadow.answered(classifier.model, texts, outcomes)
        self.tokens += sum(o["tokens"] for o in outcomes if not isinstance(o, errors.ServiceError))
        for stage, seconds in done.stages.items():
            self.stages[stage] = self.stages.get(stage, 0.0) + seconds
        return done

    def check_number(self, texts: int) -> None:
        if texts > (most := self.service.settings.max_texts):
            raise errors.TooManyTexts(f"there are {texts} texts; at most {most} are accepted")

    def asks(self, model: str, texts: int) -> None:
        """Note for the log what the request asks of a model; in a stream, texts add up."""
        self.model = model
        self.texts += texts

    async def while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of ``work``, which is cancelled if the client leaves."""
        # ASGI says this by a message, for which a task would have to wait.
        arrival = self.arrival
        working = cast(asyncio.Task[Any], asyncio.current_task())
        if arrival.departed:
            work.close()
            raise errors.ClientDisconnected("the client left after its request")
        arrival.on_departure = working.cancel
        try:
            return await work
        except asyncio.CancelledError:
            if arrival.departed and not working.uncancel():  # 0: the server has not cancelled
                raise errors.ClientDisconnected("the client left before its answer") from None
            raise
        finally:
            arrival.on_departure = None

    async def in_steps(self, steps: Steps[T], size: int) -> T:
        """The result of the steps: at once if their ``size`` is small, else on the step thread."""
        if size <= INLINE_BYTES:
            return finish(steps)
        return await self.service.step_thread.run(steps, deadline=self.deadline)

    def hold(self, size: int) -> None:
        """Take ``size`` of the bytes that the bodies of all requests together may hold."""
        if not self.service.inflight.take(size):
            raise self.refuse_body()
        self._held += size

    def release(self) -> None:
        if self._held:
            self.service.inflight.give(self._held)
            self._held = 0

    def refuse_body(self) -> errors.Overloaded:
        """Count this request as refused, because bodies take too many bytes; return its error."""
        inflight = self.service.inflight
        error = errors.Overloaded(
            f"request bodies in flight take {inflight.taken} of the {inflight.limit} bytes allowed",
            reason="inflight_bytes",
        )
        self.unread(error)
        return error

    def check_admission(self) -> None:
        """Raise the error with which all queues would refuse the request, whatever its body has."""
        left_s = max(0.0, self.deadline - asyncio.get_running_loop().time())
        try:
            self.service.models.check_admission(self.model_of_path, timeout_s=left_s)
        except errors.ServiceError as error:
            self.unread(error)
            raise

    def unread(self, error: errors.ServiceError) -> None:
        """Count the request as not admitted, for the model that its path names, or the default."""
        self._whose(error)
        classifiers = self.service.models.classifiers
        classifier = classifiers.get(self.model_of_path or "") or classifiers.of(None)
        classifier.observer.failure(error, texts=0)

    def _log(self, seconds: float, trace: str | None) -> None:
        used = {"model": self.model, "texts": self.texts, "tokens": self.tokens}
        spent = {"duration": seconds, **self.stages}
        fields = {
            "request_id": self.request_id,
            **({"trace_id": trace} if trace else {}),
            "client": self.client,
            **({"key": self.key} if self.key else {}),
            "method": self.verb,
            "route": self.route,
            "status": self.status,
            **({"code": self.code} if self.code else {}),
            **({} if self.asked_ms is None else {"timeout_ms": round(self.asked_ms)}),
            **(used if self.model else {}),
            **{f"{name}_ms": round(each * 1000, 2) for name, each in spent.items()},
        }
        quiet = self.verb in READING and self.path in self.service.often_asked
        log_request(fields, quiet=quiet and self.status < 400)

    def _error(self, cause: BaseException) -> errors.ServiceError:
        """The error that the client sees. What is not expected is logged."""
        if isinstance(cause, errors.ServiceError):
            error = cause
        elif isinstance(cause, asyncio.CancelledError):
            # The server cancels unfinished requests when its time to stop is over.
            error = errors.ShuttingDown("the service shut down before the answer")
        else:
            logger.error("request %s failed", self.request_id, exc_info=cause)
            error = errors.InferenceFailed(
                "unexpected error; search the service's log for the request_id"
            )
        self._whose(error)
        self.code, self.outcome = error.code, error.outcome
        return error


def request_id(own: bytes | None = None) -> str:
    """The client's own id if it is valid, otherwise a new one, which need not be secret."""
    if own and REQUEST_ID.fullmatch(own):
        return own.decode()
    return f"{random.getrandbits(128):032x}"
