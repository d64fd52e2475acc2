"""POST /tokenize: the tokens of texts, as the model sees them."""

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sentiment_service.adapters.tokenize import tokens_steps
from sentiment_service.engine.loading import load_model
from sentiment_service.engine.model.bundle import EMBEDDED_BUNDLE, Bundle
from sentiment_service.engine.step_thread import finish

from tests.conftest import Serve
from tests.support.checkpoints import CORPUS, exported
from tests.support.serving import Gate, metric
from tests.support.tiny_bundle import make_bundle, write_manifest


def _tokenize(client: TestClient, inputs: Any, **options: Any) -> Any:
    answer = client.post("/tokenize", json={"inputs": inputs, **options})
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


def test_an_answer_has_a_limited_number_of_tokens(serve: Serve) -> None:
    """All texts together may have half of max_queue_tokens, counted after truncation.

    The error says so, as that of the routes that classify.
    """
    client = serve(max_queue_tokens=64)
    assert len(_tokenize(client, ["love " * 20] * 2)) == 2
    refused = client.post("/tokenize", json={"inputs": ["love " * 20] * 3}).json()
    assert refused["code"] == "too_many_texts"
    assert "more than the 32 tokens" in refused["detail"]
    assert refused["detail"].endswith("half of --max-queue-tokens")


def test_nothing_is_inferred_or_counted_as_a_text(serve: Serve, gate: Gate) -> None:
    """Tokens are shown while no batch can be computed, and count as a request, not as a text."""
    client = serve(runners=1)
    gate.close()
    (one,) = _tokenize(client, "love it")
    assert one["count"] == 4
    assert not gate.reached.is_set()
    assert metric(client, "sentiment_texts_total", model="tiny", outcome="ok") == 0
    counted = {"route": "/tokenize", "method": "POST", "status": "200"}
    assert metric(client, "sentiment_http_requests_total", **counted) == 1


def test_a_pair_shows_in_which_text_a_token_is(serve: Serve, tmp_path: Path) -> None:
    """``sequence_ids`` says which text a token is in; offsets count the characters of that text."""
    path = make_bundle(tmp_path / "pairs")
    write_manifest(path, text_pairs=True)
    client = serve(model=(path,))
    one, cut = _tokenize(
        client,
        [
            {"text": "@anna love", "text_pair": "worst"},
            {"text": "love " * 20, "text_pair": "it worst"},
        ],
    )
    assert (one["text"], one["text_pair"]) == ("@user love", "worst")
    assert one["tokens"] == ["<s>", "<unk>", "love", "</s>", "worst", "</s>"]
    assert one["offsets"] == [[0, 0], [0, 5], [6, 10], [0, 0], [0, 5], [0, 0]]
    assert one["sequence_ids"] == [None, 0, 0, None, 1, None]
    assert cut["sequence_ids"] == [None, *[0] * 11, None, 1, 1, None]
    assert (cut["offsets"][-3:-1], cut["count"], cut["truncated"]) == ([[0, 2], [3, 8]], 25, True)


@pytest.mark.parametrize("architecture", ["embedded", "bert", "roberta", "xlm-roberta"])
def test_the_tokens_are_those_that_are_classified(
    tmp_path_factory: pytest.TempPathFactory, architecture: str
) -> None:
    """The ids are those of the encoding that is inferred, in every kind of tokenizer."""
    if architecture == "embedded":
        bundle = Bundle.open(EMBEDDED_BUNDLE)
        model = load_model(bundle, device="cpu", precision="int8", threads=1)
    else:
        model = exported(tmp_path_factory.getbasetemp(), architecture).model("fp32")
    texts = [
        *CORPUS,
        " ".join(CORPUS * 3),
        "\ue000",
        "  @anna\n(http://x)  ",
        "e\u0301te\u0301 👩🏽‍🚀",
    ]
    steps = tokens_steps(model.tokenizer, texts, special=True, max_chars=50_000, max_tokens=10_000)
    for text, found in zip(texts, finish(steps), strict=True):
        assert isinstance(found, dict)
        encoding = model.tokenizer.encode(text)
        assert found["ids"] == encoding.ids
        assert (found["count"], found["truncated"]) == (encoding.tokens, encoding.truncated)
        lists = (found["tokens"], found["offsets"], found["sequence_ids"])
        assert {len(one) for one in lists} == {len(encoding)}
        assert found["tokens"] == [
            model.tokenizer.library.id_to_token(token) for token in encoding.ids
        ]
        ends = [end for _, end in found["offsets"]]
        assert max(ends) <= len(found["text"])
