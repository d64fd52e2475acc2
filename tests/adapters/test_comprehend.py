"""AWS Comprehend's two operations, with the requests that its clients send.

``make platform-check`` calls them with boto3 and AWS' client for JavaScript.
"""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.conftest import Serve


def _ask(client: TestClient, operation: str, **body: Any) -> Any:
    headers = {
        "content-type": "application/x-amz-json-1.1",
        "x-amz-target": f"Comprehend_20171127.{operation}",
    }
    return client.post("/", json=body, headers=headers)


def _sentiment(client: TestClient, text: str) -> Any:
    return _ask(client, "DetectSentiment", Text=text, LanguageCode="en").json()


def test_a_text_of_one_sentence_has_the_models_scores(client: TestClient) -> None:
    """Without sentences that contradict each other, Mixed is 0 and the rest as from /classify."""
    scores = client.post("/classify", json={"inputs": "love"}).json()["results"][0]["scores"]
    assert _sentiment(client, "love") == {
        "Sentiment": "POSITIVE",
        "SentimentScore": {**{name.capitalize(): s for name, s in scores.items()}, "Mixed": 0.0},
    }


def test_mixed_is_what_the_sentences_say_against_each_other(client: TestClient) -> None:
    """Scores add up to 1, the sentiment has the highest, and more of one kind is less mixed."""
    score = client.post("/classify", json={"inputs": "love"}).json()["results"][0]["score"]
    for text, sentiment, mixed in (
        ("love\n\nworst", "MIXED", score),
        ("love\n\nworst\n\nit", "MIXED", score * 2 / 3),
        ("love\n\nworst" + "\n\nit" * 8, "NEUTRAL", score / 5),
        ("love\n\nlove\n\nlove\n\nworst", "POSITIVE", score / 2),
        ("love\n\nit", "POSITIVE", 0),
    ):
        answer = _sentiment(client, text)
        scores = answer["SentimentScore"]
        assert (answer["Sentiment"], scores["Mixed"]) == (sentiment, pytest.approx(mixed))
        assert sum(scores.values()) == pytest.approx(1)
        assert sentiment == max(scores, key=scores.get).upper()


def test_a_long_text_has_the_name_of_its_exception(client: TestClient) -> None:
    """The clients raise the exception of this name, with our message."""
    answer = _ask(client, "DetectSentiment", Text="x" * 50_001, LanguageCode="en")
    problem = answer.json()
    assert (answer.status_code, problem["__type"]) == (400, "TextSizeLimitExceededException")
    assert "at most 50000" in problem["message"]


@pytest.mark.parametrize(
    ("key", "text", "status"),
    [("a-key-for-tests", "love", 200), ("a-key-for-tests", " ", 400), ("another", "love", 401)],
)
def test_the_request_has_the_id_that_awss_clients_read(
    serve: Serve, key: str, text: str, status: int
) -> None:
    """RequestId of ResponseMetadata: the one of our log, for answers and for errors."""
    client = serve(api_keys="a-key-for-tests")
    client.headers["authorization"] = f"AWS4-HMAC-SHA256 Credential={key}/x, Signature=x"
    answer = _ask(client, "DetectSentiment", Text=text, LanguageCode="en")
    assert answer.status_code == status
    assert answer.headers["x-amzn-requestid"] == answer.headers["x-request-id"]
    assert "x-amzn-requestid" not in client.post("/", json={"inputs": "love"}).headers
