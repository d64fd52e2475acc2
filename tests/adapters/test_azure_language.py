"""Azure Language's two routes, with the bodies that its clients send.

``make platform-check`` calls them with azure-ai-textanalytics and Azure's clients for JavaScript.
"""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.adapters.test_documents import MIXED

V31 = "/text/analytics/v3.1/sentiment"
LATER = "/language/:analyze-text"


def _later(client: TestClient, documents: Any, **parameters: Any) -> Any:
    """What azure-ai-textanalytics 5.4 sends."""
    body = {
        "kind": "SentimentAnalysis",
        "analysisInput": {"documents": documents},
        "parameters": {"stringIndexType": "UnicodeCodePoint", **parameters},
    }
    path = f"{LATER}?showStats=true&api-version=2023-04-01"
    return client.post(path, json=body)


def test_a_document_has_what_azures_clients_read(client: TestClient) -> None:
    """Both routes have the same results, in the envelope of each."""
    documents = [{"id": "a", "text": MIXED, "language": "en"}]
    native = client.post("/classify", json={"inputs": MIXED, "split": "sentences"}).json()
    sentences = [one["scores"] for one in native["results"][0]["sentences"]]
    later = _later(client, documents).json()
    query = (
        "showStats=true&opinionMining=false&stringIndexType=UnicodeCodePoint&model-version=latest"
    )
    earlier = client.post(f"{V31}?{query}", json={"documents": documents}).json()
    assert later == {"kind": "SentimentAnalysisResults", "results": earlier}
    assert earlier == {
        "documents": [
            {
                "id": "a",
                "sentiment": "mixed",
                "confidenceScores": {
                    label: pytest.approx(sum(one[label] for one in sentences) / 3)
                    for label in ("positive", "neutral", "negative")
                },
                "statistics": {"charactersCount": len(MIXED), "transactionsCount": 1},
                "sentences": [
                    {
                        "sentiment": label,
                        "confidenceScores": scores,
                        "offset": MIXED.index(text),
                        "length": len(text),
                        "text": text,
                    }
                    for label, scores, text in (
                        ("positive", sentences[0], "love love"),
                        ("negative", sentences[1], "worst worst"),
                        ("neutral", sentences[2], "it"),
                    )
                ],
                "warnings": [],
            }
        ],
        "errors": [],
        "modelVersion": "tiny",
        "statistics": {
            "documentsCount": 1,
            "validDocumentsCount": 1,
            "erroneousDocumentsCount": 0,
            "transactionsCount": 1,
        },
    }


def test_a_document_has_the_label_of_azures_rule(client: TestClient) -> None:
    """Neutral sentences do not count beside others; both kinds of others are mixed."""
    texts = ["it\n\nit", "it\n\nlove", "worst\n\nit\n\nit", "love\n\nworst", "love\n\nlove"]
    documents = [{"id": text, "text": text} for text in texts]
    answers = _later(client, documents).json()["results"]["documents"]
    labels = [answer["sentiment"] for answer in answers]
    assert labels == ["neutral", "positive", "negative", "mixed", "positive"]


@pytest.mark.parametrize("path", [V31, LATER])
def test_an_id_that_no_answer_can_hold_is_refused(client: TestClient, path: str) -> None:
    """Half of a surrogate pair is valid JSON, but no UTF-8: the client is to blame."""
    documents = {"documents": [{"id": "\ud800", "text": "love"}]}
    body = {"kind": "SentimentAnalysis", "analysisInput": documents, **documents}
    answer = client.post(
        path, content=json.dumps(body), headers={"content-type": "application/json"}
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "InvalidRequest")
    assert "see place 0" in answer.json()["detail"]
