"""Client of the sentiment service. You can copy this file; it needs Python 3.11 and httpx.

    with Client("http://127.0.0.1:8000") as client:
        client.classify("I love this!").label               # "positive"
        client.classify(["worst service ever", ""]).labels  # ["negative", None]
        client.add_columns(frame, "text")                   # a table with the results beside it
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
import importlib
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
import warnings
from collections import Counter, deque
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from html import escape
from itertools import islice
from operator import is_
from statistics import fmean
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Self,
    SupportsIndex,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

if TYPE_CHECKING:
    import httpx

__all__ = [
    "AsyncClient",
    "Client",
    "ConnectionFailed",
    "ItemError",
    "Model",
    "ModelInfo",
    "Prediction",
    "Results",
    "Sentence",
    "SentenceError",
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
# The requests that an AsyncClient gives to httpx at the same time. At each event, httpx compares
# all that wait with all connections, in the thread of the event loop.
MAX_REQUESTS = 100
# The longest pause before the second attempt; it doubles with each of the next MAX_ATTEMPTS.
FIRST_BACKOFF_S = 0.1
# The most seconds that Python can wait.
LONGEST_S = threading.TIMEOUT_MAX
# Errors of a text that say nothing of the text: later, it has a result.
PASSING = {"deadline_exceeded", "not_ready", "shutting_down"}
# A patient client logs why it waits when the wait gets as long as this, and then once in this time.
SHOWN_FROM_S, SHOWN_EVERY_S = 5.0, 60.0
# What columns have for a missing value, as ``str`` gives it: None, NaN of any type, NA and NaT.
MISSING = {"None", "nan", "NaN", "<NA>", "NaT"}
# A larger share of values that are neither text nor missing is probably a mistake.
STRANGE_SHARE = 0.1
SHOWN = 5  # rows, and errors behind them, that a notebook shows
FEW = 10  # labels; of more, it shows those that some text has
NO_TEXT = 'a text must be a string or {"text": ..., "text_pair": ...}'
NOT_THE_SERVICE = "the answer is not from the sentiment service"

logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Prediction:
    """The result of one text. ``tokens`` is the number of tokens before truncation.

    ``polarity`` is the score of positive less that of negative; None of other label sets.
    ``labels`` are those that a multi-label model has chosen; None of other models.
    ``warnings`` say why the model may be wrong about the text. ``windows`` is the number of parts
    that were classified, with the overflow "window". ``sentences`` are those of ``Classifier`` with
    ``split="sentences"``. ``code`` and ``message``, which errors have, are None.
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
    windows: int | None = None
    sentences: "list[Sentence | SentenceError] | None" = None
    code = message = None


@dataclass(frozen=True, slots=True)
class ItemError:
    """Why a text of a list has no prediction. ``code`` is stable, ``message`` is for people.

    What a prediction has is None, so that ``[one.label for one in outcomes]`` is a column.
    """

    code: str
    message: str
    label = score = scores = logits = tokens = truncated = None
    polarity = labels = warnings = windows = sentences = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence(Prediction):
    """The result of a sentence: the text's characters from ``start`` to before ``end``."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceError(ItemError):
    """Why a sentence has no prediction."""

    start: int
    end: int


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
    from another model than the given ``ModelInfo``, or the service kept changing its model during
    the call, and None if it is not from the service.
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


class Results(list[Outcome]):
    """The result of each text, in order: a prediction, or the error in its place.

    Its columns have None where there is none. A part, such as ``results[:5]``, is ``Results``, too.
    All are of one ``model``, which is None if nothing was answered.
    """

    def __init__(
        self, outcomes: Iterable[Outcome] = (), index: Any = None, model: ModelInfo | None = None
    ) -> None:
        super().__init__(outcomes)
        self._index = index
        self._indexed = () if index is None else tuple(self)  # what the index is of
        self.model = model

    @property
    def labels(self) -> list[str | None]:
        return [one.label for one in self]

    @property
    def scores(self) -> list[float | None]:
        return [one.score for one in self]

    @property
    def polarity(self) -> list[float | None]:
        return [one.polarity for one in self]

    @property
    def errors(self) -> list[str | None]:
        return [
            f"{one.code}: {one.message}" if isinstance(one, ItemError) else None for one in self
        ]

    @overload
    def __getitem__(self, key: SupportsIndex) -> Outcome: ...
    @overload
    def __getitem__(self, key: slice) -> "Results": ...
    def __getitem__(self, key: SupportsIndex | slice) -> "Outcome | Results":
        if not isinstance(key, slice):
            return super().__getitem__(key)
        index = self._valid_index()
        part = super().__getitem__(key)
        return Results(part, None if index is None else index[key], self.model)

    def _valid_index(self) -> Any:
        """The index, unless what the list holds, or its order, was changed."""
        same = len(self) == len(self._indexed) and all(map(is_, self, self._indexed))
        return self._index if same else None

    def to_frame(self) -> Any:
        """The columns as a frame of pandas, with the index of the column that the texts were.

        If the list was changed since, as by ``sort()``, the index no longer fits and is left out.
        To add them to a table, use ``add_columns``: a join by an index that repeats would multiply
        the rows.
        """
        pd = _imported("pandas", "to_frame()", "2.2")
        return pd.DataFrame(_typed(pd, _columns(self)), self._valid_index())

    def to_arrow(self) -> Any:
        """The columns as a table of pyarrow."""
        pa = _imported("pyarrow", "to_arrow()", "18")
        return pa.table(_typed(pa, _columns(self)))

    def summary(self) -> dict[str, Any]:
        """How many texts there are, with each label and each error; the mean of ``polarity``."""
        labels = Counter(self.labels)
        polarity = [value for value in self.polarity if value is not None]
        return {
            "texts": len(self),
            "labels": {label: labels[label] for label in _label_set(self)},
            "errors": dict(Counter(one.code for one in self if isinstance(one, ItemError))),
            "truncated": sum(one.truncated or False for one in self),
            "polarity": fmean(polarity) if polarity else None,
        }

    def plot(self, ax: Any = None) -> Any:
        """Draw how many texts have each label, with matplotlib; its axes."""
        ax = ax or _imported("matplotlib.pyplot", "plot()", "3.10").subplots()[1]
        counts = self.summary()["labels"]
        ax.bar([*counts], [*counts.values()])
        ax.set(title=self._title(), ylabel="texts")
        return ax

    def __repr__(self) -> str:
        rows = (f"\n{place:>7,}  {label:8}  {score}" for place, label, score in self._shown())
        return f"{self._title()}{''.join(rows)}"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        cells = (
            f"<td>{'</td><td>'.join(map(escape, map(str, row)))}</td>" for row in self._shown()
        )
        return f"<p>{escape(self._title())}</p><table><tr>{'</tr><tr>'.join(cells)}</tr></table>"

    def _title(self) -> str:
        counts = self.summary()
        few = len(counts["labels"]) <= FEW
        named = [f"{name} {n:,}" for name, n in counts["labels"].items() if few or n]
        named.append(f"errors {sum(counts['errors'].values()):,}")
        return f"{len(self):,} texts: {', '.join(named)}"

    def _shown(self) -> Iterator[tuple[int, str, str]]:
        """The first rows, and the first errors behind them."""
        errors = (place for place, one in enumerate(self) if one.label is None)
        for place in sorted({*range(min(SHOWN, len(self))), *islice(errors, SHOWN)}):
            one = self[place]
            if isinstance(one, ItemError):
                yield place, "error", f"{one.code}: {one.message}"
            else:
                yield place, one.label, f"{one.score:.4f}"


# Texts, and the errors in the places of values that are none.
Batch = list[Text | ItemError]
# The name of a model, or one of ``models()``: then answers of another digest, revision, precision
# or other labels are errors with the code ``model_changed``.
Model = str | ModelInfo


class _OneModel:
    """What the answers to one call must be of: the given ``ModelInfo``, else that of the first."""

    def __init__(self, asked: Model | None) -> None:
        self._lock = threading.Lock()
        self.model = asked if isinstance(asked, ModelInfo) else None

    def check(self, document: Any) -> None:
        several = any("labels" in item for item in document["results"])
        served = _model({**document["model"], "labels": document["labels"], "multi_label": several})
        with self._lock:
            expected = self.model or served
            if served != expected:
                detail = f"the service now serves {served}, not {expected}"
                raise SentimentError(detail, code="model_changed")
            if several or self.model is None:  # an answer of errors alone does not show it
                self.model = served


class _Options(TypedDict, total=False):
    """The options of a call that classifies texts."""

    model: Model | None
    overflow: Overflow
    threshold: float | None
    language: str | None


# What classifies a batch.
_Call = Coroutine[Any, Any, list[Outcome]]


class _BaseClient:
    """What both clients have: their options, and what is done for a call.

    This is written as coroutines. Those of ``Client`` wait for no event loop: ``_done`` runs them.
    """

    _new: Callable[[], tuple[Any, Any]]  # the client of httpx, and what its calls share
    _answer: Callable[..., Awaitable["httpx.Response"]]
    _closes_in: Callable[[float], Awaitable[bool]]  # waits so many seconds; whether it is closed
    _all: Callable[[Iterator[_Call]], Awaitable[list[Outcome]]]

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

        With ``patience_s``, each attempt may take ``timeout_s``. Attempts go on as long as a rate
        limit says and, once the service has answered, while it is away for up to ``patience_s``
        seconds; and texts whose error says nothing of them are sent again.

        Raises:
            ValueError: the URL, the key or a number is not valid, or a variable of the environment
                names a proxy or certificates that cannot be used.
        """
        values = {**locals()}  # a debugger may change the dictionary itself
        given = {name: value for name, value in values.items() if name not in ("self", "url")}
        times = 0 < timeout_s <= LONGEST_S and patience_s >= 0  # neither is NaN
        if not (times and batch_size >= 1 and concurrency >= 1):
            raise ValueError(
                f"timeout_s must be above 0 and at most {LONGEST_S:.0f}, patience_s 0 or more, "
                "batch_size and concurrency 1 or more"
            )
        # Done by the first client: what else is here needs only Python.
        global httpx
        httpx = _imported("httpx", "sentiment_client", "0.28")
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
        # Without limits: above them, httpx closes a connection that another call was just given.
        self._way = {**way, "limits": httpx.Limits()}
        self._options: dict[str, Any] = {"base_url": address, "headers": headers}
        self._again = partial(type(self), url, **given)
        self._open()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return self._again, ()  # to pools of processes it goes with its key, without connections

    def _open(self) -> tuple[Any, Any]:
        here, opened = self._here(), self._new()
        self._opened = here, opened
        return opened

    def _here(self) -> Any:
        return os.getpid()

    def _connections(self) -> tuple[Any, Any]:
        """The client of httpx, and what its calls share.

        A forked process has its own: on the other's, each would read what answers the other. So has
        an event loop: connections end with theirs.
        """
        here, opened = self._opened
        if here != self._here() and not opened[0].is_closed:
            return self._open()
        return opened

    def _pause_s(self, error: SentimentError, attempts: int, started: float) -> float | None:
        """Seconds to wait before the next attempt; None if there should be no other attempt."""
        passing = error.code in PASSING and self._patience_s > 0
        lost = error.code == "connection_failed" or error.status in (429, 502, 503)
        if not (lost or passing):
            return None
        # A little longer than the service says, so that not all requests return at the same moment.
        longest_s = FIRST_BACKOFF_S * 2 ** min(attempts - 1, MAX_ATTEMPTS)
        pause_s = (error.retry_after_s or 0.0) + random.uniform(0, longest_s)
        waited_s = time.monotonic() - started + pause_s
        if not (self._patience_s and (self._has_answered or error.status == 429)):
            again = attempts < MAX_ATTEMPTS or error.retry_after_s is not None
            return pause_s if again and waited_s < self._timeout_s else None
        if error.status != 429 and waited_s > self._patience_s:
            return None
        now = time.monotonic()
        if waited_s >= SHOWN_FROM_S and now - self._shown_at >= SHOWN_EVERY_S:
            self._shown_at = now  # several requests wait at the same time; one of them says so
            logger.warning("%s; trying again in %.0f s", error, pause_s)
        return pause_s

    async def _classify_one(self, value: Any, options: _Options) -> Prediction:
        members = _members(options)
        body, model = _body(_or_raised(_checked(value)), members), _OneModel(options.get("model"))

        def read(document: Any) -> Any:
            return _or_raised(*_outcomes(1, model, document))

        prediction: Prediction = await self._request("/classify", read, body)
        return prediction

    async def _classify_all(
        self, texts: Any, options: _Options
    ) -> tuple[list[Outcome], ModelInfo | None]:
        model, members, attempts = options.get("model"), _members(options), 0
        batches = [*_batches(texts, self._batch_size)]
        while True:
            attempts, one_model = attempts + 1, _OneModel(model)
            try:
                calls = (self._in_places(batch, one_model, members) for batch in batches)
                return await self._all(calls), one_model.model
            except SentimentError as error:
                # The service has changed its model, and any will do.
                again = error.code == "model_changed" and not isinstance(model, ModelInfo)
                if not again or attempts == MAX_ATTEMPTS:
                    raise

    def _calls(self, texts: Any, options: _Options) -> Iterator[_Call]:
        """A call for each batch of the texts; each may get another model's answer."""
        model, members = options.get("model"), _members(options)
        batches = _batches(several(texts), self._batch_size)
        return (self._in_places(batch, _OneModel(model), members) for batch in batches)

    async def _add_columns(self, table: T, column: str, prefix: str, options: _Options) -> T:
        table = whole_table(table)
        texts = column_of(table, column)
        outcomes, answered = await self._classify_all(texts, options)
        if answered is None:  # without a text, nothing was sent; an empty one tells who answers
            _, answered = await self._classify_all([""], options)
        models = await self._request("/models", _models)  # which say more than answers do
        model = next((one for one in models if one == answered), answered)
        return with_results(table, results_of(outcomes, texts, model), prefix)

    async def _request(self, path: str, read: Callable[[Any], T], body: bytes | None = None) -> T:
        """What ``read`` makes of the answer. Attempts are repeated while ``_pause_s`` allows it."""
        request = {"method": "POST" if body else "GET", "url": path, "content": body}
        started = time.monotonic()
        end = float("inf") if self._patience_s else started + self._timeout_s
        attempts = 0
        while True:
            attempts += 1
            try:
                result = read(_document(await self._answer(end, **request)))
                self._has_answered = True
                return result
            except (httpx.RequestError, TimeoutError) as error:
                failure: SentimentError = _connection_failed(error, self.url + self._through)
            except SentimentError as error:
                failure = error
            pause_s = self._pause_s(failure, attempts, started)
            if pause_s is None or await self._closes_in(pause_s):
                raise failure

    def _limits(self, end: float) -> dict[str, Any]:
        """What an attempt may take from now on: for httpx, and for the service."""
        limit_s = min(self._timeout_s, max(0.001, end - time.monotonic()))
        return {"timeout": limit_s, "headers": {"x-request-timeout-ms": f"{limit_s * 1000:.0f}"}}

    async def _in_places(
        self, batch: Batch, model: _OneModel, members: dict[str, Any]
    ) -> list[Outcome]:
        """The outcomes of what is sent, and the errors of the rest, in the order of the batch."""
        sent = [one for one in batch if not isinstance(one, ItemError)]
        outcomes = iter(await self._classify_batch(sent, model, members))
        return [one if isinstance(one, ItemError) else next(outcomes) for one in batch]

    async def _classify_batch(
        self, batch: list[Text], model: _OneModel, members: dict[str, Any]
    ) -> list[Outcome]:
        if not batch:
            return []
        body, read = _body(batch, members), partial(self._outcomes, len(batch), model)
        try:
            outcomes = await self._request("/classify", read, body)
        except SentimentError as error:
            if error.status != 413 and error.code != "too_many_texts":
                raise  # it would not accept smaller batches either
            if len(batch) == 1:
                return [ItemError(error.code or "payload_too_large", error.detail)]
            middle = len(batch) // 2
            first = await self._classify_batch(batch[:middle], model, members)
            second = await self._classify_batch(batch[middle:], model, members)
            return [*first, *second]
        late = [text for text, one in zip(batch, outcomes, strict=True) if self._passes(one)]
        again = iter(await self._classify_batch(late, model, members))
        return [next(again) if self._passes(one) else one for one in outcomes]

    def _outcomes(self, size: int, model: _OneModel, document: Any) -> list[Outcome]:
        """The outcomes of a batch of ``size`` texts.

        If all are errors that a patient client waits out, the answer as a whole is such an error.
        """
        outcomes = _outcomes(size, model, document)
        first = outcomes[0]
        if isinstance(first, ItemError) and all(map(self._passes, outcomes)):
            raise SentimentError(first.message, status=503, code=first.code)
        return outcomes

    def _passes(self, outcome: Outcome) -> bool:
        """Whether a patient client sends the text again."""
        late = isinstance(outcome, ItemError) and outcome.code in PASSING
        return late and self._patience_s > 0


class Client(_BaseClient):
    """The synchronous client. Threads and processes can share it; close it, or use a ``with``."""

    def _new(self) -> "tuple[httpx.Client, threading.Event]":
        http = httpx.Client(transport=httpx.HTTPTransport(**self._way), **self._options)
        return http, threading.Event()  # set when it is closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. A request that waits for its next attempt fails."""
        http, closed = self._connections()
        closed.set()
        http.close()

    @overload
    def classify(self, texts: Text, **options: Unpack[_Options]) -> Prediction: ...
    @overload
    def classify(self, texts: Iterable[Any], **options: Unpack[_Options]) -> Results: ...
    def classify(self, texts: Any, **options: Unpack[_Options]) -> Prediction | Results:
        """Classify one text or pair of texts, or several.

        One text gives its prediction. Several texts, such as a list or a column, give ``Results``
        in the same order, with an ``ItemError`` in place of each that cannot be classified: also of
        None, NaN and what is no text. They are of one model: if the service changes it meanwhile,
        all texts are sent again. ``threshold`` is the score from which on a multi-label model
        chooses a label, in the place of its bundle's. ``language``, a BCP 47 tag such as
        "de", chooses among several models if none is named.

        Raises:
            SentimentError: the request failed, or the single text cannot be classified.
            TypeError: the texts are a table, or an option is not known.
            RuntimeError: the client is closed.
        """
        if not are_several(texts):
            return _done(self._classify_one(texts, options))
        outcomes, model = _done(self._classify_all(texts, options))
        return results_of(outcomes, texts, model)

    def classify_iter(self, texts: Iterable[Any], **options: Unpack[_Options]) -> Iterator[Outcome]:
        """The result of each text, in order. Later texts are read and sent in the meantime.

        If ``model`` is one of ``models()``, all are of that model.

        Raises:
            SentimentError: a request failed.
        """
        return self._classified(self._calls(texts, options))

    def _classified(self, calls: Iterator[_Call]) -> Iterator[Outcome]:
        waiting: deque[Future[list[Outcome]]] = deque()
        for call in calls:
            waiting.append(_in_thread(call))
            if len(waiting) == self._concurrency:
                yield from waiting.popleft().result()
        for outcomes in waiting:
            yield from outcomes.result()

    def add_columns(
        self, table: T, column: str = "text", *, prefix: str = "", **options: Unpack[_Options]
    ) -> T:
        """The table with the columns that ``sentiment classify`` adds to a file, row by row.

        The table is a DataFrame of pandas or polars, a Table or RecordBatch of pyarrow, or a dict
        of columns; ``column`` has its texts. The names of the new columns begin with ``prefix``,
        and with "predicted_", too, if the table has such a column, whatever its case.

        Raises:
            SentimentError: a request failed.
            TypeError: it is not such a table.
            ValueError: it has no such column.
        """
        return _done(self._add_columns(table, column, prefix, options))

    def models(self) -> list[ModelInfo]:
        """The models that the service has loaded; the first is the default.

        Raises:
            SentimentError: the request failed.
        """
        return _done(self._request("/models", _models))

    async def _all(self, calls: Iterator[_Call]) -> list[Outcome]:
        return [*self._classified(calls)]

    async def _closes_in(self, pause_s: float) -> bool:
        closed: threading.Event = self._connections()[1]
        return closed.wait(pause_s)

    async def _answer(self, end: float, **request: Any) -> "httpx.Response":
        """The answer. httpx itself limits only how long it waits for each part of it."""
        (http, _), limits, parts = self._connections(), self._limits(end), []
        last = time.monotonic() + limits["timeout"]
        with http.stream(**limits, **request) as answer:
            for part in answer.iter_bytes():
                parts.append(part)
                if time.monotonic() > last:
                    raise TimeoutError
        answer.headers.pop("content-encoding", None)  # the parts are decoded
        return httpx.Response(answer.status_code, headers=answer.headers, content=b"".join(parts))


class AsyncClient(_BaseClient):
    """The asyncio client; close it, or use an ``async with``.

    Tasks can share it, and event loops one after the other. In a loop, it sends at most 100
    requests at the same time. Others wait for their turn, which counts as time of their answers.
    """

    def _new(self) -> "tuple[httpx.AsyncClient, asyncio.Semaphore]":
        http = httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(**self._way), **self._options)
        return http, asyncio.Semaphore(MAX_REQUESTS)

    def _here(self) -> Any:
        try:
            return os.getpid(), asyncio.get_running_loop()
        except RuntimeError:  # none runs where the client is made
            return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        http, _ = self._connections()
        await http.aclose()

    @overload
    async def classify(self, texts: Text, **options: Unpack[_Options]) -> Prediction: ...
    @overload
    async def classify(self, texts: Iterable[Any], **options: Unpack[_Options]) -> Results: ...
    async def classify(self, texts: Any, **options: Unpack[_Options]) -> Prediction | Results:
        """Like ``Client.classify``."""
        if not are_several(texts):
            return await self._classify_one(texts, options)
        outcomes, model = await self._classify_all(texts, options)
        return results_of(outcomes, texts, model)

    def classify_iter(
        self, texts: Iterable[Any], **options: Unpack[_Options]
    ) -> AsyncGenerator[Outcome, None]:
        """Like ``Client.classify_iter``."""
        return self._classified(self._calls(texts, options))

    async def _classified(self, calls: Iterator[_Call]) -> AsyncGenerator[Outcome, None]:
        waiting: deque[asyncio.Task[list[Outcome]]] = deque()
        try:
            for call in calls:
                waiting.append(asyncio.create_task(call))
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

    async def add_columns(
        self, table: T, column: str = "text", *, prefix: str = "", **options: Unpack[_Options]
    ) -> T:
        """Like ``Client.add_columns``."""
        return await self._add_columns(table, column, prefix, options)

    async def models(self) -> list[ModelInfo]:
        """Like ``Client.models``."""
        return await self._request("/models", _models)

    async def _all(self, calls: Iterator[_Call]) -> list[Outcome]:
        return [one async for one in self._classified(calls)]

    async def _closes_in(self, pause_s: float) -> bool:
        return await asyncio.sleep(pause_s, False)

    async def _answer(self, end: float, **request: Any) -> "httpx.Response":
        """The answer to the request, which is sent when few enough others are under way."""
        http, places = self._connections()
        async with asyncio.timeout(min(end - time.monotonic(), LONGEST_S)):
            await places.acquire()
        try:
            limits = self._limits(end)
            # A little longer than httpx waits for a connection, so that it can say so.
            async with asyncio.timeout(limits["timeout"] + 0.1):
                return cast("httpx.Response", await http.request(**limits, **request))
        finally:
            places.release()


def _imported(module: str, needed_by: str, version: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        package = module.partition(".")[0]
        command = shlex.join([sys.executable, "-m", "pip", "install", f"{package}>={version}"])
        raise ModuleNotFoundError(
            f"{needed_by} needs the package {package} ({version} or newer): run {command}",
            name=package,
        ) from None


def _address(url: str) -> "httpx.URL":
    try:
        address = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"the URL is not valid: {error}") from None
    if address.scheme not in ("http", "https") or not address.host or b"?" in address.raw_path:
        raise ValueError("the URL must begin with http:// or https://, name a host, and have no ?")
    return address


def _way_to(address: "httpx.URL") -> tuple[dict[str, Any], str]:
    """The options of a transport, and what is said of the proxy in errors.

    httpx reads all variables of proxies and certificates, and one that it cannot read ends it, also
    where it is for other addresses. So they are read here, for this address alone.
    """
    certificates: Any = _certificates() if address.scheme == "https" else False
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
    try:
        return httpx.create_ssl_context()
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"the certificates in SSL_CERT_FILE cannot be used: {reason}") from None


def _proxy(address: "httpx.URL") -> tuple[str, str]:
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


def are_several(texts: Any) -> bool:
    """Whether it is not a single text, nor what stands for one."""
    if hasattr(type(texts), "columns"):
        raise TypeError(
            "this is a table, or is not in memory; give one column that is, such as table['text'], "
            "or use add_columns"
        )
    return isinstance(texts, Iterable) and not isinstance(texts, str | bytes | Mapping)


def several(texts: Iterable[Any]) -> Iterable[Any]:
    """The same texts; TypeError if they are a single one or a table."""
    if not are_several(texts):
        raise TypeError("classify_iter takes several texts; classify takes a single one")
    return texts


def values_of(column: Any) -> Iterable[Any]:
    """What a column holds. One of pyarrow may have what Python cannot: bytes that are not UTF-8,
    and times before the year 1, after 9999 or in nanoseconds.
    """
    if not hasattr(column, "to_pylist"):
        return cast(Iterable[Any], column)
    try:
        with suppress(UnicodeDecodeError):
            return cast(list[Any], column.to_pylist())
        raws = column.cast("large_binary").to_pylist()
        return [raw if raw is None else raw.decode("utf-8", "surrogateescape") for raw in raws]
    except (OverflowError, ValueError, NotImplementedError) as error:  # the last: of nested texts
        raise TypeError(f"a column of the type {column.type} holds no texts") from error


def _checked(value: Any) -> Text | ItemError:
    """The value as a text or pair that JSON can hold, or why it is none."""
    if isinstance(value, str):
        return value
    if (
        isinstance(value, Mapping)
        and {"text"} <= value.keys() <= {"text", "text_pair"}
        and all(isinstance(part, str | None) for part in value.values())
    ):
        return dict(value)
    if str(value) in MISSING:
        return ItemError("empty_text", "there is no text")
    return ItemError("invalid_request", f"{NO_TEXT}, not {type(value).__name__}")


def results_of(outcomes: Iterable[Outcome], texts: Any, model: ModelInfo | None) -> Results:
    """The results of a column, with one warning if it is probably no column of texts."""
    index = getattr(texts, "index", None)  # of pandas; lists have a method of this name
    results = Results(outcomes, None if callable(index) else index, model)
    strange = [one for one in results if isinstance(one, ItemError) and NO_TEXT in one.message]
    if len(strange) > len(results) * STRANGE_SHARE:
        warnings.warn(
            f"{len(strange):,} of {len(results):,} values are neither text nor missing: "
            f"{strange[0].message}; each is an error in its place",
            stacklevel=3,
        )
    return results


def _or_raised(found: Any) -> Any:
    """What was found, unless it is an error."""
    if isinstance(found, ItemError):
        raise SentimentError(found.message, code=found.code)
    return found


def _batches(texts: Iterable[Any], size: int) -> Iterator[Batch]:
    """Batches of at most ``size`` texts and ``MAX_BATCH_BYTES``. A longer text is a batch alone."""
    batch: Batch = []
    used = 0
    for text in map(_checked, values_of(texts)):
        needed = 0 if isinstance(text, ItemError) else len(json.dumps(text)) + 2
        if batch and (len(batch) == size or used + needed > MAX_BATCH_BYTES):
            yield batch
            batch, used = [], 0
        batch.append(text)
        used += needed
    if batch:
        yield batch


def _members(options: _Options) -> dict[str, Any]:
    """The options of a call as members of a request's body."""
    known = sorted(_Options.__annotations__)
    if unknown := [name for name in options if name not in known]:
        raise TypeError(f"the options of classify are {', '.join(known)}: not {unknown}")
    model = options.get("model")
    name = model.name if isinstance(model, ModelInfo) else model
    members = {"overflow": "truncate", **options, "model": name}
    return {member: value for member, value in members.items() if value is not None}


def _body(inputs: Text | list[Text], members: dict[str, Any]) -> bytes:
    """JSON in ASCII. A lone surrogate can be sent, too; the service then refuses only its text."""
    return json.dumps({"inputs": inputs, **members}).encode()


def _document(response: "httpx.Response") -> Any:
    try:
        document = response.json()
    except (ValueError, RecursionError):
        document = None
    if response.status_code == 200 and document is not None:
        return document
    problem = document if isinstance(document, dict) else {}
    said = problem.get("detail")
    if response.has_redirect_location:
        place = response.headers["location"].partition("?")[0]
        said = f"{NOT_THE_SERVICE}: it redirects to {place}; use a URL that does not redirect"
    elif not said:
        kind = response.headers.get("content-type", "none")
        said = f"{NOT_THE_SERVICE} (content-type: {kind})"
    raise SentimentError(
        str(said),
        status=response.status_code,
        code=problem.get("code"),
        request_id=problem.get("request_id") or response.headers.get("x-request-id"),
        retry_after_s=_retry_after_s(response.headers.get("retry-after", "")),
    )


def _connection_failed(error: Exception, url: str) -> ConnectionFailed:
    if isinstance(error, httpx.ConnectTimeout):
        reason = "no connection in time"
    elif isinstance(error, httpx.TimeoutException | TimeoutError):
        return ConnectionFailed(f"{url} did not answer in time", code="timed_out")
    else:
        reason = str(error) or type(error).__name__
    return ConnectionFailed(f"cannot reach {url}: {reason}", code="connection_failed")


def _retry_after_s(value: str) -> float | None:
    """The header's number of seconds; a date, which the service does not send, is none."""
    try:
        seconds = float(value)
    except ValueError:
        return None
    return max(0.0, seconds) if seconds <= LONGEST_S else None


def _outcomes(expected: int, model: _OneModel, document: Any) -> list[Outcome]:
    try:
        outcomes = [outcome_of(item) for item in document["results"]]
        model.check(document)
    except (KeyError, TypeError):
        outcomes = []
    if len(outcomes) != expected:
        raise SentimentError(f"{NOT_THE_SERVICE}: it does not have one result for each text")
    return outcomes


def outcome_of(
    item: Mapping[str, Any],
    prediction: type[Prediction] = Prediction,
    failure: type[ItemError] = ItemError,
) -> Outcome:
    """What an item of an answer's results says. Members that are not known are left out."""
    kind: Any = prediction
    if "error" in item:
        item, kind = {**item, **item["error"]}, failure
    members = {name: item[name] for name in kind.__dataclass_fields__ if name in item}
    if "sentences" in members:
        members["sentences"] = [
            outcome_of(one, Sentence, SentenceError) for one in item["sentences"]
        ]
    outcome: Outcome = kind(**members)
    return outcome


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


def _done(call: Coroutine[Any, Any, T]) -> T:
    """What the coroutine returns, which waits for no event loop."""
    try:
        call.send(None)
    except StopIteration as end:
        return cast(T, end.value)
    raise RuntimeError("it waits for an event loop")


def _in_thread(call: _Call) -> Future[list[Outcome]]:
    """Run the call in a daemon thread, so that a process can exit without waiting for it."""
    future: Future[list[Outcome]] = Future()

    def run() -> None:
        try:
            future.set_result(_done(call))
        except BaseException as error:
            future.set_exception(error)

    try:
        threading.Thread(target=run, daemon=True).start()
    except RuntimeError:  # the main thread has ended, and Python starts no more of them
        run()
    return future


# A column of results: the type of its values, and a value for each row.
Columns = dict[str, tuple[type, list[Any]]]


def _label_set(results: Results) -> Sequence[str]:
    if results.model:
        return results.model.labels
    return next((tuple(one.scores) for one in results if isinstance(one, Prediction)), ())


def _columns(results: Results) -> Columns:
    """The columns of results. They depend on the model, or on what the results show of it."""
    labels = _label_set(results)
    several = results.model and results.model.multi_label
    several = several or any(one.labels is not None for one in results)
    columns: Columns = {"label": (str, results.labels), "score": (float, results.scores)}
    for name in labels:
        columns[f"score_{name}"] = (float, [one.scores and one.scores[name] for one in results])
    if {*labels} - {"neutral"} == {"negative", "positive"}:
        columns["polarity"] = (float, results.polarity)
    if several:
        columns["labels"] = (list, [one.labels for one in results])
    columns["warnings"] = (list, [one.warnings for one in results])
    return {**columns, "error": (str, results.errors)}


def _typed(library: Any, columns: Columns) -> dict[str, Any]:
    """Columns of pandas, polars, pyarrow or NumPy. Their types are the same for any results."""

    def column(name: str, kind: type, values: list[Any]) -> Any:
        match library.__name__:
            case "numpy" if kind is float:
                return library.array(values, float)
            case "numpy":
                return library.fromiter(values, object)
            case "pandas":
                return library.Series(values, dtype=object if kind is list else kind).array
            case "polars":
                text = library.String
                types = {str: text, float: library.Float64, list: library.List(text)}
                return library.Series(name, values, types[kind])
            case _:
                text = library.string()
                types = {str: text, float: library.float32(), list: library.list_(text)}
                return library.array(values, types[kind])

    return {name: column(name, kind, values) for name, (kind, values) in columns.items()}


def whole_table(table: T) -> T:
    """The table of a batch of datasets, whose columns have types also where all values are None."""
    return cast(T, getattr(table, "pa_table", table))


def _library(table: Any) -> str:
    """The package that a table is of; "dict" of a dict of columns."""
    packages = {kind.__module__.partition(".")[0] for kind in type(table).__mro__}
    found = packages & {"pandas", "polars", "pyarrow"}
    if isinstance(table, Mapping):
        return "dict"
    # Without a length: a LazyFrame of polars, which would warn of looking at its columns.
    if not found or not hasattr(table, "__len__") or not hasattr(table, "columns"):
        raise TypeError(
            f"{type(table).__module__}.{type(table).__name__} is not a table; give a DataFrame of "
            "pandas or polars (collect() of a LazyFrame), a Table or RecordBatch of pyarrow, or a "
            "dict of columns"
        )
    return found.pop()


def _names(table: Any) -> list[str]:
    if (library := _library(table)) == "pyarrow":
        return [*table.schema.names]
    return [*(table if library == "dict" else table.columns)]


def column_of(table: Any, column: str) -> Any:
    if (names := _names(table)).count(column) != 1:
        found = "several columns" if column in names else "no column"
        raise ValueError(
            f"the table has {found} {column!r}; its columns: {', '.join(map(repr, names))}"
        )
    # Of a dict, an iterator would come back without its values.
    if not are_several(values := table[column]) or not hasattr(values, "__len__"):
        raise TypeError(f"{column!r} holds one value or an iterator; a column has one for each row")
    return values


def with_results(table: T, results: Results, prefix: str) -> T:
    """The table with the columns of its rows' results, by position."""
    names = _names(table)
    names += [name[0] for name in names if isinstance(name, tuple)]  # pandas has such levels
    taken = {str(name).lower() for name in names}  # for Spark and SQL, "Label" is "label"
    columns: Columns = {}
    for name, values in _columns(results).items():
        free = f"{prefix}{name}"
        while free.lower() in taken:
            free = f"predicted_{free}"
        taken.add(free.lower())
        columns[free] = values
    library, whole = _library(table), cast(Any, table)
    if library == "dict":
        added: dict[str, Any] = {name: values for name, (_, values) in columns.items()}
        if any(type(values).__module__ == "numpy" for values in whole.values()):
            added = _typed(sys.modules["numpy"], columns)
        return cast(T, {**whole, **added})
    typed = _typed(sys.modules[library], columns)
    if library == "polars":
        whole = whole.with_columns([*typed.values()])
    elif library == "pandas":
        pd, lower = sys.modules["pandas"], ("",) * (whole.columns.nlevels - 1)
        more = pd.DataFrame(  # at once: pandas warns of each column after the hundredth
            {(name, *lower) if lower else name: values for name, values in typed.items()},
            whole.index,  # by position: an index may repeat
        )
        more.columns.names, more.attrs = whole.columns.names, whole.attrs
        whole = pd.concat([whole, more], axis=1)
    else:
        for name, values in typed.items():
            whole = whole.append_column(name, values)
    return cast(T, whole)
