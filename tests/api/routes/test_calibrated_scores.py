"""A calibrated model, served: every route has the same scores, and /info and /models say so."""

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sentiment_service.main import create_app
from sentiment_service.settings.settings import Settings

from tests.conftest import Serve
from tests.support.tiny_bundle import LABELS, calibrate, make_bundle

TEMPERATURE = 2.0
TEXT = "love it"
LOGITS = dict(zip(LABELS, (-1.0, 0.5, 4.0), strict=True))


def _softmax(temperature: float) -> dict[str, float]:
    powers = {label: math.exp(logit / temperature) for label, logit in LOGITS.items()}
    return {label: power / sum(powers.values()) for label, power in powers.items()}


SCORES = _softmax(TEMPERATURE)


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """The tiny model with the temperature 2, served."""
    path = make_bundle(tmp_path_factory.mktemp("calibrated") / "tiny")
    calibrate(path, temperature=TEMPERATURE)
    settings = Settings(model=(path,), runners=2, threads=1, max_batch_tokens=512)
    with TestClient(create_app(settings)) as client:
        yield client


def _classified(client: TestClient, **fields: Any) -> Any:
    return client.post("/classify", json={"inputs": TEXT, **fields}).json()["results"][0]


def _of_stream(client: TestClient) -> dict[str, float]:
    answer = client.post(
        "/classify/stream",
        content=json.dumps({"text": TEXT}) + "\n",
        headers={"content-type": "application/x-ndjson"},
    )
    scores: dict[str, float] = json.loads(answer.text)["scores"]
    return scores


def _of_ranking(client: TestClient, route: str, **fields: Any) -> dict[str, float]:
    answer = client.post(route, json={"inputs": TEXT, **fields}).json()
    ranking = answer[0] if route == "/" else answer
    return {one["label"]: one["score"] for one in ranking}


def _of_hugging_face(client: TestClient, function: str | None) -> dict[str, float]:
    parameters = {"function_to_apply": function} if function else {}
    return _of_ranking(client, "/", parameters=parameters)


def _of_open_inference(client: TestClient) -> dict[str, float]:
    body = {
        "inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [TEXT]}],
        "outputs": [{"name": "scores"}],
    }
    (output,) = client.post("/v2/models/tiny/infer", json=body).json()["outputs"]
    return dict(zip(LABELS, output["data"], strict=True))


def _of_vllm(client: TestClient, **fields: Any) -> dict[str, float]:
    answer = client.post("/v1/classify", json={"input": TEXT, **fields}).json()
    return dict(zip(LABELS, answer["data"][0]["probs"], strict=True))


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        (lambda client: _classified(client)["scores"], SCORES),
        (lambda client: _classified(client, overflow="window")["scores"], SCORES),
        (lambda client: _classified(client, split="sentences")["sentences"][0]["scores"], SCORES),
        (_of_stream, SCORES),
        (lambda client: _of_hugging_face(client, None), SCORES),
        (lambda client: _of_hugging_face(client, "softmax"), SCORES),
        (lambda client: _of_ranking(client, "/predict"), SCORES),
        (_of_open_inference, SCORES),
        (_of_vllm, SCORES),
        (lambda client: _classified(client)["logits"], LOGITS),
        (lambda client: _of_hugging_face(client, "none"), LOGITS),
        (lambda client: _of_ranking(client, "/predict", raw_scores=True), LOGITS),
        (lambda client: _of_vllm(client, use_activation=False), LOGITS),
        (
            lambda client: _of_hugging_face(client, "sigmoid"),
            {label: 1 / (1 + math.exp(-logit / TEMPERATURE)) for label, logit in LOGITS.items()},
        ),
    ],
)
def test_every_route_has_the_calibrated_scores_and_raw_logits(
    calibrated: TestClient,
    scores: Callable[[TestClient], dict[str, float]],
    expected: dict[str, float],
) -> None:
    """Scores are calibrated on every route, also if a function is asked for; logits are not."""
    assert scores(calibrated) == pytest.approx(expected, rel=1e-5)


def test_windows_are_calibrated_after_their_mean(calibrated: TestClient) -> None:
    """The scores of a long text are those of its mean logits, divided by the temperature."""
    result = _classified(calibrated, inputs="love " * 20 + "it " * 20, overflow="window")
    assert result["windows"] > 1
    powers = [math.exp(logit / TEMPERATURE) for logit in result["logits"].values()]
    assert list(result["scores"].values()) == pytest.approx(
        [power / sum(powers) for power in powers], rel=1e-5
    )


def test_an_explanation_has_the_calibrated_score(calibrated: TestClient) -> None:
    """A contribution is the difference of two calibrated scores."""
    answer = calibrated.post("/explain", json={"inputs": TEXT}).json()
    assert answer["score"] == pytest.approx(SCORES["positive"], rel=1e-5)
    without = _classified(calibrated, inputs="love")["scores"]["positive"]
    assert answer["words"][1]["contribution"] == pytest.approx(answer["score"] - without)


def test_without_calibration_they_say_so(serve: Serve) -> None:
    """The field is null, and the scores are the plain softmax of the logits."""
    client = serve()
    assert client.get("/info").json()["calibration"] is None
    assert client.get("/models").json()["models"][0]["calibration"] is None
    assert _classified(client)["scores"] == pytest.approx(_softmax(1.0), rel=1e-5)
