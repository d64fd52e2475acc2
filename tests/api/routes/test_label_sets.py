"""Label sets other than the three sentiments, in every form of answer."""

import asyncio
import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient
from httpx2 import Response
from sentiment_client import AsyncClient, Client, SentimentError
from sentiment_service.cli.command import main
from sentiment_service.errors import ServiceError
from sentiment_service.python import Classifier

from tests.conftest import Listen, Serve
from tests.support.serving import COMMAND, metric, run_program
from tests.support.tiny_bundle import make_bundle, write_manifest

MOODS = ["anger", "joy", "love"]
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


@pytest.fixture
def moods(tmp_path: Path) -> Path:
    """A multi-label bundle with a threshold for all labels and one for joy, as its owner set them.

    The logits of "love" are -1, 0, 4: sigmoids of 0.27, 0.5 and 0.98.
    """
    path = make_bundle(tmp_path / "moods", labels=MOODS, problem_type="multi_label_classification")
    write_manifest(path, labels=MOODS, threshold=0.2, thresholds={"joy": 0.51})
    return path


def test_odd_names_are_answered_as_they_are(odd: TestClient) -> None:
    """In each format, in the metadata and in metrics; what is of several labels is missing."""
    native = _post(odd, "/classify", {"inputs": "hm"})
    assert native["labels"] == list(native["results"][0]["scores"]) == ODD
    assert native["results"][0]["label"] == BEST
    assert "labels" not in native["results"][0]
    assert {one["label"] for one in _post(odd, "/", {"inputs": "hm"})[0]} == set(ODD)
    assert _post(odd, "/predict", {"inputs": "hm"})[0]["label"] == BEST
    assert _post(odd, "/v1/classify", {"input": "hm"})["data"][0]["label"] == BEST
    assert odd.get("/v2/models/tiny").json()["parameters"]["labels"] == ODD
    (model,) = odd.get("/models").json()["models"]
    assert (model["labels"], model["thresholds"]) == (ODD, None)
    for label, count in zip(ODD, (0, 4, 0), strict=True):
        assert metric(odd, "sentiment_predictions_total", model="tiny", label=label) == count


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


def test_the_labels_of_a_multi_label_model(serve: Serve, tmp_path: Path) -> None:
    """All at or above 0.5 by default, or the threshold of the request; sometimes none."""
    kind = "multi_label_classification"
    client = serve(model=(make_bundle(tmp_path / "moods", labels=MOODS, problem_type=kind),))
    for threshold, labels in (
        (None, ["joy", "love"]),
        (0.5, ["joy", "love"]),
        (0.51, ["love"]),
        (0, MOODS),
        (1, []),
    ):
        body = {"inputs": ["love", ""], "split": "sentences", "threshold": threshold}
        result, failed = _post(client, "/classify", body)["results"]
        assert (result["label"], result["labels"]) == ("love", labels)
        assert result["sentences"][0]["labels"] == labels
        assert "labels" not in failed


def test_thresholds_of_a_bundle(serve: Serve, moods: Path) -> None:
    """A label's own threshold, then the bundle's; the request's is before both. GET /models."""
    client = serve(model=(moods,))
    (result,) = _post(client, "/classify", {"inputs": "love"})["results"]
    assert result["labels"] == ["anger", "love"]
    (result,) = _post(client, "/classify", {"inputs": "love", "threshold": 0.3})["results"]
    assert result["labels"] == ["joy", "love"]
    (model,) = client.get("/models").json()["models"]
    assert model["thresholds"] == {"anger": 0.2, "joy": 0.51, "love": 0.2}


def test_multi_label_in_the_formats_of_other_servers(serve: Serve, moods: Path) -> None:
    """All sigmoids, the highest first or in the order of the labels, whatever the thresholds."""
    client = serve(model=(moods,))
    ranked = [("love", 1 / (1 + math.exp(-4))), ("joy", 0.5), ("anger", 1 / (1 + math.exp(1)))]
    scores = [{"label": label, "score": pytest.approx(score)} for label, score in ranked]
    assert _post(client, "/", {"inputs": "love"}) == [scores]
    assert _post(client, "/predict", {"inputs": "love"}) == scores
    (item,) = _post(client, "/v1/classify", {"input": "love"})["data"]
    assert item["label"] == "love"
    assert item["probs"] == pytest.approx([score for _, score in reversed(ranked)])
    (instance,) = _post(client, "/predict", {"instances": ["love"]})["predictions"]
    assert instance["labels"] == ["anger", "love"]


# Each takes a query for the stream or a body for an instance, and gives its answer.
WAYS: dict[str, Callable[[TestClient, Any], Response]] = {
    "classify": lambda client, threshold: client.post(
        "/classify", json={"inputs": ["love"], "threshold": threshold}
    ),
    "plain text": lambda client, threshold: client.post(
        "/classify",
        params={"threshold": threshold},
        content="love",
        headers={"content-type": "text/plain"},
    ),
    "stream": lambda client, threshold: client.post(
        "/classify/stream",
        params={"threshold": threshold},
        content='{"text": "love"}',
        headers={"content-type": "application/x-ndjson"},
    ),
    "instances": lambda client, threshold: client.post(
        "/v1/models/tiny:predict",
        json={"instances": ["love"], "parameters": {"threshold": threshold}},
    ),
    "invocations": lambda client, threshold: client.post(
        "/invocations", json={"instances": ["love"], "parameters": {"threshold": threshold}}
    ),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_threshold_in_each_form(
    serve: Serve, moods: Path, odd: TestClient, way: Callable[[TestClient, Any], Response]
) -> None:
    """It chooses the labels; a wrong one is refused, and so is one for a model of one label."""
    client = serve(model=(moods,))
    answered = way(client, 0.3).json()
    (result,) = answered.get("results") or answered.get("predictions") or [answered]
    assert result["labels"] == ["joy", "love"]
    number = "a number"
    for wrong, says in ((1.1, "at most 1"), (-0.1, "at least 0"), ("x", number), (True, number)):
        answer = way(client, wrong)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
        assert answer.json()["detail"].endswith(f"threshold must be {says}")
    answer = way(odd, 0.5)
    assert answer.status_code == 422
    said = "threshold is for multi-label models; tiny gives each text one label"
    assert said in answer.json()["detail"]


def test_a_threshold_of_the_clients(listen: Listen, moods: Path, tmp_path: Path) -> None:
    """The Python clients send it with one text and with many; `classify` has it as a flag."""
    url = f"http://127.0.0.1:{listen(model=(moods,))}"

    async def asked() -> list[Any]:
        async with AsyncClient(url) as client:
            many = [one async for one in client.classify_iter(["love"], threshold=0.3)]
            more = await client.classify(["love"], threshold=0.3)
            return [await client.classify("love", threshold=0.3), *many, *more]

    with Client(url) as client:
        one, many = (client.classify(texts, threshold=0.3) for texts in ("love", ["love"]))
        iterated = client.classify_iter(["love"], threshold=0.3)
        results = [one, *many, *iterated, *asyncio.run(asked())]
        with pytest.raises(SentimentError, match="threshold must be at most 1"):
            client.classify("love", threshold=3)
    assert [result.labels for result in results] == [["joy", "love"]] * 6
    for place in (["--model", str(moods)], ["--url", url]):
        command = [*COMMAND, "classify", *place, "--threshold"]
        assert json.loads(run_program(*command, "0.3", "--json", "love").stdout)["labels"] == [
            "joy",
            "love",
        ]
        files = ["--input", str(tmp_path / "in.csv"), "--output", str(tmp_path / "out.csv")]
        (tmp_path / "in.csv").write_text("text\nlove\n", encoding="utf-8")
        assert run_program(*command, "1", "--overwrite", *files).returncode == 0
        (row,) = csv.DictReader((tmp_path / "out.csv").read_text().splitlines())
        assert row["labels"] == "[]"


def test_a_flag_for_a_threshold_that_cannot_be(capsys: pytest.CaptureFixture[str]) -> None:
    """One line says what is accepted, and for which models."""
    for wrong in ("1.1", "x", "nan"):
        with pytest.raises(SystemExit, match="2"):
            main(["classify", "--threshold", wrong, "love"])
        assert f"must be a number from 0 to 1, not {wrong!r}" in capsys.readouterr().err
    assert main(["classify", "--threshold", "0.5", "love"]) == 1
    said = "--threshold is for multi-label models; minilm-l6-tweet-sentiment gives each text one"
    assert said in capsys.readouterr().err


def test_chosen_labels_are_a_column_of_files(moods: Path, tmp_path: Path) -> None:
    """As JSON in CSV, as a list in JSONL and Parquet, and as a list in a frame of Python."""
    (tmp_path / "in.csv").write_text('text\nlove\n""\n', encoding="utf-8")
    for suffix in ("csv", "jsonl", "parquet"):
        words = ["--input", str(tmp_path / "in.csv"), "--output", str(tmp_path / f"out.{suffix}")]
        assert main(["classify", "--model", str(moods), *words]) == 0
    rows = csv.DictReader((tmp_path / "out.csv").read_text().splitlines())
    assert [row["labels"] for row in rows] == ['["anger", "love"]', ""]
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line)["labels"] for line in lines] == [["anger", "love"], None]
    found = pq.read_table(tmp_path / "out.parquet")["labels"].to_pylist()
    assert found == [["anger", "love"], None]
    with Classifier(moods) as classifier:
        assert classifier.classify("love").labels == ["anger", "love"]
        frame = classifier.classify(["love"], threshold=0.5).to_frame()
        assert frame["labels"][0] == classifier.classify("love", threshold=0.5).labels
        assert frame["labels"][0] == ["joy", "love"]
    with Classifier() as classifier, pytest.raises(ServiceError, match="for multi-label models"):
        classifier.classify("love", threshold=0.5)


def test_odd_names_are_columns_of_a_csv_file(tmp_path: Path) -> None:
    """``score_`` and the label, quoted as CSV asks for."""
    bundle = make_bundle(tmp_path / "odd", labels=ODD)
    (tmp_path / "in.csv").write_text("text\nhm\n", encoding="utf-8")
    words = ["--input", str(tmp_path / "in.csv"), "--output", str(tmp_path / "out.csv")]
    assert main(["classify", "--model", str(bundle), *words]) == 0
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    scores = [f"score_{label}" for label in ODD]
    assert list(row) == ["text", "label", "score", *scores, "warnings", "error"]
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
