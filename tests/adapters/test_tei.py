"""POST /predict against a real server, as the text-embeddings-inference documentation uses it."""

import json
import subprocess
from typing import Any, NoReturn

import pytest
from fastapi.testclient import TestClient
from sentiment_service.errors import (
    DeadlineExceeded,
    InferenceFailed,
    OutOfMemory,
    Overloaded,
    ServiceError,
)

from tests.support.serving import installed


def _labels(answer: Any) -> Any:
    """The labels, in place of the objects that have them."""
    return [_labels(item) if isinstance(item, list) else item["label"] for item in answer]


def _curl(url: str, body: str) -> Any:
    command = [installed("curl", "curl"), "-s", f"{url}/predict", "-X", "POST", "-d", body]
    command += ["-H", "Content-Type: application/json"]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


def test_curl_as_documented(url: str) -> None:
    """One text gets one list, a TEI batch a list of lists; the highest score comes first."""
    one = _curl(url, '{"inputs":"I love you."}')
    assert _labels(one) == ["positive", "neutral", "negative"]
    assert [item["score"] for item in one] == sorted((item["score"] for item in one), reverse=True)
    batch = _curl(url, '{"inputs":[["I love you."], ["worst of all"]]}')
    assert batch[0] == one
    assert _labels(batch)[1] == ["negative", "neutral", "positive"]


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InferenceFailed("no finite logits"), 500, "Backend"),
        (DeadlineExceeded("too late"), 504, "Backend"),
        (OutOfMemory("too large"), 507, "Backend"),
        (Overloaded("full", reason="queue_full", retry_after_s=1.0), 429, "Overloaded"),
    ],
)
def test_an_error_has_the_type_that_tei_gives_it(
    client: TestClient,
    monkeypatch: pytest.MonkeyPatch,
    error: ServiceError,
    status: int,
    kind: str,
) -> None:
    """``error_type`` stands beside our members; one who shall come again learns when."""

    async def fail(*_: object, **__: object) -> NoReturn:
        raise error

    monkeypatch.setattr("sentiment_service.engine.classifier.Classifier.classify", fail)
    answer = client.post("/predict", json={"inputs": "love"})
    assert (answer.status_code, answer.json()["error_type"]) == (status, kind)
    assert (answer.json()["code"], "retry-after" in answer.headers) == (error.code, status == 429)
