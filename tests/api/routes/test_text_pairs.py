"""Pairs of texts over HTTP, in the forms of the native API, Hugging Face and TEI."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sentiment_service.main import create_app
from sentiment_service.settings.settings import Settings

from tests.conftest import SET_BY_HAND
from tests.support.tiny_bundle import MAX_TOKENS, make_bundle, write_manifest

PAIR = {"text": "love it", "text_pair": "worst"}
# The tiny model adds up the logits of all words: 1 × love, 1 × worst, and 1 × it.
LOGITS = {"negative": 3.0, "neutral": 0.5, "positive": 3.0}
LONG = "love " * 20


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """The tiny model, as if it was trained on pairs."""
    path = make_bundle(tmp_path_factory.mktemp("pairs") / "pairs")
    write_manifest(path, text_pairs=True)
    with TestClient(create_app(Settings(model=(path,), **SET_BY_HAND))) as client:
        yield client


def _classify(client: TestClient, inputs: Any, **options: str) -> Any:
    answer = client.post("/classify", json={"inputs": inputs, **options})
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


def test_a_pair_gets_one_prediction(client: TestClient) -> None:
    """Both texts are computed together; ``tokens`` counts those of both, with special tokens.

    A list of two strings is never a pair.
    """
    (result,) = _classify(client, PAIR)
    assert result["logits"] == LOGITS
    assert (result["tokens"], result["truncated"]) == (6, False)
    assert client.get("/models").json()["models"][0]["text_pairs"] is True
    assert len(_classify(client, ["love it", "worst"])) == 2


def test_texts_and_pairs_share_a_list(client: TestClient) -> None:
    """A text alone, as a string or in an object, and pairs: each in its place, with its error."""
    inputs = ["love", PAIR, {"text": "love"}, {"text": "love", "text_pair": None}]
    inputs += [{"text": "love", "text_pair": " "}, {"text": "love", "text_pair": "x" * 50_000}]
    love, pair, same, again, blank, long = _classify(client, inputs)
    assert love == same == again
    assert pair["logits"] == LOGITS
    assert blank["error"]["code"] == "empty_text"
    assert blank["error"]["message"].startswith("text_pair is empty")
    assert long["error"]["message"] == "the text has 50004 characters; at most 50000 are accepted"


def test_a_long_pair_is_truncated_or_refused(client: TestClient) -> None:
    """The longer text is cut first. A pair is not cut into windows or sentences."""
    long = {"text": LONG, "text_pair": "worst"}
    (result,) = _classify(client, long)
    assert (result["tokens"], result["truncated"]) == (24, True)
    love = MAX_TOKENS - 3 - 1
    assert result["logits"] == {"negative": 4.0 - love, "neutral": 0.0, "positive": 4 * love - 1.0}
    fits, refused = _classify(client, [PAIR, long], overflow="window")
    assert (fits["logits"], fits["windows"]) == (LOGITS, 1)
    assert refused["error"]["code"] == "text_too_long"
    assert "not cut into windows" in refused["error"]["message"]
    (refused,) = _classify(client, [long], overflow="error")
    assert refused["error"]["code"] == "text_too_long"
    split, text = _classify(client, [PAIR, "love. it."], split="sentences")
    assert split["error"]["code"] == "invalid_request"
    assert "not split" in split["error"]["message"]
    assert text["sentences"]


def _labels(rows: Any) -> list[list[str]]:
    return [[one["label"] for one in row] for row in rows]


def test_the_forms_of_other_servers(client: TestClient) -> None:
    """Hugging Face's objects, and TEI's lists in a list, are pairs; TEI's ["a", "b"] is none."""
    pair = ["negative", "positive", "neutral"]
    for path, inputs in (("/", [PAIR] * 2), ("/predict", [["love it", "worst"]] * 2)):
        answer = client.post(path, json={"inputs": inputs})
        assert answer.status_code == 200, answer.text
        assert _labels(answer.json()) == [pair] * 2
    both = client.post("/predict", json={"inputs": [["love"], ["love it", "worst"]]}).json()
    assert _labels(both) == [["positive", "neutral", "negative"], pair]
    assert len(client.post("/predict", json={"inputs": ["love", "worst"]}).json()) == 2
    assert _labels(client.post("/", json={"inputs": PAIR}).json()) == [pair]


def test_lines_of_a_stream_may_be_pairs(client: TestClient) -> None:
    """A line with text_pair is a pair; one whose text_pair is not a string fails alone."""
    lines = [
        {"id": 1, **PAIR},
        {"id": 2, "text": "love"},
        {"id": 3, "text": "love", "text_pair": 1},
    ]
    content = "".join(f"{json.dumps(line)}\n" for line in lines)
    answer = client.post(
        "/classify/stream", content=content, headers={"content-type": "application/x-ndjson"}
    )
    pair, text, bad = map(json.loads, answer.text.splitlines())
    assert pair["logits"] == LOGITS
    assert text["label"] == "positive"
    assert bad["error"]["message"] == "line 3: text_pair must be a string"


def test_a_request_of_many_pairs_is_parsed(client: TestClient) -> None:
    """The limit on values in a body leaves room for as many pairs as a request may have texts."""
    inputs = [{"text": "", "text_pair": ""}] * 1_000
    assert {item["error"]["code"] for item in _classify(client, inputs)} == {"empty_text"}
