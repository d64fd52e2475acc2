"""Client of the sentiment service. You can copy this file; it needs httpx.

    with Client("http://127.0.0.1:8000") as client:
        client.classify("I love this!").label               # "positive"
        client.classify(["worst service ever", ""])         # [Prediction(…), ItemError(…)]
        for result in client.classify_iter(open("texts")):  # a stream of any length
            ...

``AsyncClient`` has the same methods for ``async with``, ``await`` and ``async for``.

If the service cannot be reached or is overloaded, the client tries again: a few times, or until
the deadline if the service says when to come back. For long jobs, ``patience_s`` lets it wait
while the service restarts, and as long as a rate limit says.
Texts are sent in batches, several batches at a time. The results are in the order of the texts.

The file is long because users copy it, so it must not need other files of this project.
"""

import asyncio
import ipaddress
import json
import logging
import os
import random
import shlex
import sys
import threading
import time
import urllib.request
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from math import isfinite
from typing import Any, ClassVar, Literal, Self, TypedDict, TypeVar, Unpack, overload

try:
    import httpx
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "sentiment_client needs the package httpx (0.28 or newer): run "
        + shlex.join([sys.executable, "-m", "pip", "install", "httpx>=0.28"]),
        name="httpx",
    ) from None

__all__ = [
    "AsyncClient",
    "Client",
    "ConnectionFailed",
    "ItemError",
    "Model",
    "ModelInfo",
    "Prediction",
    "SentimentError",
    "Text",
]

Overflow = Literal["truncate", "error", "window"]
# A text, or {"text": ..., "text_pair": ...} for a model that takes pairs of texts.
Text = str | Mapping[str, str]

# The bytes of a batch in a request's body. The service accepts 2 MiB by default.
MAX_BATCH_BYTES = 1_000_000
# Without a header Retry-After, the client stops after so many attempts.
MAX_ATTEMPTS = 6
# The longest pause before the second attempt; it doubles with each of the next MAX_ATTEMPTS.
FIRST_BACKOFF_S = 0.1
# Errors of a text that say nothing of the text: later, it has a result.
PASSING = {"deadline_exceeded", "not_ready", "shutting_down"}
# A patient client logs why it waits when the wait gets as long as this, and then once in this time.
SHOWN_FROM_S, SHOWN_EVERY_S = 5.0, 60.0
# What columns have for a missing value, as ``str`` gives it: None, NaN of any type, NA and NaT.
MISSING = {"None", "nan", "NaN", "<NA>", "NaT"}
NOT_THE_SERVICE = "the answer is not from the sentiment service"

logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Prediction:
    """The result of one text. ``tokens`` is the number of tokens before truncation.

    ``polarity`` is the score of positive less that of negative; None of other label sets.
    ``labels`` are those that a multi-label model has chosen; None of other models.
    ``warnings`` say why the model may be wrong about the text.
    """

    label: str
    score: float
    scores: dict[str, float]
    logits: dict[str, float]
    tokens: int
    truncated: bool
    polarity: float | None = None
    labels: list[str] | None = None
    warnings: list[str] | None = None


@dataclass(frozen=True, slots=True)
class ItemError:
    """Why a text of a list has no prediction. ``code`` is stable, ``message`` is for people.

    What a prediction has is None, so that ``[one.label for one in outcomes]`` is a column.
    """

    code: str
    message: str
    label: ClassVar[None] = None
    score: ClassVar[None] = None
    scores: ClassVar[None] = None
    logits: ClassVar[None] = None
    tokens: ClassVar[None] = None
    truncated: ClassVar[None] = None
    polarity: ClassVar[None] = None
    labels: ClassVar[None] = None
    warnings: ClassVar[None] = None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model that the service has loaded. ``labels`` are in the order of its scores.

    ``digest`` tells it from another one of the same name: it is the SHA-256 of its bundle's
    manifest.json; None of a service that does not say it. ``multi_label``: each label has a score
    of its own, and several may apply.
    """

    name: str
    revision: str | None
    precision: str
    labels: tuple[str, ...]
    multi_label: bool = field(default=False, compare=False)  # answers with texts do not say it
    digest: str | None = None

    def __str__(self) -> str:
        labels, digest = ", ".join(self.labels), (self.digest or "unknown")[:12]
        facts = f"digest {digest}, revision {self.revision}, {self.precision}, labels {labels}"
        return f"{self.name} ({facts})"


class SentimentError(Exception):
    """A request failed: the service or a proxy answered with an error, or there was no answer.

    ``status`` is the HTTP status of the error, if there was one. ``code`` is the service's error
    code, ``connection_failed`` or ``timed_out`` if there was no answer, ``model_changed`` if it is
    from another model than the given ``ModelInfo``, and None if it is not from the service.
    ``retry_after_s`` are the seconds of the header Retry-After.
    """

    def __init__(
        self,
        detail: str,
        *,
        status: int | None = None,
        code: str | None = None,
        request_id: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.status = status
        self.code = code
        self.request_id = request_id
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        facts = [str(fact) for fact in (self.status, self.code) if fact is not None]
        request = f" (request {self.request_id})" if self.request_id else ""
        return " ".join(facts) + (": " if facts else "") + self.detail + request


class ConnectionFailed(SentimentError):
    """There was no answer: no connection, a connection that closed, or a timeout."""


Outcome = Prediction | ItemError
# Texts, and the errors in the places of values that are none.
Batch = list[Text | ItemError]
# The name of a model, or one of ``models()``: then answers of another digest, revision, precision
# or other labels are errors with the code ``model_changed``.
Model = str | ModelInfo


class _Options(TypedDict, total=False):
    """The options of a call that classifies texts."""

    model: Model | None
    overflow: Overflow
    threshold: float | None


class _BaseClient:
    """The options that both clients have."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        api_key: str | None = None,
        timeout_s: float = 30.0,
        patience_s: float = 0.0,
        batch_size: int = 100,
        concurrency: int = 4,
    ) -> None:
        """Connect on the first request.

        A text or a batch may take ``timeout_s`` seconds with all its attempts. A batch has at
        most ``batch_size`` texts. At most ``concurrency`` batches are sent at the same time.

        With ``patience_s``, each attempt may take ``timeout_s``. Once the service has answered,
        attempts go on while it is away for up to ``patience_s`` seconds, and as long as a rate
        limit says; and a text of a list whose error says nothing of the text is sent again.

        Raises:
            ValueError: the URL, the key or a number is not valid, or a variable of the environment
                names a proxy or certificates that cannot be used.
        """
        if timeout_s <= 0 or patience_s < 0 or batch_size < 1 or concurrency < 1:
            raise ValueError(
                "timeout_s, batch_size and concurrency must be positive, patience_s not negative"
            )
        address = _address(url)
        # Without the user and the password that may be in the URL: it is shown in errors.
        self.url = f"{address.scheme}://{address.netloc.decode()}{address.path}"
        way, self._through = _way_to(address)
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._has_answered = False
        self._shown_at = float("-inf")
        self._batch_size = batch_size
        self._concurrency = concurrency
        headers = {"content-type": "application/json", **_authorization(api_key)}
        self._open(way, base_url=address, headers=headers)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def _open(self, way: dict[str, Any], **options: Any) -> None:
        raise NotImplementedError

    def _attempt_s(self, started: float) -> float:
        """Seconds for the next attempt of a request that began at ``started``."""
        waited_s = 0.0 if self._patience_s else time.monotonic() - started
        return max(0.001, self._timeout_s - waited_s)

    def _pause_s(self, error: SentimentError, attempts: int, started: float) -> float | None:
        """Seconds to wait before the next attempt; None if there should be no other attempt."""
        if error.code != "connection_failed" and error.status not in (429, 502, 503):
            return None
        # A little longer than the service says, so that not all requests return at the same moment.
        longest_s = FIRST_BACKOFF_S * 2 ** min(attempts - 1, MAX_ATTEMPTS)
        pause_s = (error.retry_after_s or 0.0) + random.uniform(0, longest_s)
        waited_s = time.monotonic() - started + pause_s
        if not (self._patience_s and self._has_answered):
            again = attempts < MAX_ATTEMPTS or error.retry_after_s is not None
            return pause_s if again and waited_s < self._timeout_s else None
        if error.status != 429 and waited_s > self._patience_s:
            return None
        now = time.monotonic()
        if waited_s >= SHOWN_FROM_S and now - self._shown_at >= SHOWN_EVERY_S:
            self._shown_at = now  # several requests wait at the same time; one of them says so
            logger.warning("%s; trying again in %.0f s", error, pause_s)
        return pause_s

    def _outcomes(self, size: int, model: Model | None, document: Any) -> list[Outcome]:
        """The outcomes of a batch of ``size`` texts.

        Raises:
            SentimentError: the answer is not from the service or from another model; or, if the
                client is patient, all errors say nothing of their texts.
        """
        outcomes = _outcomes(document, size, model)
        first = outcomes[0]
        if isinstance(first, ItemError) and all(map(self._passes, outcomes)):
            raise SentimentError(first.message, status=503, code=first.code)
        return outcomes

    def _passes(self, outcome: Outcome) -> bool:
        """Whether a patient client sends the text again."""
        late = isinstance(outcome, ItemError) and outcome.code in PASSING
        return late and self._patience_s > 0


class Client(_BaseClient):
    """The synchronous client; threads can share it. Use it in a ``with``, or close it."""

    def _open(self, way: dict[str, Any], **options: Any) -> None:
        self._http = httpx.Client(transport=httpx.HTTPTransport(**way), **options)
        self._closed = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. A request that waits for its next attempt fails."""
        self._closed.set()
        self._http.close()

    @overload
    def classify(self, texts: Text, **options: Unpack[_Options]) -> Prediction: ...
    @overload
    def classify(self, texts: Iterable[Any], **options: Unpack[_Options]) -> list[Outcome]: ...
    def classify(
        self,
        texts: Text | Iterable[Any],
        *,
        model: Model | None = None,
        overflow: Overflow = "truncate",
        threshold: float | None = None,
    ) -> Prediction | list[Outcome]:
        """Classify one text or pair of texts, or several.

        One text gives its prediction. Several texts, such as a list or a column, give a list in the
        same order, with an ``ItemError`` in place of each that cannot be classified: also of None,
        NaN and what is no text. ``threshold`` is the score from which on a multi-label model
        chooses a label, in the place of its bundle's.

        Raises:
            SentimentError: the request failed, or the single text cannot be classified.
            TypeError: the texts are a table.
        """
        if _are_several(texts):
            return list(
                self.classify_iter(texts, model=model, overflow=overflow, threshold=threshold)
            )
        body = _body(_single(texts), _options(model, overflow, threshold))
        return self._request("/classify", partial(_prediction, model), body)

    def classify_iter(
        self,
        texts: Iterable[Any],
        *,
        model: Model | None = None,
        overflow: Overflow = "truncate",
        threshold: float | None = None,
    ) -> Iterator[Outcome]:
        """The result of each text, in order. Later texts are read and sent in the meantime.

        Raises:
            SentimentError: a request failed.
        """
        options = _options(model, overflow, threshold)
        waiting: deque[tuple[Batch, Future[list[Outcome]]]] = deque()
        for batch in _batches(texts, self._batch_size):
            send = partial(self._classify_batch, _to_send(batch), model, options)
            waiting.append((batch, _in_thread(send)))
            if len(waiting) == self._concurrency:
                batch, outcomes = waiting.popleft()
                yield from _in_places(batch, outcomes.result())
        for batch, outcomes in waiting:
            yield from _in_places(batch, outcomes.result())

    def models(self) -> list[ModelInfo]:
        """The models that the service has loaded; the first is the default.

        Raises:
            SentimentError: the request failed.
        """
        return self._request("/models", _models)

    def _classify_batch(
        self, batch: list[Text], model: Model | None, options: dict[str, Any]
    ) -> list[Outcome]:
        if not batch:
            return []
        body, read = _body(batch, options), partial(self._outcomes, len(batch), model)
        try:
            outcomes = self._request("/classify", read, body)
        except SentimentError as error:
            if not _too_large(error):
                raise
            if len(batch) == 1:
                return [ItemError(error.code or "payload_too_large", error.detail)]
            first, second = _halves(batch)
            return [
                *self._classify_batch(first, model, options),
                *self._classify_batch(second, model, options),
            ]
        late = [text for text, one in zip(batch, outcomes, strict=True) if self._passes(one)]
        if not late:
            return outcomes
        again = iter(self._classify_batch(late, model, options))
        return [next(again) if self._passes(one) else one for one in outcomes]

    def _request(self, path: str, read: Callable[[Any], T], body: bytes | None = None) -> T:
        """What ``read`` makes of the answer. Attempts are repeated while ``_pause_s`` allows it.

        Raises:
            SentimentError: there was no answer, or it is an error.
        """
        started = time.monotonic()
        attempts = 0
        while True:
            attempts += 1
            limits = _time_limit(self._attempt_s(started))
            try:
                response = self._http.request(_method(body), path, content=body, **limits)
                answer = read(_document(response))
                self._has_answered = True
                return answer
            except httpx.RequestError as error:
                failure: SentimentError = _connection_failed(error, self.url + self._through)
            except SentimentError as error:
                failure = error
            pause_s = self._pause_s(failure, attempts, started)
            if pause_s is None or self._closed.wait(pause_s):
                raise failure


class AsyncClient(_BaseClient):
    """The asyncio client; tasks can share it. Use it in an ``async with``, or close it."""

    def _open(self, way: dict[str, Any], **options: Any) -> None:
        self._http = httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(**way), **options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    @overload
    async def classify(self, texts: Text, **options: Unpack[_Options]) -> Prediction: ...
    @overload
    async def classify(
        self, texts: Iterable[Any], **options: Unpack[_Options]
    ) -> list[Outcome]: ...
    async def classify(
        self,
        texts: Text | Iterable[Any],
        *,
        model: Model | None = None,
        overflow: Overflow = "truncate",
        threshold: float | None = None,
    ) -> Prediction | list[Outcome]:
        """Like ``Client.classify``."""
        if _are_several(texts):
            results = self.classify_iter(texts, model=model, overflow=overflow, threshold=threshold)
            return [outcome async for outcome in results]
        body = _body(_single(texts), _options(model, overflow, threshold))
        return await self._request("/classify", partial(_prediction, model), body)

    async def classify_iter(
        self,
        texts: Iterable[Any],
        *,
        model: Model | None = None,
        overflow: Overflow = "truncate",
        threshold: float | None = None,
    ) -> AsyncGenerator[Outcome, None]:
        """Like ``Client.classify_iter``."""
        options = _options(model, overflow, threshold)
        waiting: deque[tuple[Batch, asyncio.Task[list[Outcome]]]] = deque()
        try:
            for batch in _batches(texts, self._batch_size):
                sending = self._classify_batch(_to_send(batch), model, options)
                waiting.append((batch, asyncio.create_task(sending)))
                if len(waiting) == self._concurrency:
                    batch, task = waiting.popleft()
                    for outcome in _in_places(batch, await task):
                        yield outcome
            while waiting:
                batch, task = waiting.popleft()
                for outcome in _in_places(batch, await task):
                    yield outcome
        finally:
            tasks = [task for _, task in waiting]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def models(self) -> list[ModelInfo]:
        """Like ``Client.models``."""
        return await self._request("/models", _models)

    async def _classify_batch(
        self, batch: list[Text], model: Model | None, options: dict[str, Any]
    ) -> list[Outcome]:
        if not batch:
            return []
        body, read = _body(batch, options), partial(self._outcomes, len(batch), model)
        try:
            outcomes = await self._request("/classify", read, body)
        except SentimentError as error:
            if not _too_large(error):
                raise
            if len(batch) == 1:
                return [ItemError(error.code or "payload_too_large", error.detail)]
            first, second = _halves(batch)
            return [
                *await self._classify_batch(first, model, options),
                *await self._classify_batch(second, model, options),
            ]
        late = [text for text, one in zip(batch, outcomes, strict=True) if self._passes(one)]
        if not late:
            return outcomes
        again = iter(await self._classify_batch(late, model, options))
        return [next(again) if self._passes(one) else one for one in outcomes]

    async def _request(self, path: str, read: Callable[[Any], T], body: bytes | None = None) -> T:
        """Like ``Client._request``."""
        started = time.monotonic()
        attempts = 0
        while True:
            attempts += 1
            limit_s = self._attempt_s(started)
            try:
                async with asyncio.timeout(limit_s):
                    limits = _time_limit(limit_s)
                    response = await self._http.request(_method(body), path, content=body, **limits)
                answer = read(_document(response))
                self._has_answered = True
                return answer
            except (httpx.RequestError, TimeoutError) as error:
                failure: SentimentError = _connection_failed(error, self.url + self._through)
            except SentimentError as error:
                failure = error
            pause_s = self._pause_s(failure, attempts, started)
            if pause_s is None:
                raise failure
            await asyncio.sleep(pause_s)


def _address(url: str) -> httpx.URL:
    try:
        address = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"the URL is not valid: {error}") from None
    if address.scheme not in ("http", "https") or not address.host:
        raise ValueError("the URL must begin with http:// or https:// and contain a host")
    return address


def _way_to(address: httpx.URL) -> tuple[dict[str, Any], str]:
    """The options of a transport, and what is said of the proxy in errors.

    httpx reads all variables of proxies and certificates, and one that it cannot read ends it, also
    where it is for other addresses. So they are read here, for this address alone.

    Raises:
        ValueError: a variable for this address cannot be used.
    """
    if address.scheme == "http":
        certificates: Any = False  # nothing is encrypted
    else:
        certificates = _certificates()
    variable, proxy = _proxy(address)
    if not proxy:
        return {"verify": certificates}, ""
    way = {"verify": certificates, "proxy": proxy if "://" in proxy else f"http://{proxy}"}
    try:
        httpx.HTTPTransport(**way).close()
    except (ValueError, httpx.InvalidURL, ImportError):
        raise ValueError(
            f"the proxy in {variable} cannot be used: accepted are http:// and https://, and "
            "socks5:// with the package httpx[socks]; NO_PROXY names hosts that need none"
        ) from None
    return way, f" through the proxy in {variable}"


def _certificates() -> Any:
    """The certificates that are trusted, as httpx chooses them."""
    file, directory = (os.environ.get(name, "") for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"))
    try:
        if directory and not file:
            os.listdir(directory)  # noqa: PTH208 - OpenSSL ignores one that it cannot read
        return httpx.create_ssl_context()
    except OSError as error:
        variable = "SSL_CERT_FILE" if file else "SSL_CERT_DIR"
        reason = error.strerror or error
        raise ValueError(f"the certificates in {variable} cannot be used: {reason}") from None


def _proxy(address: httpx.URL) -> tuple[str, str]:
    """The variable that names a proxy for this address, and the proxy; two empty strings if none.

    This machine needs none, whatever the variables say.
    """
    host = address.host
    try:
        own: Any = ipaddress.ip_address(host)
    except ValueError:
        own = None
    local = host == "localhost" or host.endswith(".localhost")
    if local or (own and (own.is_loopback or own.is_unspecified)):
        return "", ""
    proxies = urllib.request.getproxies()
    if urllib.request.proxy_bypass(address.netloc.decode()) or (
        own and _in_networks(own, proxies.get("no", ""))
    ):
        return "", ""
    kind = address.scheme if proxies.get(address.scheme) else "all"
    found = (name for name in os.environ if name.lower() == f"{kind}_proxy")
    return next(found, "the settings of the system"), proxies.get(kind, "")


def _in_networks(address: Any, no_proxy: str) -> bool:
    """Whether one of the networks in NO_PROXY, such as 10.0.0.0/8, has the address."""
    for name in no_proxy.replace("[", "").replace("]", "").split(","):
        with suppress(ValueError):
            if address in ipaddress.ip_network(name.strip(), strict=False):
                return True
    return False


def _authorization(api_key: str | None) -> dict[str, str]:
    if api_key is None:
        return {}
    # Checked here, because HTTP libraries show the value of a header that they refuse.
    if not api_key or not all("!" <= character <= "~" for character in api_key):
        raise ValueError("api_key must be printable ASCII characters without spaces")
    return {"authorization": f"Bearer {api_key}"}


def _are_several(texts: Any) -> bool:
    """Whether it is not a single text, nor what stands for one."""
    if hasattr(texts, "columns"):
        raise TypeError("this is a table; give one column of it, such as table['text']")
    return isinstance(texts, Iterable) and not isinstance(texts, str | bytes | Mapping)


def _checked(value: Any) -> Text | ItemError:
    """The value as a text or pair that JSON can hold, or why it is none."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping) and all(isinstance(part, str | None) for part in value.values()):
        return dict(value)
    if str(value) in MISSING:
        return ItemError("empty_text", "there is no text")
    accepted = 'a string or {"text": ..., "text_pair": ...}'
    return ItemError("invalid_request", f"a text must be {accepted}, not {type(value).__name__}")


def _single(value: Any) -> Text:
    text = _checked(value)
    if isinstance(text, ItemError):
        raise SentimentError(text.message, code=text.code)
    return text


def _to_send(batch: Batch) -> list[Text]:
    return [one for one in batch if not isinstance(one, ItemError)]


def _in_places(batch: Batch, outcomes: Iterable[Outcome]) -> list[Outcome]:
    """The outcomes of what was sent, and the errors of the rest, in the order of the batch."""
    left = iter(outcomes)
    return [one if isinstance(one, ItemError) else next(left) for one in batch]


def _batches(texts: Iterable[Any], size: int) -> Iterator[Batch]:
    """Batches of at most ``size`` texts and ``MAX_BATCH_BYTES``. A longer text is a batch alone."""
    batch: Batch = []
    used = 0
    values = texts.to_pylist() if hasattr(texts, "to_pylist") else texts  # of pyarrow
    for text in map(_checked, values):
        needed = 0 if isinstance(text, ItemError) else len(json.dumps(text)) + 2
        if batch and (len(batch) == size or used + needed > MAX_BATCH_BYTES):
            yield batch
            batch, used = [], 0
        batch.append(text)
        used += needed
    if batch:
        yield batch


def _halves(batch: list[Text]) -> tuple[list[Text], list[Text]]:
    middle = len(batch) // 2
    return batch[:middle], batch[middle:]


def _options(model: Model | None, overflow: Overflow, threshold: float | None) -> dict[str, Any]:
    """The options of a request, as members of its body."""
    name = model if model is None or isinstance(model, str) else model.name
    options = {"model": name, "overflow": overflow, "threshold": threshold}
    return {option: value for option, value in options.items() if value is not None}


def _body(inputs: Text | list[Text], options: dict[str, Any]) -> bytes:
    """JSON in ASCII. A lone surrogate can be sent, too; the service then refuses only its text."""
    return json.dumps({"inputs": inputs, **options}).encode()


def _method(body: bytes | None) -> str:
    return "GET" if body is None else "POST"


def _time_limit(remaining_s: float) -> dict[str, Any]:
    """The arguments of an attempt that has ``remaining_s`` seconds."""
    milliseconds = str(max(1, int(remaining_s * 1000)))
    return {"headers": {"x-request-timeout-ms": milliseconds}, "timeout": remaining_s}


def _document(response: httpx.Response) -> Any:
    """The JSON of an answer.

    Raises:
        SentimentError: the answer is an error, or it is not from the service.
    """
    try:
        document = response.json()
    except ValueError:
        document = None
    if response.status_code == 200 and document is not None:
        return document
    problem = document if isinstance(document, dict) else {}
    kind = response.headers.get("content-type", "none")
    raise SentimentError(
        str(problem.get("detail") or f"{NOT_THE_SERVICE} (content-type: {kind})"),
        status=response.status_code,
        code=problem.get("code"),
        request_id=problem.get("request_id") or response.headers.get("x-request-id"),
        retry_after_s=_retry_after_s(response.headers.get("retry-after", "")),
    )


def _connection_failed(error: Exception, url: str) -> ConnectionFailed:
    if isinstance(error, httpx.TimeoutException | TimeoutError):
        return ConnectionFailed(f"{url} did not answer in time", code="timed_out")
    reason = str(error) or type(error).__name__
    return ConnectionFailed(f"cannot reach {url}: {reason}", code="connection_failed")


def _retry_after_s(value: str) -> float | None:
    """The header's value as seconds from now. The value is a number of seconds or a date."""
    try:
        return max(0.0, float(value)) if isfinite(float(value)) else None
    except ValueError:
        pass
    try:
        date = parsedate_to_datetime(value)
    except ValueError:
        return None
    moment = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


def _too_large(error: SentimentError) -> bool:
    """Whether the service may accept the same texts in smaller batches."""
    return error.status == 413 or error.code == "too_many_texts"


def _prediction(model: Model | None, document: Any) -> Prediction:
    (outcome,) = _outcomes(document, 1, model)
    if isinstance(outcome, ItemError):
        raise SentimentError(outcome.message, code=outcome.code)
    return outcome


def _outcomes(document: Any, expected: int, model: Model | None) -> list[Outcome]:
    served: Model | None = model
    try:
        outcomes = [_outcome(item) for item in document["results"]]
        if isinstance(model, ModelInfo):
            served = _model({**document["model"], "labels": document["labels"]})
    except (KeyError, TypeError):
        outcomes = []
    if len(outcomes) != expected:
        raise SentimentError(f"{NOT_THE_SERVICE}: it does not have one result for each text")
    if served != model:
        raise SentimentError(f"the service now serves {served}, not {model}", code="model_changed")
    return outcomes


def _outcome(item: Any) -> Outcome:
    if "error" in item:
        return ItemError(item["error"]["code"], item["error"]["message"])
    return Prediction(
        item["label"],
        item["score"],
        item["scores"],
        item["logits"],
        item["tokens"],
        item["truncated"],
        item.get("polarity"),
        item.get("labels"),
        item.get("warnings"),
    )


def _model(item: Any) -> ModelInfo:
    return ModelInfo(
        item["name"],
        item["revision"],
        item["precision"],
        tuple(item["labels"]),
        item.get("multi_label", False),
        item.get("digest"),
    )


def _models(document: Any) -> list[ModelInfo]:
    try:
        return [_model(item) for item in document["models"]]
    except (KeyError, TypeError):
        raise SentimentError(f"{NOT_THE_SERVICE}: it has no list of models") from None


def _in_thread(call: Callable[[], list[Outcome]]) -> Future[list[Outcome]]:
    """Run the call in a daemon thread, so that a process can exit without waiting for it."""
    future: Future[list[Outcome]] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    try:
        threading.Thread(target=run, daemon=True).start()
    except RuntimeError:  # the main thread has ended, and Python starts no more of them
        run()
    return future
