"""The routes of Vertex AI, KServe V1 and SageMaker, and the forms that they share."""

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sentiment_service.errors import UserError

from tests.conftest import Serve
from tests.support.serving import metric
from tests.support.tiny_bundle import make_bundle

KEY = "a-key-for-tests"


def test_openai_finds_the_same_model(client: TestClient) -> None:
    """OpenAI's client gets a model from the route that KServe asks."""
    from openai import OpenAI

    openai = OpenAI(base_url="http://testserver/v1", api_key="none", http_client=client)
    assert openai.models.retrieve("tiny").id == "tiny"


def test_predict_of_kserve_takes_post_alone(serve: Serve, bundle: Path, tmp_path: Path) -> None:
    """GET is answered with 405 and the method, and not as if the model was unknown.

    A model may have such a name: then GET describes it.
    """
    client = serve(model=(bundle, make_bundle(tmp_path / "other", name="a:predict")))
    for name in ("tiny", "none"):
        answer = client.get(f"/v1/models/{name}:predict")
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
        assert answer.json()["detail"] == "allowed here: POST"
    assert client.get("/v1/models/none").status_code == 404
    assert client.get("/v1/models/a:predict").json()["id"] == "a:predict"


def test_vertex_chooses_its_routes(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its health route needs no key and is empty; its predict route needs one like any other."""
    monkeypatch.setenv("AIP_HEALTH_ROUTE", "/v1/endpoints/7/deployedModels/8")
    monkeypatch.setenv("AIP_PREDICT_ROUTE", "/v1/endpoints/7/deployedModels/8:predict")
    client = serve(api_keys=KEY)
    health = client.get("/v1/endpoints/7/deployedModels/8")
    assert (health.status_code, health.content) == (200, b"")
    path, body = "/v1/endpoints/7/deployedModels/8:predict", {"instances": ["love"]}
    assert client.post(path, json=body).status_code == 401
    key = {"authorization": f"Bearer {KEY}"}
    (prediction,) = client.post(path, json=body, headers=key).json()["predictions"]
    assert prediction["label"] == "positive"


@pytest.mark.parametrize("path", ["/v2/models/tiny/infer", "/mine"])
def test_a_health_route_opens_no_other_method(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """If it is the path of a route that classifies, that route still needs a key."""
    monkeypatch.setenv("AIP_HEALTH_ROUTE", path)
    monkeypatch.setenv("AIP_PREDICT_ROUTE", "/mine")
    client = serve(api_keys=KEY)
    assert client.get(path).status_code == 200
    assert client.post(path, json={}).status_code == 401


def test_vertex_may_choose_a_route_that_is_there(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Health and predict routes that answer already stay as they are."""
    monkeypatch.setenv("AIP_HEALTH_ROUTE", "/health")
    monkeypatch.setenv("AIP_PREDICT_ROUTE", "/predict")
    client = serve()
    assert client.get("/health").json() == {"status": "ready"}
    assert "predictions" in client.post("/predict", json={"instances": ["love"]}).json()


def test_a_chosen_route_answers_where_a_route_with_a_name_matches(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a key, the health route tells the health and not what the other route would tell."""
    monkeypatch.setenv("AIP_HEALTH_ROUTE", "/v2/models/tiny")
    monkeypatch.setenv("AIP_PREDICT_ROUTE", "/v2/models/tiny/infer")
    client = serve(api_keys=KEY)
    health = client.get("/v2/models/tiny")
    assert (health.status_code, health.content) == (200, b"")
    key = {"authorization": f"Bearer {KEY}"}
    answer = client.post("/v2/models/tiny/infer", json={"instances": ["love"]}, headers=key)
    assert len(answer.json()["predictions"]) == 1


def test_a_predict_route_for_admins_is_refused(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request to a path of a reload would need an admin key; the start fails and says so."""
    monkeypatch.setenv("AIP_PREDICT_ROUTE", "/models/mine/reload")
    with pytest.raises(UserError, match=r"^AIP_PREDICT_ROUTE: /models/mine/reload needs an admin"):
        serve()


@pytest.mark.parametrize(
    ("name", "path"), [("AIP_PREDICT_ROUTE", "/classify"), ("AIP_HEALTH_ROUTE", "/models")]
)
def test_a_route_with_another_purpose_is_refused(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, name: str, path: str
) -> None:
    """The start fails with the variable's name and the path."""
    monkeypatch.setenv(name, path)
    with pytest.raises(UserError, match=f"^{name}: {path} is another route; choose another path"):
        serve()


@pytest.mark.parametrize(
    ("path", "field", "answered"),
    [
        ("/v1/models/tiny:predict", "instances", "predictions"),
        ("/predict", "instances", "predictions"),
        ("/invocations", "instances", "predictions"),
        ("/classify", "inputs", "results"),
        ("/tokenize", "inputs", "results"),
    ],
)
@pytest.mark.parametrize(
    ("missing", "code"),
    [
        (None, "empty_text"),
        ({"text": None}, "empty_text"),
        ({"text": None, "text_pair": "love"}, "invalid_request"),  # the model takes no pairs
    ],
)
def test_a_missing_text_of_a_list_fails_alone(
    client: TestClient, path: str, field: str, answered: str, missing: Any, code: str
) -> None:
    """A null, as tables have it for a missing value, has its error in its place in each form."""
    answer = client.post(path, json={field: ["love", missing, {"text": "love"}]})
    assert answer.status_code == 200, answer.text
    text, error, same = answer.json()[answered]
    assert error["error"]["code"] == code
    assert text == same


@pytest.mark.parametrize("other", [{}, {"x": None}, 1], ids=json.dumps)
def test_what_is_no_text_is_the_error_of_the_request(client: TestClient, other: Any) -> None:
    """An object without a text, or a number, is no missing value but another form."""
    for path, field in (("/v1/models/tiny:predict", "instances"), ("/classify", "inputs")):
        answer = client.post(path, json={field: ["love", other]})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")


@pytest.mark.parametrize(
    ("parameters", "labels"),
    [
        ({"return_all_scores": True}, None),
        ({"return_all_scores": True, "top_k": None}, 3),
        ({"return_all_scores": False}, 1),
        ({"return_all_scores": None}, 1),
    ],
)
def test_no_label_is_left_out_that_was_asked_for(
    client: TestClient, parameters: dict[str, Any], labels: int | None
) -> None:
    """Containers with transformers 4 gave all labels for a parameter that version 5 dropped.

    Alone it is refused, with what to send; false is the best label, and ``top_k`` decides.
    """
    answer = client.post("/invocations", json={"inputs": "love", "parameters": parameters})
    if labels is None:
        assert (answer.status_code, "top_k: null" in answer.json()["detail"]) == (422, True)
    else:
        assert len(answer.json()) == labels


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


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("text/csv, application/json", "text/csv"),
        ("application/x-npy, application/JSON;q=0.5,text/csv", "application/json"),
        ("application/x-npy, */*", "application/jsonlines"),
    ],
)
def test_lines_are_answered_in_the_first_form_that_is_known(
    client: TestClient, accept: str, form: str
) -> None:
    """SageMaker's own library sends a list: all forms that its deserializer reads."""
    answer = _post(client, '"love"', "application/jsonlines", accept)
    assert answer.headers["content-type"].partition(";")[0] == form


def test_bad_lines_are_counted(client: TestClient) -> None:
    """Each bad line counts as a text that failed."""
    answer = _post(client, '"love"\n{"text": 1}\n{"text": "it"\n', "application/jsonlines")
    assert [("error" in json.loads(line)) for line in answer.text.splitlines()] == [
        False,
        True,
        True,
    ]
    assert metric(client, "sentiment_texts_total", model="tiny", outcome="invalid_request") == 2


@pytest.mark.parametrize(
    ("lines", "bad"),
    [
        (["it", '"love.', 'worst"', "it"], {1, 2}),
        (["it", '"love.', "", "worst", 'it"', "it"], {1, 2, 3, 4}),
        (['"love ""so"".', 'worst ""it"".', 'it"', "it"], {0, 1, 2}),
        (["it", '"love, it', 'worst, it"', "it"], {1, 2}),
        (["it", 'it,"love', 'worst"', "it"], {1, 2}),
        (["it", '"' + "love " * 40_000, 'worst"', "it"], {1, 2}),
        # A quote inside a text opens nothing, and of a wrong one only the line is bad.
        (["it", 'a 5" love', "it", '"love" it', "it", '"love ""it"""', "it"], {3}),
        # A line that closes and goes on has ended the text: after it, lines are read as before.
        (["it", '"love', "worst", '"it" love', "it"], {1, 2, 3}),
        (["it", *["it"] * 125, '"love', "worst", "", 'worst"', "it"], {126, 127, 128, 129}),
        # A quote that does not close spoils its own line.
        (["it", '"love', "worst", "it"], {1}),
        (["it", *['a","love'] * 5, "it"], set(range(1, 6))),
    ],
)
def test_no_part_of_a_text_with_line_breaks_is_classified(
    client: TestClient, lines: list[str], bad: set[int]
) -> None:
    """All lines of a quoted text that spans lines are invalid: a part would get a wrong label."""
    answer = _post(client, "\r\n".join(lines), "text/csv").text.splitlines()
    wrong = {number for number, line in enumerate(answer) if line == ",,invalid_request"}
    assert (len(answer), wrong) == (len(lines), bad)


def test_a_text_with_a_line_break_is_told_where_to_go(client: TestClient) -> None:
    """The message of each of its lines names JSON Lines, which has room for line breaks."""
    answer = _post(client, 'it\n"love\n\nit"', "text/csv", "application/json").json()
    said = [item["error"]["message"] for item in answer[1:]]
    assert said == [
        f"line {number} is part of a quoted text with a line break; send such texts as "
        "application/jsonlines"
        for number in (2, 3, 4)
    ]


def test_records_are_classified_in_groups(serve: Serve) -> None:
    """More records than the queue takes at once are answered, in their order."""
    client = serve(max_queue_tokens=256)  # one request may have 128 tokens: 8 of these texts
    content = "\n".join(["love " * 14, "worst", "it"] * 30)
    labels = [line.split(",")[0] for line in _post(client, content, "text/csv").text.splitlines()]
    assert labels == ["positive", "negative", "neutral"] * 30


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
