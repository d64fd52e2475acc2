"""Google Natural Language's two versions, with the bodies that its client sends over REST.

``make platform-check`` calls them with google-cloud-language.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.adapters.test_documents import MIXED
from tests.conftest import Serve
from tests.support.serving import Gate, eventually, metric

V1, V2 = (f"/{version}/documents:analyzeSentiment" for version in ("v1", "v2"))
QUERY = "?$alt=json%3Benum-encoding%3Dint"


def _ask(client: TestClient, document: Any, path: str = V2, **body: Any) -> Any:
    return client.post(path + QUERY, json={"document": document, **body})


def test_a_document_has_what_googles_client_reads(client: TestClient) -> None:
    """The score is the polarity of the text; the magnitude adds up those of its sentences."""
    (native,) = client.post("/classify", json={"inputs": MIXED, "split": "sentences"}).json()[
        "results"
    ]
    polarities = [sentence["polarity"] for sentence in native["sentences"]]
    both = {
        "documentSentiment": {
            "score": native["polarity"],
            "magnitude": pytest.approx(sum(map(abs, polarities))),
        },
        "sentences": [
            {
                "text": {"content": text, "beginOffset": MIXED.index(text)},
                "sentiment": {"score": polarity, "magnitude": abs(polarity)},
            }
            for text, polarity in zip(MIXED.split("\n\n"), polarities, strict=True)
        ],
    }
    document = {"type": 1, "content": MIXED}
    first = _ask(client, {**document, "language": "en"}, V1, encodingType=3).json()
    assert first == {**both, "language": "en"}
    second = _ask(client, {**document, "languageCode": "de"}, encoding_type="UTF32").json()
    assert second == {**both, "languageCode": "de", "languageSupported": True}


def test_an_endpoint_may_end_with_a_slash(serve: Serve) -> None:
    """Google's client then asks for //v2/…: it gets the same answers, errors among them."""
    client = serve(root_path="/sentiment")
    for method, status in (("analyzeSentiment", 200), ("analyzeEntities", 404)):
        path = f"/v2/documents:{method}"
        answer = _ask(client, {"content": "love"}, f"/sentiment/{path}")
        assert answer.status_code == status
        same = _ask(client, {"content": "love"}, path).json()
        assert answer.json() | {"request_id": ""} == same | {"request_id": ""}


def test_an_overloaded_service_is_unavailable(
    gate: Gate, serve: Serve, pool: ThreadPoolExecutor
) -> None:
    """Google's client sends a request again after 503, and not after 429."""
    client = serve(runners=1, max_queue_tokens=12)
    document = {"content": "love"}
    gate.close()
    running = pool.submit(_ask, client, document)
    assert gate.reached.wait(30)
    waiting = [pool.submit(_ask, client, document) for _ in range(2)]
    eventually(lambda: metric(client, "sentiment_queue_tokens", model="tiny") == 12)
    refused = _ask(client, document)
    assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")
    assert refused.json()["error"]["status"] == "UNAVAILABLE"
    assert int(refused.headers["retry-after"]) >= 1
    gate.open.set()
    assert [one.result().status_code for one in (running, *waiting)] == [200, 200, 200]
