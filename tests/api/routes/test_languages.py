"""Where several models are served, the language of a request chooses among them."""

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from httpx2 import Response
from sentiment_service.main import create_app
from sentiment_service.settings.settings import Settings

from tests.conftest import SET_BY_HAND
from tests.support.tiny_bundle import make_bundle, write_manifest

# What each calls positive is what the others do not: so their answers tell which one answered.
ENGLISH = ["negative", "neutral", "positive"]
OTHER = ["positive", "neutral", "negative"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A model of English, which is the default, one of German and Chinese, one of Portuguese."""
    folder, paths = tmp_path_factory.mktemp("languages"), []
    for name, labels, languages in (
        ("english", ENGLISH, {"language": "en"}),
        ("several", OTHER, {"languages": ["de", "zh"]}),
        ("brazil", OTHER, {"languages": ["pt-BR"]}),
        ("portugal", OTHER, {"languages": ["pt-PT"]}),
        ("unknown", ENGLISH, {}),
    ):
        paths.append(make_bundle(folder / name, name=name, labels=labels))
        write_manifest(paths[-1], name=name, labels=labels, **languages)
    with TestClient(create_app(Settings(model=tuple(paths), **SET_BY_HAND))) as client:
        yield client


def _classify(client: TestClient, **body: Any) -> Any:
    return client.post("/classify", json={"inputs": ["love"], **body}).json()


@pytest.mark.parametrize(
    ("language", "model"),
    [
        (None, "english"),
        ("en", "english"),
        ("de", "several"),
        ("DE-at", "several"),
        ("zh-Hant-TW", "several"),
        ("pt", "brazil"),
        ("pt-BR", "brazil"),
        ("pt-PT", "portugal"),
        ("pt-AO", "brazil"),
        ("fr", "english"),
    ],
)
def test_the_first_model_that_names_the_language_answers(
    models: TestClient, language: str | None, model: str
) -> None:
    """The tag that says most wins; without a model for the language, the default one answers.

    The answer says which one, and warns of a language that it does not know.
    """
    answer = _classify(models, language=language)
    assert answer["model"]["name"] == model
    warnings = answer["results"][0].get("warnings")
    assert warnings == (["other_language"] if language == "fr" else None)


def test_the_language_of_a_stream_chooses_its_model(models: TestClient) -> None:
    """All lines are answered by the model that would answer them in POST /classify."""
    digests = {one["name"]: one["digest"] for one in models.get("/models").json()["models"]}
    for language, name in (("zh-Hant", "several"), ("fr", "english")):
        answer = _stream(models, language)
        assert answer.headers["x-model-digest"] == digests[name]
        assert answer.json().get("warnings") == (["other_language"] if language == "fr" else None)
    assert _stream(models, "english").status_code == 422


def _stream(client: TestClient, language: str) -> Response:
    line, sent = b'{"id": 1, "text": "love"}\n', {"content-type": "application/x-ndjson"}
    return client.post(f"/classify/stream?language={language}", content=line, headers=sent)


def test_a_named_model_answers_whatever_the_language(models: TestClient) -> None:
    """It warns if the language is none of its own; where these are not known, it cannot."""
    answer = _classify(models, model="several", language="en")
    assert answer["model"]["name"] == "several"
    assert answer["results"][0]["warnings"] == ["other_language"]
    assert "warnings" not in _classify(models, model="unknown", language="fi")["results"][0]


def test_the_models_say_their_languages(models: TestClient) -> None:
    """As tags; none where they are not known. The only one has a member of its own."""
    listed = models.get("/models").json()["models"]
    assert [one["languages"] for one in listed] == [["en"], ["de", "zh"], ["pt-BR"], ["pt-PT"], []]
    assert [one["language"] for one in listed] == ["en", None, None, None, None]


def test_one_model_answers_in_every_language(client: TestClient) -> None:
    """Its own languages are not known, so there is no warning."""
    answer = _classify(client, language="de")
    assert (answer["model"]["name"], answer["results"][0].get("warnings")) == ("tiny", None)


def test_azures_documents_may_have_different_languages(models: TestClient) -> None:
    """Each is answered by the model for its language, in its place; the answer names them all."""
    documents = [
        {"id": "1", "text": "love", "language": "de"},
        {"id": "2", "text": "love", "language": "en"},
        {"id": "3", "text": "", "language": "de"},
        {"id": "4", "text": "love"},
        {"id": "5", "text": "love", "language": "fr"},
    ]
    answer = models.post("/text/analytics/v3.1/sentiment", json={"documents": documents}).json()
    labels = {one["id"]: one["sentiment"] for one in answer["documents"]}
    assert labels == {"1": "negative", "2": "positive", "4": "positive", "5": "positive"}
    assert [one["id"] for one in answer["errors"]] == ["3"]
    assert answer["modelVersion"] == "several, english"
    warnings = {one["id"]: [w["code"] for w in one["warnings"]] for one in answer["documents"]}
    assert warnings == {"1": [], "2": [], "4": [], "5": ["other_language"]}


def test_comprehends_language_chooses(models: TestClient) -> None:
    """LanguageCode is that of all texts."""
    headers = {"x-amz-target": "Comprehend_20171127.DetectSentiment"}
    for language, label in (("zh-TW", "NEGATIVE"), ("en", "POSITIVE")):
        body = {"Text": "love", "LanguageCode": language}
        assert models.post("/", json=body, headers=headers).json()["Sentiment"] == label


def test_googles_language_chooses(models: TestClient) -> None:
    """Version 2 says whether the model knows the language; without one, the model's is named."""
    for version, field in (("v1", "language"), ("v2", "languageCode")):
        found = []
        for language in ("zh-Hant", "en", "fr", ""):
            document = {"content": "love", field: language}
            path = f"/{version}/documents:analyzeSentiment"
            answer = models.post(path, json={"document": document}).json()
            positive = answer["documentSentiment"]["score"] > 0
            found.append((answer[field], positive, answer.get("languageSupported", True)))
        known = version == "v1"
        assert found == [
            ("zh-Hant", False, True),
            ("en", True, True),
            ("fr", True, known),
            ("en", True, True),
        ]
