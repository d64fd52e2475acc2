"""POST /predict against a real server, as the text-embeddings-inference documentation uses it."""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.conftest import Serve
from tests.support.serving import Gate, eventually, installed, metric


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


def test_an_error_has_the_type_that_tei_gives_it(
    serve: Serve, gate: Gate, pool: ThreadPoolExecutor
) -> None:
    """``error_type`` stands beside our members; one who shall come again learns when."""
    client = serve(runners=1, max_queue_tokens=12)

    def ask(text: str, **headers: str) -> tuple[int, str, str, bool]:
        answer = client.post("/predict", json={"inputs": text}, headers=headers)
        said = answer.json()
        retries = "retry-after" in answer.headers
        return answer.status_code, said["error_type"], said["code"], retries

    assert ask("nan") == (500, "Backend", "inference_failed", False)
    gate.close()
    late = ask("love", **{"x-request-timeout-ms": "100"})
    assert late == (504, "Backend", "deadline_exceeded", False)
    for _ in range(2):
        pool.submit(client.post, "/classify", json={"inputs": ["worst", "worst"]})
    eventually(lambda: metric(client, "sentiment_queue_tokens", model="tiny") == 12)
    assert ask("love") == (429, "Overloaded", "overloaded", True)
