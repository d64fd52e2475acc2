"""The warnings of a text: what speaks against trusting the model's answer."""

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sentiment_service.engine.model.bundle import EMBEDDED_BUNDLE, Bundle
from sentiment_service.engine.text.input_tokenizer import READ_CHARS, looks_foreign

from tests.conftest import Serve
from tests.support.tiny_bundle import make_bundle, write_manifest

GERMAN = "Das Essen war furchtbar"


def _warnings(client: TestClient, text: str, **options: Any) -> list[str] | None:
    answer = client.post("/classify", json={"inputs": [text], **options})
    (result,) = answer.json()["results"]
    warnings: list[str] | None = result.get("warnings")
    return warnings


@pytest.mark.parametrize(
    "text",
    [
        GERMAN,
        "Je suis très déçu",
        "Muchas gracias, todo muy bueno",
        "Não gostei nada disso",
        "Che bello, grazie!",
        "yeh baat to bahut achhi hai",
        "@anna Wir fahren morgen nach Hause http://t.co/the",
        "хорошо",
        "良い",
        "الخدمة ممتازة OK",
    ],
)
def test_a_text_that_is_not_english(text: str) -> None:
    """Another script, or frequent words of other languages."""
    assert looks_foreign(text)


@pytest.mark.parametrize(
    "text",
    [
        "Great café in Málaga, señor!",
        "Great café, 5€ 😀 Ω",
        "😍🎉",
        "The new Die Hard is a bore",
        "Merci for the ride",
        "Los Angeles vs Real Madrid",
        "Beyoncé Beyoncé",
        "lol",
        "C++ 3.14",
    ],
)
def test_a_text_that_may_be_english(text: str) -> None:
    """A few foreign words and letters in an English text are no reason; nor are no words."""
    assert not looks_foreign(text)


def test_the_beginning_of_a_long_text_decides() -> None:
    """A text of a megabyte takes no longer than one of a page."""
    assert not looks_foreign("a " * (READ_CHARS // 2) + GERMAN * 1_000)


def test_only_models_of_english_have_a_language_to_miss(serve: Serve, tmp_path: Path) -> None:
    """The manifest's language decides; without one, or with another, nothing is said of it."""
    for number, (language, warned) in enumerate(
        [("en", True), ("en-GB", True), ("de", False), (None, False)]
    ):
        path = make_bundle(tmp_path / f"{number}")
        write_manifest(path, language=language)
        client = serve(model=(path,))
        assert ("other_language" in (_warnings(client, GERMAN) or ())) is warned
        assert client.get("/models").json()["models"][0]["language"] == language


def test_many_unknown_tokens(serve: Serve, bundle: Path) -> None:
    """More than a fifth of them; the special tokens around the text do not count."""
    client = serve(model=(bundle,))
    assert _warnings(client, "love love love love what") is None
    assert _warnings(client, "love love love what") == ["unknown_tokens"]
    # Also of a sentence, and of the tokens that are left after truncation.
    body = {"inputs": ["love love. Hm"], "split": "sentences"}
    (result,) = client.post("/classify", json=body).json()["results"]
    assert [one.get("warnings") for one in result["sentences"]] == [
        ["unknown_tokens"],
        ["unknown_tokens"],
    ]
    mostly_unknown, mostly_known = "love " * 20 + "what " * 50, "what " * 20 + "love " * 200
    assert _warnings(client, mostly_unknown) is None
    assert _warnings(client, mostly_known) == ["unknown_tokens"]
    # All windows are read, so all of them count.
    assert _warnings(client, mostly_unknown, overflow="window") == ["unknown_tokens"]
    assert _warnings(client, mostly_known, overflow="window") is None


def test_the_embedded_model_warns_of_german() -> None:
    """Its manifest says that it was trained on English."""
    assert Bundle.open(EMBEDDED_BUNDLE).manifest.language == "en"
