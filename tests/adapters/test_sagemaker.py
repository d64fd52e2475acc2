"""SageMaker's routes, and the forms of the containers that share them."""

import json
from typing import Any

from fastapi.testclient import TestClient

from tests.conftest import Serve
from tests.support.serving import metric

KEY = "a-key-for-tests"


def _post(client: TestClient, content: str | bytes, given: str, accept: str = "*/*") -> Any:
    headers = {"content-type": given, "accept": accept}
    return client.post("/invocations", content=content, headers=headers)


def test_ping_is_empty_and_needs_no_key(serve: Serve) -> None:
    """SageMaker sends no key to /ping and /execution-parameters; /invocations needs one."""
    client = serve(api_keys=KEY)
    ping = client.get("/ping")
    assert (ping.status_code, ping.content) == (200, b"")
    assert client.get("/execution-parameters").status_code == 200
    body = {"inputs": "love"}
    assert client.post("/invocations", json=body).status_code == 401
    headers = {"authorization": f"Bearer {KEY}"}
    assert client.post("/invocations", json=body, headers=headers).status_code == 200


def test_bad_lines_are_counted(client: TestClient) -> None:
    """Each bad line counts as a text that failed."""
    answer = _post(client, '"love"\n{"text": 1}\n{"text": "it"\n', "application/jsonlines")
    assert [("error" in json.loads(line)) for line in answer.text.splitlines()] == [
        False,
        True,
        True,
    ]
    assert metric(client, "sentiment_texts_total", model="tiny", outcome="invalid_request") == 2


def test_records_are_classified_in_groups(serve: Serve) -> None:
    """More records than the queue takes at once are answered, in their order."""
    client = serve(max_queue_tokens=256)  # one request may have 128 tokens: 8 of these texts
    content = "\n".join(["love " * 14, "worst", "it"] * 30)
    labels = [line.split(",")[0] for line in _post(client, content, "text/csv").text.splitlines()]
    assert labels == ["positive", "negative", "neutral"] * 30


def test_the_limit_of_a_body_holds_for_records(serve: Serve) -> None:
    """A body of records has the same limit as any other."""
    answer = _post(serve(max_body_bytes=200), "x" * 300, "text/csv")
    assert answer.status_code == 413
    assert "300 bytes; at most 200" in answer.json()["detail"]


def test_a_request_out_of_time_fails_as_a_whole(gate: Any, serve: Serve) -> None:
    """SageMaker sends a failed request again; an error in a line would be taken for its answer."""
    client = serve(deadline_ms=50)
    gate.close()
    answer = _post(client, "love\nit", "text/csv")
    assert (answer.status_code, answer.json()["code"]) == (504, "deadline_exceeded")


def test_a_text_that_cannot_be_computed_fails_alone(client: TestClient) -> None:
    """Its line has the code, because no other try would help."""
    answer = _post(client, "love\nnan", "text/csv").text.splitlines()
    assert answer[1] == ",,inference_failed"
