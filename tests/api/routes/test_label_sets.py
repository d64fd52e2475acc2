"""Label sets other than the three sentiments, in every form of answer."""

import csv
import math
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.cli.command import main
from tests.conftest import Serve
from tests.support.serving import metric
from tests.support.tiny_bundle import make_bundle

ODD = ["1 star", 'très "bon", \\ <b>', "喜び"]
BEST = ODD[1]  # of a text of unknown words
SIGMOID = 1 / (1 + math.exp(-4))  # of "worst", whose logit is 4
INFER = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["worst"]}]}


@pytest.fixture
def odd(serve: Serve, tmp_path: Path) -> TestClient:
    """The application with a model whose labels have spaces, quotes, markup and other scripts."""
    return serve(model=(make_bundle(tmp_path / "odd", labels=ODD),))


@pytest.fixture
def single(serve: Serve, tmp_path: Path) -> TestClient:
    """The application with a model of one output, trained with a sigmoid."""
    bundle = make_bundle(
        tmp_path / "single",
        outputs=1,
        labels=["toxic"],
        problem_type="multi_label_classification",
    )
    return serve(model=(bundle,))


def _post(client: TestClient, path: str, body: Any) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_odd_names_are_answered_as_they_are(odd: TestClient) -> None:
    """In each format, and in the metadata."""
    native = _post(odd, "/classify", {"inputs": "hm"})
    assert native["labels"] == list(native["results"][0]["scores"]) == ODD
    assert native["results"][0]["label"] == BEST
    assert {one["label"] for one in _post(odd, "/", {"inputs": "hm"})[0]} == set(ODD)
    assert _post(odd, "/predict", {"inputs": "hm"})[0]["label"] == BEST
    assert _post(odd, "/v1/classify", {"input": "hm"})["data"][0]["label"] == BEST
    assert odd.get("/v2/models/tiny").json()["parameters"]["labels"] == ODD
    assert odd.get("/models").json()["models"][0]["labels"] == ODD


@pytest.mark.parametrize("labels", [["positive", "negative"], ["neutral", "positive", "negative"]])
def test_sentiments_have_a_polarity(serve: Serve, tmp_path: Path, labels: list[str]) -> None:
    """P(positive) - P(negative), of texts and sentences, whatever the order of the labels."""
    path = make_bundle(tmp_path / "two", outputs=len(labels), labels=labels)
    body = {"inputs": ["worst. Love love", "hm", ""], "split": "sentences"}
    text, unknown, failed = _post(serve(model=(path,)), "/classify", body)["results"]
    for result in (text, *text["sentences"], unknown):
        scores = result["scores"]
        assert result["polarity"] == pytest.approx(scores["positive"] - scores["negative"])
    assert "polarity" not in failed


def test_other_labels_have_no_polarity(odd: TestClient) -> None:
    """It is missing in results, in tensors, and refused where it is asked for."""
    assert "polarity" not in _post(odd, "/classify", {"inputs": "hm"})["results"][0]
    outputs = _post(odd, "/v2/models/tiny/infer", INFER)["outputs"]
    described = odd.get("/v2/models/tiny").json()["outputs"]
    for tensors in (outputs, described):
        assert [one["name"] for one in tensors] == ["label", "score", "logits", "scores"]
    asked = {**INFER, "outputs": [{"name": "polarity"}]}
    answer = odd.post("/v2/models/tiny/infer", json=asked)
    assert answer.status_code == 422
    assert answer.json()["detail"] == "outputs: only a model of sentiment has polarity"


def test_odd_names_are_values_of_the_metrics_label(odd: TestClient) -> None:
    """Prometheus' parser reads them back: quotes and backslashes are escaped."""
    _post(odd, "/classify", {"inputs": "hm"})
    for label, count in zip(ODD, (0, 1, 0), strict=True):
        assert metric(odd, "sentiment_predictions_total", model="tiny", label=label) == count


def test_odd_names_are_columns_of_a_csv_file(tmp_path: Path) -> None:
    """``score_`` and the label, quoted as CSV asks for."""
    bundle = make_bundle(tmp_path / "odd", labels=ODD)
    (tmp_path / "in.csv").write_text("text\nhm\n", encoding="utf-8")
    words = ["--input", str(tmp_path / "in.csv"), "--output", str(tmp_path / "out.csv")]
    assert main(["classify", "--model", str(bundle), *words]) == 0
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    assert list(row) == ["text", "label", "score", *(f"score_{label}" for label in ODD), "error"]
    assert row["label"] == BEST


def test_a_single_label_has_its_sigmoid_as_score(single: TestClient) -> None:
    """Its label is always the same, so its score is the answer; /explain takes 0.5 as unknown."""
    high, low = _post(single, "/classify", {"inputs": ["worst", "love"]})["results"]
    assert high["label"] == low["label"] == "toxic"
    assert high["scores"] == {"toxic": pytest.approx(SIGMOID)}
    assert high["logits"] == {"toxic": 4.0}
    assert low["score"] == pytest.approx(1 / (1 + math.exp(1)))
    (word,) = _post(single, "/explain", {"inputs": "worst"})["words"]
    assert word["contribution"] == pytest.approx(SIGMOID - 0.5)


def test_a_single_label_in_the_formats_of_other_servers(single: TestClient) -> None:
    """One label for each text, whatever function is asked for; a softmax of one is 1."""
    for function, score in (("sigmoid", SIGMOID), ("softmax", 1.0), ("none", 4.0)):
        parameters = {"function_to_apply": function, "top_k": 2}
        answer = _post(single, "/", {"inputs": "worst", "parameters": parameters})
        assert answer == [[{"label": "toxic", "score": pytest.approx(score)}]]
    for raw, score in ((False, SIGMOID), (True, 4.0)):
        answer = _post(single, "/predict", {"inputs": "worst", "raw_scores": raw})
        assert answer == [{"label": "toxic", "score": pytest.approx(score)}]
    (item,) = _post(single, "/v1/classify", {"input": "worst"})["data"]
    assert (item["probs"], item["num_classes"]) == ([pytest.approx(SIGMOID)], 1)
    outputs = _post(single, "/v2/models/tiny/infer", INFER)["outputs"]
    by_name = {output["name"]: output for output in outputs}
    assert by_name["scores"]["shape"] == [1, 1]
    assert by_name["scores"]["data"] == [pytest.approx(SIGMOID)]
    assert by_name["label"]["data"] == ["toxic"]
