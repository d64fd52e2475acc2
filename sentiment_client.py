"""Client of the sentiment service. It needs httpx and nothing else: the file may be copied.

    with Client("http://127.0.0.1:8000") as client:
        client.classify("I love this!").label               # "positive"
        client.classify(["worst service ever", ""])         # [Prediction(…), ItemError(…)]
        for result in client.classify_iter(open("texts")):  # any length, in bounded memory
            ...

``AsyncClient`` is the same with ``async with``, ``await`` and ``async for``. A try that met no
service, or an overloaded one, is repeated until the deadline; texts go out in batches, several
at a time, and come back in their order.
"""

import asyncio
import json
import random
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import count
from math import isfinite
from typing import Any, Literal, Self, overload

import httpx

__all__ = [
    "AsyncClient",
    "Client",
    "ConnectionFailed",
    "ItemError",
    "ModelInfo",
    "Prediction",
    "SentimentError",
]

Overflow = Literal["truncate", "error", "window"]

# Of a request's body; the service accepts 2 MiB unless it is set otherwise.
MAX_BATCH_BYTES = 1_000_000
# Tries that nobody asked for: where there was no answer, or one without Retry-After.
MAX_BLIND_TRIES = 6
FIRST_BACKOFF_S = 0.1


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the model says of one text; ``tokens`` counts them before truncation."""

    label: str
    score: float
    scores: dict[str, float]
    logits: dict[str, float]
    tokens: int
    truncated: bool


@dataclass(frozen=True, slots=True)
class ItemError:
    """Why one text of a list has no prediction; ``code`` is stable, ``message`` for people."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A served model; ``labels`` are in the order of its scores."""

    name: str
    revision: str | None
    precision: str
    labels: tuple[str, ...]


class SentimentError(Exception):
    """The service, or something before it, refused a request.

    ``status`` is HTTP's; ``code`` the service's own, None where the answer is not from it.
    ``retry_after_s`` is what was asked for, in seconds.
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
    """There was no answer: nothing listens, the connection was closed, or the time is over."""


Outcome = Prediction | ItemError


class _Service:
    """What both clients know: where the service is, and how they use it."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        api_key: str | None = None,
        timeout_s: float = 30.0,
        batch_size: int = 100,
        concurrency: int = 4,
    ) -> None:
        """``timeout_s`` is for a text or a batch of ``batch_size`` texts, with all its tries;
        ``concurrency`` batches are under way at a time.

        Raises:
            ValueError: the URL, the key or a number cannot be used.
        """
        if timeout_s <= 0 or batch_size < 1 or concurrency < 1:
            raise ValueError("timeout_s, batch_size and concurrency must be positive")
        address = _address(url)
        # Without what may stand before the host: a user and a password.
        self.url = f"{address.scheme}://{address.netloc.decode()}{address.path}"
        self._timeout_s = timeout_s
        self._batch_size = batch_size
        self._concurrency = concurrency
        self._open(address, {"content-type": "application/json", **_authorization(api_key)})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def _open(self, address: httpx.URL, headers: dict[str, str]) -> None:
        raise NotImplementedError


class Client(_Service):
    """For threads: many may use it at once. Close it, or use it in a ``with``."""

    def _open(self, address: httpx.URL, headers: dict[str, str]) -> None:
        self._http = httpx.Client(base_url=address, headers=headers)
        self._closed = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; what waits for another try gives up."""
        self._closed.set()
        self._http.close()

    @overload
    def classify(  # type: ignore[overload-overlap]
        self, texts: str, *, model: str | None = None, overflow: Overflow = "truncate"
    ) -> Prediction: ...
    @overload
    def classify(
        self, texts: Iterable[str], *, model: str | None = None, overflow: Overflow = "truncate"
    ) -> list[Outcome]: ...
    def classify(
        self,
        texts: str | Iterable[str],
        *,
        model: str | None = None,
        overflow: Overflow = "truncate",
    ) -> Prediction | list[Outcome]:
        """The prediction of one text; of many a list, where a bad one fails in its place.

        Raises:
            SentimentError: the request failed, or the one text.
        """
        if not isinstance(texts, str):
            return list(self.classify_iter(texts, model=model, overflow=overflow))
        return _alone(self._request("POST", "/classify", _body(texts, model, overflow)))

    def classify_iter(
        self, texts: Iterable[str], *, model: str | None = None, overflow: Overflow = "truncate"
    ) -> Iterator[Outcome]:
        """What became of each text, in order, while later ones are still read and under way.

        Raises:
            SentimentError: a request failed.
        """
        waiting: deque[Future[list[Outcome]]] = deque()
        for batch in _batches(texts, self._batch_size):
            waiting.append(_start(partial(self._classify_batch, batch, model, overflow)))
            if len(waiting) == self._concurrency:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()

    def models(self) -> list[ModelInfo]:
        """The served models, the default first.

        Raises:
            SentimentError: the request failed.
        """
        return _models(self._request("GET", "/models"))

    def _classify_batch(
        self, batch: list[str], model: str | None, overflow: Overflow
    ) -> list[Outcome]:
        try:
            document = self._request("POST", "/classify", _body(batch, model, overflow))
            return _outcomes(document, len(batch))
        except SentimentError as error:
            if not _too_large(error):
                raise
            if len(batch) == 1:
                return [ItemError(error.code or "payload_too_large", error.detail)]
        halves = _halves(batch)
        return [one for half in halves for one in self._classify_batch(half, model, overflow)]

    def _request(self, method: str, path: str, body: bytes | None = None) -> Any:
        """The answer's JSON, after as many tries as the time allows."""
        deadline = time.monotonic() + self._timeout_s
        for tries in count(1):
            remaining_s = max(0.001, deadline - time.monotonic())
            try:
                answer = self._http.request(method, path, content=body, **_limits(remaining_s))
                return _document(answer)
            except httpx.RequestError as error:
                failure: SentimentError = _no_answer(error, self.url)
            except SentimentError as error:
                failure = error
            pause_s = _pause_s(failure, tries, deadline - time.monotonic())
            if pause_s is None or self._closed.wait(pause_s):
                raise failure
        raise AssertionError("unreachable")


class AsyncClient(_Service):
    """For asyncio: many tasks may use it at once. Close it, or use it in an ``async with``."""

    def _open(self, address: httpx.URL, headers: dict[str, str]) -> None:
        self._http = httpx.AsyncClient(base_url=address, headers=headers)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    @overload
    async def classify(  # type: ignore[overload-overlap]
        self, texts: str, *, model: str | None = None, overflow: Overflow = "truncate"
    ) -> Prediction: ...
    @overload
    async def classify(
        self, texts: Iterable[str], *, model: str | None = None, overflow: Overflow = "truncate"
    ) -> list[Outcome]: ...
    async def classify(
        self,
        texts: str | Iterable[str],
        *,
        model: str | None = None,
        overflow: Overflow = "truncate",
    ) -> Prediction | list[Outcome]:
        """The prediction of one text; of many a list, where a bad one fails in its place.

        Raises:
            SentimentError: the request failed, or the one text.
        """
        if not isinstance(texts, str):
            results = self.classify_iter(texts, model=model, overflow=overflow)
            return [outcome async for outcome in results]
        return _alone(await self._request("POST", "/classify", _body(texts, model, overflow)))

    async def classify_iter(
        self, texts: Iterable[str], *, model: str | None = None, overflow: Overflow = "truncate"
    ) -> AsyncGenerator[Outcome, None]:
        """What became of each text, in order, while later ones are still read and under way.

        Raises:
            SentimentError: a request failed.
        """
        waiting: deque[asyncio.Task[list[Outcome]]] = deque()
        try:
            for batch in _batches(texts, self._batch_size):
                waiting.append(asyncio.create_task(self._classify_batch(batch, model, overflow)))
                if len(waiting) == self._concurrency:
                    for outcome in await waiting.popleft():
                        yield outcome
            while waiting:
                for outcome in await waiting.popleft():
                    yield outcome
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def models(self) -> list[ModelInfo]:
        """The served models, the default first.

        Raises:
            SentimentError: the request failed.
        """
        return _models(await self._request("GET", "/models"))

    async def _classify_batch(
        self, batch: list[str], model: str | None, overflow: Overflow
    ) -> list[Outcome]:
        try:
            document = await self._request("POST", "/classify", _body(batch, model, overflow))
            return _outcomes(document, len(batch))
        except SentimentError as error:
            if not _too_large(error):
                raise
            if len(batch) == 1:
                return [ItemError(error.code or "payload_too_large", error.detail)]
        halves = _halves(batch)
        return [one for half in halves for one in await self._classify_batch(half, model, overflow)]

    async def _request(self, method: str, path: str, body: bytes | None = None) -> Any:
        """The answer's JSON, after as many tries as the time allows."""
        deadline = time.monotonic() + self._timeout_s
        for tries in count(1):
            remaining_s = max(0.001, deadline - time.monotonic())
            try:
                async with asyncio.timeout(remaining_s):
                    answer = await self._http.request(
                        method, path, content=body, **_limits(remaining_s)
                    )
                return _document(answer)
            except (httpx.RequestError, TimeoutError) as error:
                failure: SentimentError = _no_answer(error, self.url)
            except SentimentError as error:
                failure = error
            pause_s = _pause_s(failure, tries, deadline - time.monotonic())
            if pause_s is None:
                raise failure
            await asyncio.sleep(pause_s)
        raise AssertionError("unreachable")


def _address(url: str) -> httpx.URL:
    try:
        address = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"the URL cannot be read: {error}") from None
    if address.scheme not in ("http", "https") or not address.host:
        raise ValueError("the URL must begin with http:// or https:// and name a host")
    return address


def _authorization(api_key: str | None) -> dict[str, str]:
    if api_key is None:
        return {}
    # Checked here: HTTP libraries show a header that they refuse.
    if not api_key or not all("!" <= character <= "~" for character in api_key):
        raise ValueError("api_key must be printable ASCII characters without spaces")
    return {"authorization": f"Bearer {api_key}"}


def _batches(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    """Lists of at most ``size`` texts, and of at most ``MAX_BATCH_BYTES`` but for a longer text."""
    batch: list[str] = []
    used = 0
    for text in texts:
        needed = len(json.dumps(text)) + 2
        if batch and (len(batch) == size or used + needed > MAX_BATCH_BYTES):
            yield batch
            batch, used = [], 0
        batch.append(text)
        used += needed
    if batch:
        yield batch


def _halves(batch: list[str]) -> tuple[list[str], list[str]]:
    middle = len(batch) // 2
    return batch[:middle], batch[middle:]


def _body(inputs: str | list[str], model: str | None, overflow: Overflow) -> bytes:
    """ASCII: even half of a surrogate pair arrives, and fails its text alone."""
    chosen = {"model": model} if model is not None else {}
    return json.dumps({"inputs": inputs, "overflow": overflow, **chosen}).encode()


def _limits(remaining_s: float) -> dict[str, Any]:
    """What a try is sent with that has so many seconds."""
    milliseconds = str(max(1, int(remaining_s * 1000)))
    return {"headers": {"x-request-timeout-ms": milliseconds}, "timeout": remaining_s}


def _document(response: httpx.Response) -> Any:
    """The JSON of an answer.

    Raises:
        SentimentError: it is an error, or not the service's.
    """
    try:
        document = response.json()
    except ValueError:
        document = None
    if response.status_code == 200 and document is not None:
        return document
    problem = document if isinstance(document, dict) else {}
    kind = response.headers.get("content-type", "no content-type")
    raise SentimentError(
        str(problem.get("detail") or f"an answer that is not the sentiment service's ({kind})"),
        status=response.status_code,
        code=problem.get("code"),
        request_id=problem.get("request_id") or response.headers.get("x-request-id"),
        retry_after_s=_retry_after_s(response.headers.get("retry-after", "")),
    )


def _no_answer(error: Exception, url: str) -> ConnectionFailed:
    if isinstance(error, httpx.TimeoutException | TimeoutError):
        return ConnectionFailed(f"{url} did not answer in time", code="timed_out")
    reason = str(error) or type(error).__name__
    return ConnectionFailed(f"cannot reach {url}: {reason}", code="connection_failed")


def _retry_after_s(value: str) -> float | None:
    """Seconds from now; the header has them, or a date."""
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


def _pause_s(error: SentimentError, tries: int, remaining_s: float) -> float | None:
    """How long to wait for the next try; None if there should be none."""
    if error.code != "connection_failed" and error.status not in (429, 503):
        return None
    if error.retry_after_s is not None:
        # A little later, so that not all who were turned away come back together.
        pause_s = error.retry_after_s + random.uniform(0, FIRST_BACKOFF_S)
    elif tries < MAX_BLIND_TRIES:
        pause_s = random.uniform(0, FIRST_BACKOFF_S * 2 ** (tries - 1))
    else:
        return None
    return pause_s if pause_s < remaining_s else None


def _too_large(error: SentimentError) -> bool:
    """Whether fewer texts at a time might be accepted."""
    return error.status == 413 or error.code == "too_many_texts"


def _alone(document: Any) -> Prediction:
    (outcome,) = _outcomes(document, 1)
    if isinstance(outcome, ItemError):
        raise SentimentError(outcome.message, code=outcome.code)
    return outcome


def _outcomes(document: Any, expected: int) -> list[Outcome]:
    try:
        outcomes = [_outcome(item) for item in document["results"]]
    except (KeyError, TypeError):
        outcomes = []
    if len(outcomes) != expected:
        raise SentimentError("the answer does not fit the request: is this the sentiment service?")
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
    )


def _models(document: Any) -> list[ModelInfo]:
    try:
        return [
            ModelInfo(one["name"], one["revision"], one["precision"], tuple(one["labels"]))
            for one in document["models"]
        ]
    except (KeyError, TypeError):
        raise SentimentError("the answer lists no models: is this the sentiment service?") from None


def _start(call: Callable[[], list[Outcome]]) -> Future[list[Outcome]]:
    """The call in a daemon thread: a process that ends does not wait for a service that is slow."""
    future: Future[list[Outcome]] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
