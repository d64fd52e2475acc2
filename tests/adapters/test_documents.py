"""What the three clouds' formats share: sentences, labels, places in texts, keys and refusals."""

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sentiment_service.adapters.documents import CLUSTERS, Places

from tests.conftest import Serve
from tests.support.serving import Gate, metric
from tests.support.tiny_bundle import make_bundle

KEY = "a-key/for+tests"
AZURE = "/language/:analyze-text"
GOOGLE = "/v2/documents:analyzeSentiment"
MIXED = "love love\n\nworst worst\n\nit"
Answer = tuple[int, Any]


def azure(client: TestClient, *texts: Any, **headers: str) -> Answer:
    """The answer to documents, in the form of Azure's client."""
    documents = [{"id": str(place), "text": text} for place, text in enumerate(texts)]
    body = {"kind": "SentimentAnalysis", "analysisInput": {"documents": documents}}
    answer = client.post(AZURE, json=body, headers=headers)
    return answer.status_code, answer.json()


def aws(client: TestClient, *texts: Any, **headers: str) -> Answer:
    """The answer to texts, in the form of AWS' clients."""
    named = {"x-amz-target": "Comprehend_20171127.BatchDetectSentiment", **headers}
    answer = client.post("/", json={"TextList": texts, "LanguageCode": "en"}, headers=named)
    return answer.status_code, answer.json()


def google(client: TestClient, *texts: Any, path: str = GOOGLE, **headers: str) -> Answer:
    """The answer to the first text, in the form of Google's client."""
    body = {"document": {"type": 1, "content": texts[0]}, "encodingType": 3}
    answer = client.post(path, json=body, headers=headers)
    return answer.status_code, answer.json()


# Counted by other programs: clusters by grapheme-breaker 0.3.2, which knows Unicode 8.0, as Azure's
# TextElements_v8 does; UTF-16 by JavaScript.
COUNTED = [
    ("plain", 5, 5),
    ("a\r\nb", 3, 4),
    ("e\u0301te\u0301", 3, 5),  # combining marks
    ("日本語", 3, 3),
    ("か\u3099", 1, 2),
    ("👩", 1, 2),
    ("👨\u200d👩\u200d👧", 3, 8),  # joined: one cluster in later versions of Unicode
    ("👍🏽", 2, 4),  # a tone of skin: likewise
    ("🇩🇪🇫🇷", 1, 8),  # two flags: two clusters in later versions
    ("❤\ufe0f", 1, 2),
    ("नमस्ते", 4, 6),
    ("한\u1112\u1161\u11ab", 2, 4),
    ("กำ", 1, 2),
    ("a\u200bb", 3, 3),
    ("🏴\U000e0067\U000e007f", 3, 6),
]


@pytest.mark.parametrize(("text", "clusters", "utf16"), COUNTED, ids=lambda one: ascii(one))
def test_places_are_counted_in_each_unit(text: str, clusters: int, utf16: int) -> None:
    """Emoji with joiners, CJK and combining marks count as the clients of each unit count them."""
    assert Places(text, CLUSTERS).at(len(text)) == clusters
    assert Places(text, "utf-16").at(len(text)) == utf16
    assert Places(text, "characters").at(len(text)) == len(text)
    assert Places(text, "bytes").at(len(text)) == len(text.encode())


def test_places_add_up() -> None:
    """A place behind others has all that is before it, in every unit."""
    text = "".join(one for one, _, _ in COUNTED) + " end"
    for unit in (CLUSTERS, "utf-16", "characters", "bytes"):
        places = Places(text, unit)
        steps = [places.at(place) for place in range(len(text) + 1)]
        assert steps == sorted(steps)
        assert steps[-1] == Places(text, unit).at(len(text))


@pytest.mark.parametrize(
    "headers",
    [
        {"ocp-apim-subscription-key": KEY},
        {"x-goog-api-key": KEY},
        {"authorization": f"Bearer {KEY}"},
        {
            "authorization": f"AWS4-HMAC-SHA256 Credential={KEY}/20261126/us-east-1/comprehend/"
            "aws4_request, SignedHeaders=host;x-amz-date, Signature=0123abcd"
        },
    ],
    ids=lambda headers: "".join(headers.values())[:8],
)
@pytest.mark.parametrize("ask", [azure, aws, google])
def test_a_key_is_where_the_clouds_clients_put_it(
    serve: Serve, ask: Any, headers: dict[str, str]
) -> None:
    """Each header with the key opens each route; another key in it, or none, does not."""
    client = serve(api_keys=KEY)
    assert ask(client, "love", **headers)[0] == 200
    wrong = {name: value.replace(KEY, "another") for name, value in headers.items()}
    assert ask(client, "love", **wrong)[0] == 401
    assert ask(client, "love")[0] == 401


def test_a_key_in_the_query(serve: Serve) -> None:
    """Google's ?key= is one of the keys, percent-encoded or not; another one is refused."""
    client = serve(api_keys=KEY)
    for query, status in (
        ("key=a-key%2Ffor%2Btests", 200),
        (f"alt=json&key={KEY}", 200),
        ("key=another", 401),
        ("key=", 401),
        (f"monkey={KEY}", 401),
    ):
        assert google(client, "love", path=f"{GOOGLE}?{query}")[0] == status


def test_a_rate_limit_is_said_in_each_clouds_form(serve: Serve) -> None:
    """429 with Retry-After, which is before any route, has the members of the route's cloud."""
    client = serve(rate_limit="1/day")
    google(client, "love")
    assert azure(client, "love")[1]["error"]["code"] == "429"
    assert aws(client, "love")[1]["__type"] == "TooManyRequestsException"
    assert google(client, "love")[1]["error"]["status"] == "RESOURCE_EXHAUSTED"
    assert int(client.post(GOOGLE, json={}).headers["retry-after"]) > 1


@pytest.mark.parametrize("ask", [azure, aws, google])
def test_only_models_of_sentiment_answer(serve: Serve, tmp_path: Path, ask: Any) -> None:
    """Another model's labels are refused by name; so are labels that do not exclude each other."""
    kinds: dict[str, Any] = {
        "moods": {"labels": ["joy", "anger", "fear"]},
        "several": {"problem_type": "multi_label_classification"},
    }
    for name, options in kinds.items():
        model = make_bundle(tmp_path / name, name=name, **options)
        status, problem = ask(serve(model=(model,)), "love")
        assert status == 400
        assert f"{name} has others, or several; ask POST /classify" in problem["detail"]


def test_a_model_without_neutral_answers(serve: Serve, tmp_path: Path) -> None:
    """Its score of neutral is 0 in each cloud's form."""
    two = make_bundle(tmp_path / "two", outputs=2, labels=["negative", "positive"])
    client = serve(model=(two,))
    (document,) = azure(client, "worst")[1]["results"]["documents"]
    assert document["confidenceScores"]["neutral"] == 0
    (result,) = aws(client, "worst")[1]["ResultList"]
    assert result["SentimentScore"]["Neutral"] == 0
    assert google(client, "worst")[1]["documentSentiment"]["score"] < 0


@pytest.mark.parametrize("ask", [azure, aws, google])
def test_documents_are_counted_and_limited_as_texts(serve: Serve, ask: Any) -> None:
    """Metrics count each document once, whatever its sentences; limits of texts hold."""
    client = serve(max_text_chars=100, max_texts=3)
    texts = [MIXED, "", "x" * 101] if ask is not google else [MIXED]
    assert ask(client, *texts)[0] == 200
    counted = {
        outcome: metric(client, "sentiment_texts_total", model="tiny", outcome=outcome)
        for outcome in ("ok", "empty_text", "text_too_long")
    }
    bad = float(ask is not google)
    assert counted == {"ok": 1, "empty_text": bad, "text_too_long": bad}
    if ask is not google:
        status, problem = ask(client, *["it"] * 4)
        assert (status, problem["code"]) == (400, "too_many_texts")


@pytest.mark.parametrize("ask", [azure, aws, google])
def test_what_the_service_failed_at_is_tried_again(client: TestClient, ask: Any) -> None:
    """Where no document has a result and the service is to blame, the whole request fails."""
    status, problem = ask(client, "nan", "")
    assert (status, problem["code"]) == (500, "inference_failed")


@pytest.mark.parametrize("ask", [azure, aws, google])
def test_a_late_sentence_is_late(serve: Serve, gate: Gate, ask: Any) -> None:
    """Where the text has a result and a sentence none in time, it is 504, and its cause counts."""
    client = serve(cache_mb=1)
    client.post("/classify", json={"inputs": MIXED})
    gate.close()
    status, problem = ask(client, MIXED, **{"x-request-timeout-ms": "50"})
    assert (status, problem["code"]) == (504, "deadline_exceeded")
    counted = {"status": "504", "outcome": "client_deadline"}
    assert metric(client, "sentiment_http_requests_total", **counted) == 1


def test_sentences_count_against_the_limits(serve: Serve) -> None:
    """Many sentences in few documents are refused as the same number of texts would be."""
    client = serve(max_queue_tokens=256)
    assert azure(client, "love\n\n" * 100)[0] == 400
