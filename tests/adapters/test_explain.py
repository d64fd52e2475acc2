"""POST /explain: how much each word contributes to the label."""

import math

import pytest
from fastapi.testclient import TestClient
from sentiment_service.adapters.explain import without, words_of

from tests.conftest import Serve
from tests.support.serving import metric


def _positive(words: dict[str, int]) -> float:
    """The tiny model's score of positive, for a text with so many of these words."""
    love, worst, other = (words.get(word, 0) for word in ("love", "worst", "other"))
    logits = [4 * worst - love, 0.5 * other, 4 * love - worst]
    return math.exp(logits[2]) / sum(map(math.exp, logits))


def test_each_word_has_its_signed_contribution(client: TestClient) -> None:
    """A contribution is how much lower the score is without the word; it may be negative.

    Each item has the word and its position in characters, so a client need not cut the text.
    """
    text = " 😍  love love\tworst "
    answer = client.post("/explain", json={"inputs": text})
    document = answer.json()
    assert answer.status_code == 200
    assert (document["label"], document["tokens"], document["truncated"]) == ("positive", 6, False)
    whole = _positive({"love": 2, "worst": 1, "other": 1})
    assert document["score"] == pytest.approx(whole)
    words = document["words"]
    assert [word["word"] for word in words] == ["😍", "love", "love", "worst"]
    assert [text[w["start"] : w["end"]] for w in words] == [w["word"] for w in words]
    without_love = whole - _positive({"love": 1, "worst": 1, "other": 1})
    assert [w["contribution"] for w in words] == pytest.approx(
        [
            whole - _positive({"love": 2, "worst": 1}),
            without_love,
            without_love,
            whole - _positive({"love": 2, "other": 1}),
        ],
        abs=1e-6,
    )
    assert words[1]["contribution"] > 0 > words[3]["contribution"]
    assert answer.headers["server-timing"].startswith("tokenize;dur=")


def test_an_only_word_is_measured_by_knowing_nothing(client: TestClient) -> None:
    """The contribution of an only word is the difference to all labels being equally likely."""
    document = client.post("/explain", json={"inputs": "love"}).json()
    (word,) = document["words"]
    assert word["contribution"] == pytest.approx(_positive({"love": 1}) - 1 / 3)


def test_an_explanation_is_the_same_each_time(serve: Serve) -> None:
    """The explanation is the same each time, even in batches of another size."""
    text = "love this worst thing of all things I love"
    first, second = (
        serve(max_batch_tokens=tokens).post("/explain", json={"inputs": text}).json()
        for tokens in (16, 512)
    )
    assert first == second


def test_one_space_goes_with_its_word() -> None:
    """One space goes with a removed word, because some tokenizers would see a double space."""
    assert [*map(without, words_of("a b\nc"))] == ["b\nc", "a\nc", "a b"]


def test_what_has_no_logits_is_not_explained(client: TestClient) -> None:
    """A text without finite logits gets a problem with the reason."""
    problem = client.post("/explain", json={"inputs": "nan"}).json()
    assert problem["code"] == "inference_failed"
    assert "no finite logits" in problem["detail"]


def test_only_the_text_is_counted(client: TestClient) -> None:
    """Metrics count one text and one prediction, and not the variants with a word left out."""
    client.post("/explain", json={"inputs": "love the day"})
    client.post("/explain", json={"inputs": " "})
    assert metric(client, "sentiment_texts_total", model="tiny", outcome="ok") == 1
    assert metric(client, "sentiment_texts_total", model="tiny", outcome="empty_text") == 1
    labels = {"model": "tiny", "label": "positive"}
    assert metric(client, "sentiment_predictions_total", **labels) == 1
