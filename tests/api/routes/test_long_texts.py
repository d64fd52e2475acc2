"""Texts longer than the model accepts: windows, and single sentences."""

import math
from itertools import chain, pairwise
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sentiment_service.engine.loading import load_model
from sentiment_service.engine.model.bundle import Bundle
from sentiment_service.engine.text.steps import sentence_spans

from tests.conftest import Serve
from tests.support.serving import Gate, metric
from tests.support.tiny_bundle import MAX_TOKENS, different_texts

LOVE, WORST = (-1.0, 0.0, 4.0), (4.0, 0.0, -1.0)


def _classify(
    client: TestClient, inputs: str | list[str], **options: str
) -> list[dict[str, object]]:
    answer = client.post("/classify", json={"inputs": inputs, **options})
    assert answer.status_code == 200, answer.text
    results: list[dict[str, object]] = answer.json()["results"]
    return results


def test_windows_overlap_and_cover_every_token(bundle: Path) -> None:
    """Each window begins with the last quarter of the one before; together they cover the text."""
    model = load_model(Bundle.open(bundle), device="cpu", precision="auto", threads=1)
    for words in range(1, 80):
        encoding = model.tokenizer.encode(
            " ".join(["love", "worst", "it"][n % 3] for n in range(words))
        )
        whole = [[4, 5, 3][n % 3] for n in range(words)]
        assert encoding.tokens == words + 2
        assert encoding.truncated == (words + 2 > MAX_TOKENS)
        windows = [window.ids[1:-1] for window in encoding.windows]
        assert all(window.ids[0] == 1 and window.ids[-1] == 2 for window in encoding.windows)
        assert windows[0] + [token for window in windows[1:] for token in window[3:]] == whole
        for before, after in pairwise(windows):
            assert before[-3:] == after[:3]


def test_windows_are_averaged_by_their_tokens(client: TestClient) -> None:
    """For 20 positive and then 10 negative words, each window counts by its number of tokens."""
    text = "love " * 20 + "worst " * 10
    (result,) = _classify(client, text, overflow="window")
    windows = [(14, 0, 16), (9, 5, 16), (0, 8, 10)]  # positive, negative words; tokens
    expected = [
        sum(tokens * (love * a + worst * b) for love, worst, tokens in windows) / 42
        for a, b in zip(LOVE, WORST, strict=True)
    ]
    assert isinstance(result["logits"], dict)
    assert isinstance(result["scores"], dict)
    assert list(result["logits"].values()) == pytest.approx(expected)
    total = sum(map(math.exp, expected))
    assert list(result["scores"].values()) == pytest.approx(
        [math.exp(logit) / total for logit in expected]
    )
    assert (result["tokens"], result["truncated"], result["windows"]) == (32, False, 3)
    assert result["label"] == "positive"


def test_a_window_that_fails_fails_its_text(client: TestClient) -> None:
    """If one window fails, its text fails, without an answer from the rest; others are answered."""
    failed, fine = _classify(client, ["love " * 20 + "nan", "love"], overflow="window")
    assert failed["error"] == {
        "code": "inference_failed",
        "message": "the model gave no finite logits for this text",
    }
    assert fine["label"] == "positive"


def test_windows_go_through_the_batcher_like_texts(serve: Serve, gate: Gate) -> None:
    """The windows of a text share batches with other texts; no batch exceeds its budget."""
    client = serve(runners=1, max_batch_tokens=32)
    gate.seen.clear()
    _classify(client, [" ".join(different_texts(10)), "love it"], overflow="window")
    assert sum(len(batch) for batch in gate.seen) == 7
    assert all(len(batch) * max(map(len, batch)) <= 32 for batch in gate.seen)
    assert metric(client, "sentiment_texts_total", model="tiny", outcome="ok") == 2
    assert metric(client, "sentiment_truncated_total", model="tiny") == 0


def test_sentences_stand_beside_the_whole(client: TestClient) -> None:
    """Each sentence has its position, label and scores; the whole text's answer is unchanged."""
    text = "  love it! worst 😍 of all.\nIt is 3 p.m. now, so it is. nan. "
    (result,) = _classify(client, text, split="sentences")
    (plain,) = _classify(client, ["love it"])
    sentences = result["sentences"]
    assert isinstance(sentences, list)
    assert [text[s["start"] : s["end"]] for s in sentences] == [
        "love it!",
        "worst 😍 of all.",
        "It is 3 p.m. now, so it is.",
        "nan.",
    ]
    assert [s["label"] for s in sentences] == ["positive", "negative", "neutral", "neutral"]
    assert set(sentences[0]) == {"start", "end", *plain}


def test_a_sentence_fails_alone(client: TestClient) -> None:
    """A sentence fails alone, in its place; here it lies beyond the whole text's window."""
    (result,) = _classify(client, "love it! " + "so " * 13 + ". nan ok.", split="sentences")
    assert isinstance(result["sentences"], list)
    assert [s.get("label") for s in result["sentences"]] == ["positive", "neutral", None]
    assert result["sentences"][2]["error"]["code"] == "inference_failed"


def test_sentences_count_in_no_metric_of_texts(client: TestClient) -> None:
    """Sentences are not counted in the metrics, which count what clients sent."""
    _classify(client, "love it! worst. So so.", split="sentences")
    assert metric(client, "sentiment_texts_total", model="tiny", outcome="ok") == 1
    labels = {"model": "tiny", "label": "negative"}
    assert metric(client, "sentiment_predictions_total", **labels) == 0


@pytest.mark.parametrize(
    ("language", "text", "sentences"),
    [
        ("en", "Dr. Smith paid $3.50. He left!!! 😍 Wow… ok?", 3),
        ("en", "I ❤️ it 👩‍👩‍👧 so much! See e.g. https://a.io/b?c=d. Bye", 3),
        ("de", "Das ist z.B. gut. Prof. Müller sagte am 3. Mai nein.", 2),
        ("fr", "M. et Mme Dupont et le Dr. Petit sont parti. C'est génial ! Vraiment ?", 3),
        ("es", "El Sr. García llegó. ¿Qué tal? ¡Muy bien!", 3),
        ("pt", "O Sr. Silva chegou. Que bom! Não é?", 3),
        ("it", "Il sig. Rossi è qui. Che bello! Davvero?", 3),
        ("hi", "मैं खुश हूँ। डॉ. शर्मा आए। वह नहीं है। ठीक है?", 4),
        ("ar", "هذا جيد. هل أنت بخير؟ نعم!", 3),
        ("nl", "Dhr. Jansen is weg. Mooi zo! Echt?", 3),
        ("pt-BR", "O Sr. Silva chegou. Que bom!", 2),
        ("xx", "Hello there. Bye.", 2),
        ("en", "no end", 1),
        ("en", " \n ", 0),
    ],
)
def test_sentences_of_many_languages(language: str, text: str, sentences: int) -> None:
    """Abbreviations, numbers, addresses and emoji end no sentence; only white space is left out."""
    found = [text[start:end] for start, end in chain(*sentence_spans(text, language))]
    assert len(found) == sentences, found
    assert all(sentence == sentence.strip() for sentence in found)
    assert "".join("".join(found).split()) == "".join(text.split())
