"""The Python client, with the service itself and with servers that misbehave."""

import asyncio
import gzip
import json
import math
import socket
import sys
import threading
import time
from collections import UserDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from decimal import Decimal
from http.server import BaseHTTPRequestHandler
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import sentiment_client
from sentiment_client import (
    AsyncClient,
    Client,
    ConnectionFailed,
    ItemError,
    ModelInfo,
    Prediction,
    SentimentError,
)
from sentiment_service import Classifier

from tests.conftest import FLAGS, served
from tests.support.http_server import Answer, listening
from tests.support.serving import Process, run_program
from tests.support.tiny_bundle import make_bundle, write_manifest

Call = Callable[[str, Any, dict[str, Any]], Any]
RESULT = {
    "label": "positive",
    "score": 0.9,
    "scores": {"positive": 0.9},
    "logits": {"positive": 2.0},
    "tokens": 3,
    "truncated": False,
    "polarity": 0.8,
}
POSITIVE = Prediction("positive", 0.9, {"positive": 0.9}, {"positive": 2.0}, 3, False, 0.8)


def _sync(url: str, texts: Any, options: dict[str, Any]) -> Any:
    with Client(url, **options) as client:
        return client.classify(texts)


def _async(url: str, texts: Any, options: dict[str, Any]) -> Any:
    async def call() -> Any:
        async with AsyncClient(url, **options) as client:
            return await client.classify(texts)

    return asyncio.run(call())


@pytest.fixture(params=[_sync, _async])
def classify(request: pytest.FixtureRequest) -> Call:
    """``classify(url, texts, options)`` of each client: the synchronous and the asyncio one."""
    call: Call = request.param
    return call


service = served("--max-texts", "40")


@pytest.fixture(scope="module")
def service_of_pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A service whose model takes pairs of texts."""
    bundle = make_bundle(tmp_path_factory.mktemp("pairs") / "pairs")
    write_manifest(bundle, text_pairs=True)
    with Process("--model", str(bundle), *FLAGS) as process:
        yield process


MODEL = {"name": "tiny", "revision": "abc", "precision": "int8", "digest": "1" * 64}


def _answer(
    results: Sequence[Any],
    model: dict[str, Any] = MODEL,
    labels: Sequence[str] = ("negative", "positive"),
) -> tuple[int, dict[str, str], bytes]:
    """An answer of this model with these results."""
    document = {"model": model, "labels": labels, "results": results}
    return 200, {"content-type": "application/json"}, json.dumps(document).encode()


class Server:
    """Gives the answers of its script first, then correct ones. ``seen`` has the requests.

    A step of the script is a status, headers and a body, or None to close the connection.
    """

    def __init__(self, script: Sequence[tuple[int, dict[str, str], bytes] | None]) -> None:
        self.script = list(script)
        self.seen: list[tuple[dict[str, str], Any]] = []
        self.times: list[float] = []

    def answer(self, body: Any) -> tuple[int, dict[str, str], bytes]:
        """A correct answer."""
        inputs = body["inputs"]
        if isinstance(inputs, str):
            results = [RESULT]
        else:
            results = [RESULT | {"tokens": len(text)} for text in inputs]
        return _answer(results)


def _listening(server: Server) -> AbstractContextManager[str]:
    def answer(request: BaseHTTPRequestHandler, body: bytes) -> Answer:
        server.seen.append((dict(request.headers), json.loads(body or b"null")))
        server.times.append(time.monotonic())
        return server.script.pop(0) if server.script else server.answer(json.loads(body))

    return listening(answer)


def _problem(status: int, code: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    document = {"status": status, "code": code, "detail": f"it is {code}", "request_id": "r1"}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return (
        status,
        {"content-type": "application/problem+json", **named},
        json.dumps(document).encode(),
    )


def test_one_text(service: Process, classify: Call) -> None:
    """A string gives one prediction, with every field of the service's answer."""
    prediction = classify(service.url, "I love this", {})
    assert isinstance(prediction, Prediction)
    assert (prediction.label, prediction.tokens, prediction.truncated) == ("positive", 5, False)
    assert list(prediction.scores) == list(prediction.logits) == ["negative", "neutral", "positive"]
    assert prediction.score == prediction.scores["positive"] > 0.9


def test_a_text_that_fails_is_an_error(service: Process, classify: Call) -> None:
    """A single bad text raises the service's error with status, code, message and request id."""
    with pytest.raises(SentimentError, match="empty") as raised:
        classify(service.url, "", {})
    assert (raised.value.status, raised.value.code) == (422, "empty_text")
    assert raised.value.request_id
    assert raised.value.request_id in str(raised.value)


def test_pairs_of_texts(service_of_pairs: Process, classify: Call) -> None:
    """An object with text and text_pair is one text, alone and in a list."""
    pair = {"text": "love it", "text_pair": "worst"}
    alone = classify(service_of_pairs.url, pair, {})
    love, listed = classify(service_of_pairs.url, ["love", pair], {})
    assert alone == listed
    assert (alone.tokens, alone.logits["negative"]) == (6, 3.0)
    assert love.label == "positive"


def test_many_texts_come_back_in_order(service: Process, classify: Call) -> None:
    """Many batches at a time keep the order, with bad texts in place, above the service's limit."""
    texts = [("love " * (n % 5) + "worst " * (n % 3)) for n in range(500)]
    outcomes = classify(service.url, texts, {"batch_size": 60, "concurrency": 3})
    assert len(outcomes) == 500
    for text, outcome in zip(texts, outcomes, strict=True):
        if text:
            assert isinstance(outcome, Prediction)
            assert outcome.tokens == len(text.split()) + 2
        else:
            assert isinstance(outcome, ItemError)
            assert outcome.code == "empty_text"


def test_half_of_a_surrogate_pair_fails_alone(service: Process, classify: Call) -> None:
    """A lone surrogate is an error of its own text; an emoji in another text arrives unchanged."""
    good, bad = classify(service.url, ["love \U0001f600", "\ud83d"], {})
    assert good.tokens == 4
    assert bad.code == "invalid_request"


@pytest.mark.parametrize("status", [429, 503])
def test_the_client_waits_as_long_as_retry_after_says(classify: Call, status: int) -> None:
    """It waits at least that long, and tells the service that less time is left."""
    server = Server([_problem(status, "busy", retry_after="0.2")] * 2)
    with _listening(server) as url:
        assert classify(url, "love", {"timeout_s": 20.0}) == POSITIVE
    first, second, third = server.times
    assert second - first >= 0.2
    assert third - second >= 0.2
    left = [int(headers["x-request-timeout-ms"]) for headers, _ in server.seen]
    assert 19_000 < left[0] <= 20_000
    assert left[1] <= left[0] - 200


def test_without_retry_after_the_attempts_are_limited(classify: Call) -> None:
    """After the last attempt, its error is raised."""
    server = Server([_problem(503, "not_ready")] * 50)
    with _listening(server) as url, pytest.raises(SentimentError) as raised:
        classify(url, "love", {})
    assert (raised.value.status, raised.value.code) == (503, "not_ready")
    assert len(server.seen) == sentiment_client.MAX_ATTEMPTS


def test_a_closed_connection_is_tried_again(classify: Call) -> None:
    """A request whose connection was closed is repeated until it is answered."""
    server = Server([None, None])
    with _listening(server) as url:
        assert classify(url, "love", {}) == POSITIVE
    assert len(server.seen) == 3


def test_no_server_listens(classify: Call) -> None:
    """After the last attempt, the error names the URL, but not the password in it."""
    with pytest.raises(ConnectionFailed, match=r"cannot reach http://127\.0\.0\.1:9") as raised:
        classify("http://user:secret@127.0.0.1:9", "love", {})
    assert "secret" not in str(raised.value)


def test_the_client_does_not_wait_beyond_the_deadline(classify: Call) -> None:
    """If Retry-After is longer than the time left, the error is raised at once."""
    server = Server([_problem(429, "overloaded", retry_after="60")])
    with _listening(server) as url, pytest.raises(SentimentError) as raised:
        classify(url, "love", {"timeout_s": 5.0})
    assert raised.value.retry_after_s == 60
    assert len(server.seen) == 1


def test_a_service_that_does_not_answer(classify: Call, bundle: Path) -> None:
    """The request fails at the deadline with the code ``timed_out``."""

    class Slow(Server):
        def answer(self, body: Any) -> tuple[int, dict[str, str], bytes]:
            released.wait(30)
            return super().answer(body)

    released = threading.Event()
    server = Slow([])
    with _listening(server) as url:
        with pytest.raises(ConnectionFailed, match="in time") as raised:
            classify(url, "love", {"timeout_s": 0.3})
        released.set()
    assert raised.value.code == "timed_out"
    assert len(server.seen) == 1


def test_an_answer_that_arrives_slowly(classify: Call) -> None:
    """It ends at the deadline, too, however short the pauses between its parts are."""

    def answer(request: BaseHTTPRequestHandler, body: bytes) -> Answer:
        _, headers, content = _answer([RESULT])
        request.send_response(200)
        for name, value in {**headers, "content-length": str(len(content))}.items():
            request.send_header(name, value)
        request.end_headers()
        with suppress(OSError):  # the client has gone
            for start in range(0, len(content), 8):
                request.wfile.write(content[start : start + 8])
                time.sleep(0.1)
        return None

    started = time.monotonic()
    with listening(answer) as url, pytest.raises(ConnectionFailed, match="in time") as raised:
        classify(url, "love", {"timeout_s": 0.5})
    assert raised.value.code == "timed_out"
    assert 0.5 <= time.monotonic() - started < 2


def test_a_compressed_answer(classify: Call) -> None:
    """As a proxy may give it; one that cannot be read is a failed connection."""
    status, headers, content = _answer([RESULT])
    headers = {**headers, "content-encoding": "gzip"}
    with _listening(Server([(status, headers, gzip.compress(content))])) as url:
        assert classify(url, "love", {}) == POSITIVE
    with _listening(Server([(status, headers, content)])) as url:
        assert classify(url, "love", {}) == POSITIVE  # of the second attempt


def test_an_answer_of_errors_alone_does_not_decide_how_labels_are(classify: Call) -> None:
    """A later answer with predictions shows whether a text may have several labels."""
    error = {"error": {"code": "empty_text", "message": "there is no text"}}
    server = Server([_answer([error]), _answer([RESULT | {"labels": ["positive"]}])])
    with _listening(server) as url:
        results = classify(url, ["x", "love"], {"batch_size": 1, "concurrency": 1})
    assert results.model.multi_label


def test_a_patient_client_waits_for_a_host_that_drops_connections(classify: Call) -> None:
    """As for one that refuses them: an attempt that finds no connection is no slow answer."""

    def drop_connections(server: Any) -> None:
        server.shutdown()
        server.socket.listen(0)
        waiting: list[socket.socket] = []
        with suppress(TimeoutError):
            while True:  # until the system has no place for another one
                waiting.append(socket.create_connection(server.server_address, 0.05))

        def return_() -> None:
            for connection in waiting:
                connection.close()
            server.serve_forever(0.01)

        threading.Timer(1.5, return_).start()

    def answer(request: BaseHTTPRequestHandler, body: bytes) -> Answer:
        texts.append(json.loads(body)["inputs"])
        status, headers, content = _answer([RESULT])
        if len(texts) == 1:
            drop_connections(request.server)
        return status, {**headers, "connection": "close"}, content

    texts: list[Any] = []
    options = {"timeout_s": 0.5, "patience_s": 30.0, "batch_size": 1, "concurrency": 1}
    with listening(answer) as url:
        assert classify(url, ["love", "it"], options) == [POSITIVE, POSITIVE]
    assert texts == [["love"], ["it"]]


def test_a_host_that_drops_connections_is_named(classify: Call) -> None:
    """It cannot be reached; nobody says that it was slow to answer."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        address = server.getsockname()
        with socket.create_connection(address), pytest.raises(ConnectionFailed) as raised:
            classify(f"http://127.0.0.1:{address[1]}", "love", {"timeout_s": 0.5})
    assert raised.value.code == "connection_failed"
    assert raised.value.detail.endswith(f":{address[1]}/: no connection in time")


HTML = {"content-type": "text/html"}, b"<h1>Bad Gateway</h1>"
# Where an answer redirects to, and what of it is shown: not what a login asks about.
REDIRECTS = {
    "https://sentiment.test/classify": "https://sentiment.test/classify",
    "https://login.test/?state=s3cret": "https://login.test/",
}


@pytest.mark.parametrize(
    ("step", "code", "words"),
    [
        *[
            (_problem(status, "wrong", retry_after="0"), "wrong", "it is wrong")
            for status in (400, 401, 403, 404, 422, 500, 504)
        ],
        *[((status, *HTML), None, "text/html") for status in (200, 302, 500)],
        *[
            (
                (status, {"location": location, **HTML[0]}, HTML[1]),
                None,
                f"it redirects to {place}; use a URL that does not redirect",
            )
            for status in (301, 302, 308)
            for location, place in REDIRECTS.items()
        ],
    ],
)
def test_other_errors_are_not_tried_again(
    classify: Call, step: tuple[int, dict[str, str], bytes], code: str | None, words: str
) -> None:
    """An error that another attempt cannot change is raised after one attempt.

    A proxy's page of HTML is named by its HTTP status and content type, or by where it leads.
    """
    server = Server([step])
    with _listening(server) as url, pytest.raises(SentimentError, match=words) as raised:
        classify(url, ["love"], {})
    assert (raised.value.status, raised.value.code) == (step[0], code)
    assert raised.value.request_id == ("r1" if code else None)
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    "document", [b"[]", b"{}", b'{"results": []}', b'{"results": [{}]}', b"7", b"[" * 100_000]
)
def test_json_of_another_service_is_an_error(classify: Call, document: bytes) -> None:
    """JSON of another shape raises a SentimentError."""
    server = Server([(200, {"content-type": "application/json"}, document)])
    with _listening(server) as url, pytest.raises(SentimentError, match="sentiment service"):
        classify(url, ["love"], {})


def test_batches_are_limited_in_bytes(classify: Call) -> None:
    """A batch ends before its body exceeds the limit; a longer text is sent alone."""
    texts = ["x" * 300_000, "x" * 300_000, "é" * 100_000, "x" * 2_000_000, "x"]
    server = Server([])
    with _listening(server) as url:
        outcomes = classify(url, texts, {"concurrency": 1})
    assert [prediction.tokens for prediction in outcomes] == [*map(len, texts)]
    sent = [body["inputs"] for _, body in server.seen]
    assert sent == [texts[:2], texts[2:3], texts[3:4], texts[4:]]


def test_a_batch_that_is_too_large_is_sent_in_halves(classify: Call) -> None:
    """It is halved until each part is accepted; a text too large by itself fails in its place."""

    class Strict(Server):
        def answer(self, body: Any) -> tuple[int, dict[str, str], bytes]:
            if sum(map(len, body["inputs"])) > 10:
                return _problem(413, "payload_too_large")
            return super().answer(body)

    texts = ["x" * 4, "x" * 5, "x" * 50, "x" * 6, "x" * 7]
    with _listening(Strict([])) as url:
        outcomes = classify(url, texts, {})
    assert [getattr(outcome, "tokens", None) for outcome in outcomes] == [4, 5, None, 6, 7]
    assert outcomes[2] == ItemError("payload_too_large", "it is payload_too_large")


def test_options_are_sent() -> None:
    """The body has the model, the overflow and the language, or only the default overflow."""
    server = Server([])
    with _listening(server) as url, Client(url) as client:
        client.classify("love", model="large", overflow="error", language="de")
        client.classify("love")
    bodies = [body for _, body in server.seen]
    options = {"model": "large", "overflow": "error", "language": "de"}
    assert bodies == [{"inputs": "love"} | options, {"inputs": "love", "overflow": "truncate"}]


def test_the_language_chooses_the_model(tmp_path: Path) -> None:
    """The model of the sent language answers; a table gets its columns, even without a result."""
    kind = "multi_label_classification"
    german = make_bundle(tmp_path / "german", name="german", problem_type=kind)
    write_manifest(german, name="german", language="de")
    other = make_bundle(tmp_path / "other", name="other")
    served = Process("--model", str(other), "--model", str(german))
    with served as process, Client(process.url) as client:
        results = client.classify(["love"], language="de")
        assert results.model is not None
        assert results.model.name == "german"
        for texts in (["love"], [""], [None], []):
            assert "labels" in client.add_columns({"text": texts}, language="de"), texts


def test_the_key_is_sent_and_not_shown(classify: Call) -> None:
    """The key is sent as a bearer token, and no message or repr() shows it."""
    server = Server([_problem(401, "unauthorized")])
    with _listening(server) as url, pytest.raises(SentimentError) as raised:
        classify(url, "love", {"api_key": "s3cret"})
    assert server.seen[0][0]["authorization"] == "Bearer s3cret"
    shown = [str(raised.value), repr(raised.value), repr(vars(raised.value))]
    shown += [repr(Client(url, api_key="s3cret")), repr(AsyncClient(url, api_key="s3cret"))]
    assert not [text for text in shown if "s3cret" in text]


@pytest.mark.parametrize("key", ["s3cret\n", "s3crét", "", "two s3cret"])
def test_a_key_that_cannot_be_sent_is_not_shown(key: str) -> None:
    """It is refused before anything is sent, and the error does not show it."""
    with pytest.raises(ValueError, match="api_key") as raised:
        Client(api_key=key)
    assert "cr" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        *("localhost:8000", "ftp://localhost", "http://", "http://[::1"),
        *("http://localhost?model=x", "http://localhost/sentiment?"),
    ],
)
def test_an_invalid_url(url: str) -> None:
    """It is refused when the client is made."""
    with pytest.raises(ValueError, match="URL"):
        Client(url)


@pytest.mark.parametrize("client", [Client, AsyncClient])
@pytest.mark.parametrize(
    "options",
    [
        *({"timeout_s": value} for value in (0, -1, math.nan, math.inf, 1e10, 1e300)),
        *({"patience_s": value} for value in (-1, math.nan)),
        {"batch_size": 0},
        {"concurrency": 0},
    ],
    ids=str,
)
def test_numbers_that_cannot_be_used(client: Any, options: dict[str, float]) -> None:
    """They are refused when the client is made, with what is accepted."""
    with pytest.raises(ValueError, match="timeout_s must be above 0 and at most "):
        client(**options)


def test_a_very_long_limit(service: Process, classify: Call) -> None:
    """Neither Python nor the service refuses what the constructor accepts."""
    options = {"timeout_s": sentiment_client.LONGEST_S, "patience_s": math.inf}
    assert classify(service.url, "love", options).tokens == 3


def test_retry_after() -> None:
    """The header is a number of seconds; None if it is none or too long to wait."""
    never = dict.fromkeys(["soon", "inf", "nan", "1e10", "Fri, 31 Dec 9999 23:59:59 GMT"])
    for value, seconds in ({"7": 7, "0.5": 0.5, "-1": 0} | never).items():
        assert sentiment_client._retry_after_s(value) == seconds


def test_backoff_doubles_with_full_jitter() -> None:
    """A pause is random between 0 and a limit that doubles with each attempt."""
    error, client = ConnectionFailed("", code="connection_failed"), Client(timeout_s=1_000)
    for attempts in range(1, sentiment_client.MAX_ATTEMPTS):
        pauses = [client._pause_s(error, attempts, time.monotonic()) or 0 for _ in range(300)]
        most = 0.1 * 2 ** (attempts - 1)
        assert 0 <= min(pauses) < 0.1 * most
        assert 0.9 * most < max(pauses) <= most


def _patient(*, met: bool = True) -> Client:
    client = Client(timeout_s=5.0, patience_s=60.0)
    client._has_answered = met
    return client


def test_how_long_a_patient_client_waits() -> None:
    """``patience_s`` for a service that has answered before, a few attempts for another.

    However many attempts there were, a pause is some seconds at most.
    """

    def pause_s(client: Client, error: SentimentError, waited_s: float = 0.0) -> float | None:
        return client._pause_s(error, 2_000, time.monotonic() - waited_s)

    absent = ConnectionFailed("", code="connection_failed")
    late = SentimentError("", status=504, code="deadline_exceeded")
    for error in (absent, SentimentError("", status=502), SentimentError("", status=503), late):
        assert 0 <= (pause_s(_patient(), error, 50) or -1) < 7
        assert pause_s(_patient(), error, 60) is None
        assert pause_s(_patient(met=False), error) is None
    assert pause_s(_patient(), SentimentError("", status=401, code="unauthorized")) is None
    assert pause_s(_patient(), SentimentError("", status=504)) is None  # of a proxy
    assert pause_s(Client(), late) is None
    assert pause_s(_patient(), ConnectionFailed("", code="timed_out")) is None
    limited = SentimentError("", status=429, code="rate_limited", retry_after_s=3_500)
    for client in (_patient(), _patient(met=False)):
        assert 3_500 <= (pause_s(client, limited, 7_000) or 0) < 3_510


@pytest.mark.parametrize("patience_s", [0.0, 20.0])
@pytest.mark.parametrize("code", sorted(sentiment_client.PASSING))
def test_errors_that_say_nothing_of_their_texts(
    classify: Call, monkeypatch: pytest.MonkeyPatch, code: str, patience_s: float
) -> None:
    """A patient client sends such texts again, alone, until they have results; others tell them."""
    monkeypatch.setattr(sentiment_client, "FIRST_BACKOFF_S", 0.001)

    class Late(Server):
        def answer(self, body: Any) -> tuple[int, dict[str, str], bytes]:
            *_, content = super().answer(body)
            late = {"error": {"code": code, "message": "later"}}
            results = json.loads(content)["results"]
            if body["inputs"] == ["xxx"] and len(self.seen) < 4:
                results = [late]
            results[1:3] = [late for _ in results[1:3]]
            return _answer(results)

    server = Late([])
    with _listening(server) as url:
        outcomes = classify(url, ["x", "xx", "xxx", ""], {"patience_s": patience_s})
    if patience_s:
        assert [prediction.tokens for prediction in outcomes] == [1, 2, 3, 0]
        sent = [body["inputs"] for _, body in server.seen]
        assert sent == [["x", "xx", "xxx", ""], ["xx", "xxx"], ["xxx"], ["xxx"]]
    else:
        assert outcomes[1] == outcomes[2] == ItemError(code, "later")


PINNED = ModelInfo("tiny", "abc", "int8", ("negative", "positive"), digest="1" * 64)


@pytest.mark.parametrize(
    ("change", "labels"),
    [
        ({"name": "large"}, PINNED.labels),
        ({"precision": "fp32"}, PINNED.labels),
        ({"digest": "2" * 64}, PINNED.labels),
        ({}, ("bad", "good")),
        ({}, PINNED.labels),
    ],
)
@pytest.mark.parametrize("texts", ["love", ["love", "it"]])
def test_the_answer_of_another_model(
    texts: str | list[str], change: dict[str, Any], labels: tuple[str, ...]
) -> None:
    """Texts for one of ``models()`` get an error that names both, if another model answers."""
    results = [RESULT] if isinstance(texts, str) else [RESULT] * 2
    served = ModelInfo(**MODEL | change, labels=labels)
    server = Server([_answer(results, MODEL | change, labels)])
    with _listening(server) as url, Client(url) as client:
        if served == PINNED:
            client.classify(texts, model=PINNED)
        else:
            with pytest.raises(SentimentError) as raised:
                client.classify(texts, model=PINNED)
            assert raised.value.code == "model_changed"
            assert raised.value.detail == f"the service now serves {served}, not {PINNED}"
    assert [body["model"] for _, body in server.seen] == ["tiny"]
    shown = "tiny (digest 111111111111, revision abc, int8, labels negative, positive)"
    assert str(PINNED) == shown


@pytest.mark.parametrize(("changes", "requests"), [([1], 7), ([1, 5], 11), (range(1, 1000), None)])
def test_the_results_of_one_call_are_of_one_model(
    classify: Call, changes: Sequence[int], requests: int | None
) -> None:
    """If the service changes its model between two batches, the client begins again.

    A service that changes it again and again, as replicas of two models, is an error that names
    both.
    """

    class Changing(Server):
        def answer(self, body: Any) -> tuple[int, dict[str, str], bytes]:
            """With the digest and the score of the model that is served after so many requests."""
            age = sum(len(self.seen) > change for change in changes)
            results = [RESULT | {"score": age / 10}] * len(body["inputs"])
            return _answer(results, MODEL | {"digest": str(age) * 64})

    server = Changing([])
    options = {"batch_size": 2, "concurrency": 1}
    with _listening(server) as url:
        if requests is None:
            with pytest.raises(SentimentError, match="the service now serves tiny"):
                classify(url, ["love"] * 9, options)
            return
        results = classify(url, ["love"] * 9, options)
    assert {*results.scores} == {len(changes) / 10}
    assert results[:2].model.digest == str(len(changes)) * 64
    assert len(server.seen) == requests


def test_a_table_of_a_model_that_has_changed_since() -> None:
    """The columns are those of the model that answered, not of the one that is listed later."""
    result = RESULT | {"scores": {"bad": 0.1, "good": 0.9}}
    answer = _answer([result], MODEL | {"revision": None}, ["bad", "good"])
    listed = json.dumps({"models": [asdict(PINNED)]}).encode()
    server = Server([answer, (200, {"content-type": "application/json"}, listed)])
    with _listening(server) as url, Client(url) as client:
        table = client.add_columns({"text": ["love"]})
        assert client.classify([]).model is None
    assert [name for name in table if name.startswith("score_")] == ["score_bad", "score_good"]


MISSING = [None, float("nan"), np.float32("nan"), np.datetime64("NaT"), Decimal("NaN")]
MISSING += [pd.NA, pd.NaT]
NO_TEXTS: list[Any] = [3, np.int64(3), b"love", ["love"], object()]
NO_PAIRS: list[Any] = [
    *({"text": text} for text in (float("nan"), {1})),
    {"text": "love", "text_pair": 3},
    {"text": "love", "aspect": "love"},
    {"content": "love"},
    {},
]


def test_what_is_no_text_fails_alone(service: Process, classify: Call, bundle: Path) -> None:
    """Missing values and what is no text or pair are the errors that `Classifier` gives."""
    no_texts = [*NO_TEXTS, *NO_PAIRS]
    values = ["love", *MISSING, {"text": None}, *no_texts, {"text": "worst"}, np.str_("love")]
    values.append("\ud83d")
    said = "11 of 23 values are neither text nor missing: a text must"
    with pytest.warns(UserWarning, match=said):
        outcomes = classify(service.url, values, {"batch_size": 4})
    codes = ["empty_text"] * (len(MISSING) + 1) + ["invalid_request"] * len(no_texts)
    expected = ["positive", *codes, "negative", "positive", "invalid_request"]
    assert [one.code or one.label for one in outcomes] == expected
    assert outcomes[1] == ItemError("empty_text", "there is no text")
    with Classifier(bundle, runners=1, threads=1) as classifier, pytest.warns(match=said):
        assert outcomes.errors == classifier.classify(values).errors


def test_nothing_is_sent_without_a_text(classify: Call) -> None:
    """Of no texts, of missing values, or of a single one, whose code is that in a column."""
    server = Server([])
    with _listening(server) as url:
        assert classify(url, [], {}) == []
        assert {one.code for one in classify(url, MISSING, {"batch_size": 3})} == {"empty_text"}
        for value in (*MISSING, *NO_TEXTS[:3], *NO_PAIRS):
            code = "empty_text" if any(value is one for one in MISSING) else "invalid_request"
            with pytest.raises(SentimentError) as raised:
                classify(url, value, {})
            assert raised.value.code == code
    assert not server.seen


def test_columns_of_pandas_and_arrow(service: Process, classify: Call) -> None:
    """Columns are sequences of texts; a table is refused."""
    texts = ["love", None, "worst"]
    for dtype in ("object", "str", "string", "category"):
        outcomes = classify(service.url, pd.Series(texts, dtype=dtype, index=[1, 1, 1]), {})
        assert [one.label for one in outcomes] == ["positive", None, "negative"]
    outcomes = classify(service.url, pa.array(texts), {})
    assert [one.label for one in outcomes] == ["positive", None, "negative"]
    bad = pa.array([b"love", b"caf\xe9", None], pa.binary()).view(pa.string())
    codes = [one.code for one in classify(service.url, bad, {})]
    assert codes == [None, "invalid_request", "empty_text"]  # a text that is not UTF-8 fails alone
    with pytest.raises(TypeError, match=r"list.* holds no texts"):
        classify(service.url, pa.ListArray.from_arrays([0, 3], bad), {})
    with pytest.raises(TypeError, match="one column"):
        classify(service.url, pd.DataFrame({"text": texts}), {})


async def _added(url: str, *table: Any, **options: Any) -> Any:
    async with AsyncClient(url) as client:
        return await client.add_columns(*table, **options)


@pytest.mark.parametrize("is_async", [False, True])
def test_columns_of_results_beside_a_table(
    service: Process, bundle: Path, *, is_async: bool
) -> None:
    """Those that `Classifier.add_columns` adds: its tests have every kind of table."""

    def add_columns(*table: Any, **options: Any) -> Any:
        if is_async:
            return asyncio.run(_added(service.url, *table, **options))
        with Client(service.url) as client:
            return client.add_columns(*table, **options)

    class LazyBatch(UserDict[str, Any]):  # as datasets has it, which is not installed here
        pa_table = pa.table({"text": [None]})

    with Classifier(bundle, runners=1, threads=1) as classifier:
        for texts in (["love", None, "worst", ""], [None], []):
            frame = pd.DataFrame({"text": texts, "label": texts}, [7] * len(texts), dtype=object)
            made, ours = add_columns(frame), classifier.add_columns(frame)
            pd.testing.assert_frame_equal(made.drop(columns="error"), ours.drop(columns="error"))
            assert [*made["error"].str.split(":").str[0]] == [*ours["error"].str.split(":").str[0]]
    named = add_columns({"tweet": ["love"], "my_score": [1]}, "tweet", prefix="my_")
    assert [*named][2:4] == ["my_label", "predicted_my_score"]
    assert add_columns(LazyBatch()).schema.field("label").type == pa.string()
    with pytest.raises(ValueError, match="no column 'text'; its columns: 'tweet'"):
        add_columns({"tweet": ["a"]})


def test_results_are_columns(service: Process, classify: Call, bundle: Path) -> None:
    """They are those of `Classifier`, with the index of the column and the model that answered."""
    texts = pd.Series(["love", "", "worst"], index=[4, 4, 5])
    results = classify(service.url, texts, {})
    with Classifier(bundle, runners=1, threads=1) as classifier:
        ours = classifier.classify(texts)
    pd.testing.assert_frame_equal(results.to_frame(), ours.to_frame())
    assert type(results) is type(ours)
    assert results.model == ours.model


def test_processes_that_are_not_forked_can_share_a_client() -> None:
    """A pool sends it to them with its key and its other options."""
    server = Server([])
    with _listening(server) as url, get_context("spawn").Pool(1) as pool:
        client = Client(url, api_key="s3cret", timeout_s=7.0, batch_size=3, concurrency=1)
        (results,) = pool.map(client.classify, [["x", "xx", "xxx", "xxxx"]])
    assert [one.tokens for one in results] == [1, 2, 3, 4]
    assert [len(body["inputs"]) for _, body in server.seen] == [3, 1]
    (headers, _), *_ = server.seen
    assert headers["authorization"] == "Bearer s3cret"
    assert 0 < int(headers["x-request-timeout-ms"]) <= 7000


def test_threads_go_on_after_the_main_thread(service: Process) -> None:
    """Another thread, and what ``atexit`` calls, still get their results."""
    code = """
import atexit, sys, threading
from sentiment_client import Client
client = Client(sys.argv[1])
def go_on():
    threading.main_thread().join()
    print([one.label for one in client.classify(["love", "worst"])], flush=True)
atexit.register(lambda: print([one.label for one in client.classify(["worst"])]))
threading.Thread(target=go_on).start()
"""
    done = run_program(sys.executable, "-c", code, service.url)
    assert done.stdout.splitlines() == ["['positive', 'negative']", "['negative']"], done.stderr


ONE_BY_ONE: dict[type, str] = {
    Client: "[client.classify(text).label for text in texts]",
    AsyncClient: "asyncio.run(one_by_one(texts))",
}


@pytest.mark.parametrize("client", ONE_BY_ONE)
def test_forked_processes_have_connections_of_their_own(service: Process, client: type) -> None:
    """Each gets the results of its own texts, and the process that they come from does so, too."""
    code = f"""
import asyncio, multiprocessing, sys
from sentiment_client import AsyncClient, Client
client = {client.__name__}(sys.argv[1])
async def one_by_one(texts):
    return [(await client.classify(text)).label for text in texts]
def labels(texts):
    return {ONE_BY_ONE[client]}
def fork():
    with multiprocessing.get_context("fork").Pool(3, maxtasksperchild=1) as pool:
        print([{{*each}} for each in pool.map(labels, [["love"] * 50, ["worst"] * 50] * 2, 1)])
async def main():
    await client.classify("love")
    fork()
    print(await one_by_one(["worst"]))
if isinstance(client, AsyncClient):
    asyncio.run(main())
else:
    client.classify("love")
    fork()
    print(labels(["worst"]))
"""
    done = run_program(sys.executable, "-c", code, service.url)
    mine = "[{'positive'}, {'negative'}, {'positive'}, {'negative'}]"
    assert done.stdout.splitlines() == [mine, "['negative']"], done.stderr


def test_event_loops_have_connections_of_their_own(service: Process) -> None:
    """A client of a module works in one loop after the other, and in several at the same time.

    When it is closed, it is closed for all.
    """
    code = """
import asyncio, sys
from concurrent.futures import ThreadPoolExecutor
from sentiment_client import AsyncClient
client = AsyncClient(sys.argv[1])
async def labels(rounds):
    texts = ["love", "worst"] * 10
    for _ in range(rounds):
        predictions = await asyncio.gather(*map(client.classify, texts))
        assert [one.label for one in predictions] == ["positive", "negative"] * 10
    return rounds
def run(rounds):
    return asyncio.run(labels(rounds))
print([run(2) for _ in range(4)])
with ThreadPoolExecutor(4) as pool:
    print([*pool.map(run, [5] * 8)])
asyncio.run(client.close())
try:
    run(1)
except RuntimeError as error:
    print(error)
"""
    done = run_program(sys.executable, "-c", code, service.url)
    assert done.stdout.splitlines() == [
        "[2, 2, 2, 2]",
        "[5, 5, 5, 5, 5, 5, 5, 5]",
        "Cannot send a request, as the client has been closed.",
    ], done.stderr


@pytest.mark.parametrize("client", [Client, AsyncClient])
@pytest.mark.parametrize(
    "texts", ["good", b"good", {"text": "good"}, pd.DataFrame({"text": ["a"]})]
)
def test_what_is_not_several_texts_has_no_results_one_by_one(client: Any, texts: Any) -> None:
    """Otherwise its letters would be texts, or the names of its columns."""
    with pytest.raises(TypeError, match=r"takes several texts|a table, or is not in memory"):
        client("http://localhost").classify_iter(texts)


@pytest.mark.parametrize("texts", [None, ["good"], iter(["good"])], ids=["one", "list", "iterator"])
async def test_an_unknown_option_is_refused_with_those_that_there_are(texts: Any) -> None:
    """The error names the public function and the option, and no text has been read."""
    words = r"the options of classify are language, model, overflow, threshold: not \['foo'\]"
    options: dict[str, Any] = {"foo": 1}
    client, asyncio_client = Client("http://localhost"), AsyncClient("http://localhost")
    with pytest.raises(TypeError, match=words):
        client.classify(texts, **options)
    with pytest.raises(TypeError, match=words):
        await asyncio_client.classify(texts, **options)
    if texts is not None:
        with pytest.raises(TypeError, match=words):
            client.classify_iter(texts, **options)
        with pytest.raises(TypeError, match=words):
            asyncio_client.classify_iter(texts, **options)
        assert list(texts) == ["good"]


def _endless(taken: list[int]) -> Iterator[str]:
    for n in range(1_000_000):
        taken.append(n)
        yield "x" * (1 + n % 10)


def test_an_endless_input_is_read_as_it_is_answered() -> None:
    """The client reads only the batches that it sends; the results are in order."""
    taken: list[int] = []
    with _listening(Server([])) as url, Client(url, batch_size=10, concurrency=3) as client:
        results = client.classify_iter(_endless(taken))
        for n in range(95):
            outcome = next(results)
            assert isinstance(outcome, Prediction)
            assert outcome.tokens == 1 + n % 10
        assert len(taken) <= 95 + 4 * 10


async def test_an_endless_input_is_read_as_it_is_answered_async() -> None:
    """The asyncio client does the same; closing the iterator cancels the unanswered batches."""

    class Stuck(Server):
        def answer(self, body: Any) -> tuple[int, dict[str, str], bytes]:
            if body["inputs"][0].startswith("stuck"):
                waited.append(released.wait(30))
            return super().answer(body)

    released, waited = threading.Event(), list[bool]()
    taken: list[int] = []
    with _listening(Stuck([])) as url:
        async with AsyncClient(url, batch_size=10, concurrency=3) as client:
            texts = (f"stuck {t}" if taken[-1] >= 80 else t for t in _endless(taken))
            results = client.classify_iter(texts)
            for n in range(75):
                outcome = await anext(results)
                assert isinstance(outcome, Prediction)
                assert outcome.tokens == 1 + n % 10
            assert len(taken) <= 75 + 4 * 10
            await results.aclose()
            assert asyncio.all_tasks() == {asyncio.current_task()}
        assert not waited  # for those that are stuck
        released.set()


def test_several_batches_are_sent_at_the_same_time(classify: Call) -> None:
    """``concurrency`` batches arrive before the first of them is answered."""

    class Together(Server):
        def answer(self, body: Any) -> tuple[int, dict[str, str], bytes]:
            barrier.wait(30)
            return super().answer(body)

    barrier = threading.Barrier(3)
    with _listening(Together([])) as url:
        outcomes = classify(url, ["x"] * 6, {"batch_size": 1, "concurrency": 3})
    assert len(outcomes) == 6


def _sync_rounds(url: str, calls: int, rounds: int) -> list[Any]:
    with Client(url) as client, ThreadPoolExecutor(calls) as pool:
        return [one for _ in range(rounds) for one in pool.map(client.classify, ["love"] * calls)]


def _async_rounds(url: str, calls: int, rounds: int) -> list[Any]:
    async def call() -> list[Any]:
        async with AsyncClient(url) as client:
            texts = ["love"] * calls
            together = [await asyncio.gather(*map(client.classify, texts)) for _ in range(rounds)]
            return [one for results in together for one in results]

    return asyncio.run(call())


@pytest.mark.parametrize("classify_rounds", [_sync_rounds, _async_rounds])
def test_many_calls_at_a_time_keep_their_connections(
    classify_rounds: Callable[[str, int, int], list[Any]],
) -> None:
    """None is closed as one idle connection too many: another call may have it already.

    That call would fail, or wait on it until its deadline.
    """

    def answer(request: BaseHTTPRequestHandler, body: bytes) -> Answer:
        connections.add(request.client_address)
        together.wait(30)
        return _answer([RESULT])

    connections, together = set[Any](), threading.Barrier(60)
    with listening(answer) as url:
        assert classify_rounds(url, 60, 3) == [POSITIVE] * 180
    assert len(connections) == 60


async def test_the_calls_of_an_event_loop_are_sent_some_at_a_time(
    service: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """httpx holds ``MAX_REQUESTS`` of them, and none fails.

    With more, it would take so much of the event loop's time that all of them end too late.
    """
    send, held, most = httpx.AsyncHTTPTransport.handle_async_request, 0, 0

    async def counted(transport: httpx.AsyncHTTPTransport, request: httpx.Request) -> Any:
        nonlocal held, most
        held, most = held + 1, max(most, held + 1)
        try:
            return await send(transport, request)
        finally:
            held -= 1

    monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", counted)
    async with AsyncClient(service.url) as client:
        predictions = await asyncio.gather(*map(client.classify, ["love", "worst"] * 125))
    assert [one.label for one in predictions] == ["positive", "negative"] * 125
    assert most == sentiment_client.MAX_REQUESTS


async def _after(waited_s: float, url: str, **options: Any) -> Prediction:
    """The result of a call that finds all places taken, and has one after so many seconds."""
    async with AsyncClient(url, **options) as client:
        _, places = client._connections()
        for _ in range(sentiment_client.MAX_REQUESTS):
            await places.acquire()
        call = asyncio.create_task(client.classify("love"))
        await asyncio.wait([call], timeout=waited_s)
        places.release()
        return await call


async def test_a_call_that_waits_to_be_sent() -> None:
    """That is of its time: the service has less of it, and in the end it is over.

    A patient client waits, as each attempt has its own time.
    """
    server = Server([])
    with _listening(server) as url:
        assert await _after(0.2, url, timeout_s=20.0) == POSITIVE
        (headers, _) = server.seen.pop()
        assert 10_000 < int(headers["x-request-timeout-ms"]) <= 19_800
        with pytest.raises(ConnectionFailed) as raised:
            await _after(30, url, timeout_s=0.1)
        assert server.seen == []
        assert await _after(0.2, url, timeout_s=20.0, patience_s=0.1) == POSITIVE
        (headers, _) = server.seen.pop()
        assert int(headers["x-request-timeout-ms"]) == 20_000
    assert raised.value.code == "timed_out"


def test_the_list_of_models(service: Process) -> None:
    """Each model has its name, precision and labels, in the order of the scores."""
    with Client(service.url) as client:
        (model,) = client.models()
    assert (model.name, model.precision) == ("tiny", "fp32")
    assert model.labels == ("negative", "neutral", "positive")
