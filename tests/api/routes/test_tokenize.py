"""POST /tokenize: the tokens of texts, as the model sees them."""

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.engine.model.bundle import EMBEDDED_BUNDLE, Bundle
from app.engine.model.load import load_model
from app.engine.text.tokens import tokens_steps
from app.engine.worker import finish
from tests.conftest import Serve
from tests.support.checkpoints import CORPUS, exported
from tests.support.serving import Gate, metric
from tests.support.tiny_bundle import make_bundle, write_manifest


def _tokenize(client: TestClient, inputs: Any, **options: Any) -> Any:
    answer = client.post("/tokenize", json={"inputs": inputs, **options})
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


def test_one_text(client: TestClient) -> None:
    """Tokens, ids, offsets and the count, after the preprocessing that the model was trained with.

    The tiny model has one token for each word.
    """
    answer = client.post("/tokenize", json={"inputs": "@anna 😀 love"}).json()
    assert answer["model"] == {"name": "tiny", "revision": "0123abc", "precision": "fp32"}
    assert answer["results"] == [
        {
            "text": "@user 😀 love",
            "tokens": ["<s>", "<unk>", "<unk>", "love", "</s>"],
            "ids": [1, 3, 3, 4, 2],
            "offsets": [[0, 0], [0, 5], [6, 7], [8, 12], [0, 0]],
            "sequence_ids": [None, 0, 0, 0, None],
            "count": 5,
            "truncated": False,
        }
    ]


def test_special_tokens_can_be_left_out(client: TestClient) -> None:
    """They are left out of the lists and of the count; one that the text spells stays."""
    (one,) = _tokenize(client, "love </s>", add_special_tokens=False)
    assert (one["tokens"], one["ids"], one["count"]) == (["love", "</s>"], [4, 2], 2)
    assert one["offsets"] == [[0, 4], [5, 9]]


def test_a_bad_text_fails_alone(client: TestClient) -> None:
    """In a list it has its error in its place; alone it is the error of the request."""
    good, empty, nul, long = _tokenize(client, ["love", " ", "\0", "x" * 50_001])
    assert good["count"] == 3
    codes = [one["error"]["code"] for one in (empty, nul, long)]
    assert codes == ["empty_text", "invalid_request", "text_too_long"]
    alone = client.post("/tokenize", json={"inputs": " "})
    assert (alone.status_code, alone.json()["code"]) == (422, "empty_text")


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        ({}, "invalid_request", "inputs is required"),
        ({"inputs": 1}, "invalid_request", "must be a string, an object"),
        ({"inputs": "a", "add_special_tokens": 1}, "invalid_request", "add_special_tokens must be"),
        ({"inputs": "a", "overflow": "error"}, "invalid_request", "unknown field 'overflow'"),
        ({"inputs": ["a"] * 1_001}, "too_many_texts", "at most 1000"),
        ({"inputs": "a", "model": "x"}, "model_not_found", "served models are: tiny"),
    ],
)
def test_a_bad_request_says_what_is_accepted(
    client: TestClient, body: Any, code: str, says: str
) -> None:
    """The limits and the errors are those of /classify."""
    problem = client.post("/tokenize", json=body).json()
    assert problem["code"] == code
    assert says in problem["detail"]


def test_an_answer_has_a_limited_number_of_tokens(serve: Serve) -> None:
    """All texts together may have half of max_queue_tokens, counted after truncation."""
    client = serve(max_queue_tokens=64)
    assert len(_tokenize(client, ["love " * 20] * 2)) == 2
    refused = client.post("/tokenize", json={"inputs": ["love " * 20] * 3}).json()
    assert refused["code"] == "too_many_texts"
    assert "more than the 32 tokens" in refused["detail"]


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
