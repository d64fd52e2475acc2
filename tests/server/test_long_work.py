"""Very long requests: other requests are answered meanwhile, and the work ends in time."""

import gzip
import json
import threading
import time
import zlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from sentiment_service.engine.classifier import MOST_SCORES
from sentiment_service.engine.text.input_tokenizer import InputTokenizer
from sentiment_service.errors import InvalidRequest
from sentiment_service.requests.validation import parse

from tests.conftest import Serve, served
from tests.support.raw_http import connect, post
from tests.support.serving import Process, eventually
from tests.support.tiny_bundle import different_texts, make_bundle

# sentencex needs two seconds for each of these texts, if it gets the whole of it.
NASTY = {"inputs": ["。」" * 25_000] * 6, "split": "sentences"}
NASTY_BODY = json.dumps(NASTY, ensure_ascii=False).encode()


# No request is refused for its number of tokens.
service = served("--max-queue-tokens", "10000000")


def _spent_until_idle(process: Process) -> float:
    """The CPU seconds that the process spends until it is idle."""
    before = process.cpu_seconds()

    def is_idle() -> bool:
        seen = process.cpu_seconds()
        time.sleep(0.3)
        return process.cpu_seconds() - seen < 0.05

    eventually(is_idle)
    return process.cpu_seconds() - before


def test_sentences_hold_nobody_up_and_end_with_the_deadline(service: Process) -> None:
    """Health answers during sentence splitting; the work ends after the request's 504.

    CPU time of the process is measured, because the machine may be busy.
    """
    answered = [service.cpu_seconds()]
    with (
        httpx2.Client(base_url=service.url, timeout=60) as probing,
        connect(service.port, post(NASTY_BODY, b"x-request-timeout-ms: 300")) as nasty,
    ):
        nasty.settimeout(0)
        answer = b""
        while not answer:
            assert probing.get("/health/live").status_code == 200
            answered.append(service.cpu_seconds())
            try:
                answer = nasty.recv(4096)
            except BlockingIOError:
                time.sleep(0.002)
    assert b" 504 " in answer
    assert max(after - before for before, after in pairwise(answered)) < 0.5
    assert _spent_until_idle(service) < 1


def test_sentences_are_not_looked_for_when_the_client_has_left(service: Process) -> None:
    """Splitting stops when the client leaves; the whole work would take many more seconds."""
    before = service.cpu_seconds()
    with connect(service.port, post(NASTY_BODY)):
        eventually(lambda: service.cpu_seconds() - before > 0.5)
    assert _spent_until_idle(service) < 1.5


@pytest.fixture
def tokenised(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The texts of each call of the tokenizer, which is slowed down."""
    calls: list[list[str]] = []
    encode_batch = InputTokenizer.encode_batch

    def note(tokenizer: InputTokenizer, texts: Sequence[str], **limits: Any) -> Any:
        calls.append(list(texts))
        time.sleep(0.02)
        return encode_batch(tokenizer, texts, **limits)

    monkeypatch.setattr(InputTokenizer, "encode_batch", note)
    return calls


def test_a_short_list_does_not_wait_for_a_long_one(
    serve: Serve, tokenised: list[list[str]]
) -> None:
    """Jobs take turns at the tokenizer, so a short list is done before a long one."""
    client = serve()
    tokenised.clear()
    long, short = ["love " * 400] * 150, ["worst " * 20] * 60

    def send_long() -> None:
        assert client.post("/classify", json={"inputs": long}).status_code == 200

    sending = threading.Thread(target=send_long)
    sending.start()
    eventually(lambda: bool(tokenised))
    assert client.post("/classify", json={"inputs": short}).status_code == 200
    sending.join()
    texts = [text for call in tokenised for text in call]
    assert sorted(texts) == sorted([*long, *short])
    assert texts.index(short[0]) < 140
    assert texts[-1] == long[0]


@pytest.mark.parametrize(
    ("body", "wholes", "most"),
    [
        ({"inputs": ["love " * 400] * 900}, 0, 200_000),
        ({"inputs": "so it is. " * 5_000, "split": "sentences"}, 1, 10_000),
    ],
    ids=["texts", "sentences"],
)
def test_too_many_tokens_are_refused_as_soon_as_they_are_found(
    serve: Serve, tokenised: list[list[str]], body: dict[str, object], wholes: int, most: int
) -> None:
    """Tokenising stops at the limit, for a list of texts and for the sentences of one text."""
    client = serve(max_queue_tokens=2_000)
    tokenised.clear()
    answer = client.post("/classify", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "too_many_texts")
    assert "more than the 1000 tokens" in answer.json()["detail"]
    assert sum(len(text) for call in tokenised[wholes:] for text in call) <= most


@pytest.fixture
def parsed_on(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The name of the thread on which each document was parsed."""
    threads: list[str] = []

    def note(text: str | bytes) -> Any:
        threads.append(threading.current_thread().name)
        return json.loads(text)

    for decoder in ("FAST_DECODER", "STRICT_DECODER"):
        monkeypatch.setattr(
            f"sentiment_service.requests.validation.{decoder}", SimpleNamespace(decode=note)
        )
    return threads


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/classify", {"inputs": ["love"]}),
        ("/invocations", {"text": "love"}),
        ("/explain", {"inputs": "love"}),
        ("/", {"inputs": ["love"]}),
        ("/predict", {"inputs": ["love"]}),
        ("/v1/classify", {"input": ["love"]}),
        (
            "/v2/models/tiny/infer",
            {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["love"]}]},
        ),
    ],
)
def test_long_bodies_are_parsed_off_the_event_loop(
    serve: Serve, parsed_on: list[str], path: str, body: dict[str, object]
) -> None:
    """Every protocol parses long bodies on the tokenizer's thread, short ones on the event loop."""
    client = serve()
    content = json.dumps(body).encode()
    lines = path == "/invocations"
    headers = {"content-type": f"application/json{'lines' if lines else ''}"}
    for filling in (b"", b" " * 100_000):
        answer = client.post(path, content=content + filling, headers=headers)
        assert answer.status_code == 200, answer.text
    assert parsed_on[0] != "tokenizer"
    assert parsed_on[1] == "tokenizer"


@pytest.mark.parametrize(
    "text",
    [
        *(",:[{" * 100_000, '",' * 300_000, '\\",' * 300_000, "\\", '[\\\\"', "\ud800"),
        *("伬," * 100_000, "\u2201," * 300_000),  # their bytes have a comma and a quotation mark
    ],
    ids=[
        *("opening signs", "commas in quotes", "commas behind backslashes"),
        *("a backslash", "backslashes before a quote", "half of a pair"),
        *("a byte of a comma", "a byte of a quote"),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
def test_signs_inside_texts_are_no_json(text: str, encoding: str) -> None:
    """Commas, brackets, quotation marks and backslashes inside texts are read as they are."""
    value = {"inputs": [text, "x" * 200_000]}
    for ensure_ascii in (True, False):
        content = json.dumps(value, ensure_ascii=ensure_ascii).encode(encoding, "surrogatepass")
        assert parse(content, "it") == value


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
@pytest.mark.parametrize(
    "content",
    [
        "[" + "[[]]," * 100_000,
        "[[]]," * 100_000 + "[]",
        "[" + "1.5," * 200_000 + "1]",
        "[" + '"",' * 300_000 + "x",
        '{"a":1},' * 60_000,
        r'["\\",' * 60_000,
    ],
    ids=lambda content: content[:9],
)
def test_what_holds_nearly_nothing_but_signs_is_not_parsed(content: str, encoding: str) -> None:
    """No thread runs while a document is parsed, so one with too many signs is refused before."""
    with pytest.raises(InvalidRequest, match="it has more than 100000 brackets, commas"):
        parse(content.encode(encoding), "it")


@pytest.mark.parametrize(
    ("extra", "inputs"),
    [({}, ["love", "worst", "it"]), ({"split": "sentences"}, ["It is.", "It is. So it is."])],
    ids=["texts", "sentences"],
)
def test_of_many_labels_few_texts_are_accepted(
    tmp_path: Path, serve: Serve, extra: dict[str, str], inputs: list[str]
) -> None:
    """An answer of very many scores would hold the event loop and the memory."""
    names = [f"label{number}" for number in range(MOST_SCORES // 2)]
    client = serve(model=(make_bundle(tmp_path / "many", outputs=len(names), labels=names),))
    assert client.post("/classify", json={"inputs": inputs[:-1], **extra}).status_code == 200
    answer = client.post("/classify", json={"inputs": inputs, **extra})
    assert (answer.status_code, answer.json()["code"]) == (422, "too_many_texts")
    assert "at most 2 are accepted" in answer.json()["detail"]
    assert client.get("/info").json()["limits"]["max_texts"] == 2
    lines = "".join(json.dumps({"text": text}) + "\n" for text in inputs)
    headers = {"content-type": "application/jsonlines"}
    answered = client.post("/invocations", content=lines, headers=headers)
    assert [min(json.loads(line)) for line in answered.text.splitlines()] == ["label"] * len(inputs)


def test_long_answers_are_compressed_beside_the_event_loop(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are answered meanwhile, as the loop's thread compresses only short answers."""
    threads: list[threading.Thread] = []

    def compress(body: bytes, compresslevel: int) -> bytes:
        threads.append(threading.current_thread())
        return zlib.compress(body, compresslevel, wbits=31)

    monkeypatch.setattr(gzip, "compress", compress)
    client = serve()
    for texts in (50, 500):
        inputs = {"inputs": different_texts(texts)}
        answer = client.post("/classify", json=inputs, headers={"accept-encoding": "gzip"})
        assert answer.headers["content-encoding"] == "gzip"
        assert len(answer.json()["results"]) == texts
    on_loop, beside = threads
    assert on_loop is not beside
