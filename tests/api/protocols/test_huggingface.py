"""POST / with Hugging Face's own clients against a real server."""

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import HfHubHTTPError

from tests.support.serving import Process

BY_HAND = ("--runners", "2", "--threads", "1", "--max-batch-tokens", "512")
LOGITS = {"positive": 4.0, "neutral": 0.0, "negative": -1.0}  # of "love", highest first
POWERS = {label: math.exp(logit) for label, logit in LOGITS.items()}
SOFTMAX = {label: power / sum(POWERS.values()) for label, power in POWERS.items()}
SIGMOID = {label: power / (1 + power) for label, power in POWERS.items()}
KEY = "key-of-the-test"


@pytest.fixture(scope="module")
def url(bundle: Path) -> Iterator[str]:
    """The URL of a server of the tiny model."""
    with Process("--model", str(bundle), *BY_HAND) as process:
        yield process.url


def _scores(answer: Any) -> dict[str, float]:
    return {element["label"]: element["score"] for element in answer}


def test_the_client_gets_labels_and_scores(url: str) -> None:
    """The client gets all labels, highest score first, with the native route's scores."""
    answer = InferenceClient(model=url).text_classification("love")
    native = httpx2.post(f"{url}/classify", json={"inputs": "love"}).json()["results"][0]
    assert list(_scores(answer)) == ["positive", "neutral", "negative"]
    assert _scores(answer) == native["scores"]


def test_top_k_cuts_the_answer(url: str) -> None:
    """top_k keeps the best labels; more than exist keeps all; a float is accepted."""
    client = InferenceClient(model=url)
    assert list(_scores(client.text_classification("love", top_k=2))) == ["positive", "neutral"]
    assert len(client.text_classification("love", top_k=9)) == 3
    assert len(_post(url, {"inputs": "love", "parameters": {"top_k": 2.0}}).json()[0]) == 2


@pytest.mark.parametrize(
    ("function", "expected"), [("softmax", SOFTMAX), ("sigmoid", SIGMOID), ("none", LOGITS)]
)
def test_a_function_is_applied_to_the_logits(
    url: str, function: Any, expected: dict[str, float]
) -> None:
    """Softmax, sigmoid or none is applied as requested, whatever the model declares."""
    answer = InferenceClient(model=url).text_classification("love", function_to_apply=function)
    assert _scores(answer) == pytest.approx(expected)


def test_the_asynchronous_client_gets_the_same(url: str) -> None:
    """The asynchronous client, on aiohttp, gets the same; its requests share connections."""

    async def classify() -> list[Any]:
        async with AsyncInferenceClient(model=url) as client:
            return await asyncio.gather(*map(client.text_classification, ["love", "worst"] * 4))

    labels = [answer[0].label for answer in asyncio.run(classify())]
    assert labels == ["positive", "negative"] * 4


def test_the_client_shows_what_was_wrong(url: str) -> None:
    """The client's exception has the service's detail."""
    with pytest.raises(HfHubHTTPError, match="the text is empty or blank"):
        InferenceClient(model=url).text_classification("")
    with pytest.raises(HfHubHTTPError, match="top_k must be at least 1"):
        InferenceClient(model=url).text_classification("love", top_k=0)


def test_the_token_is_an_api_key(bundle: Path) -> None:
    """The client's token is the API key; a wrong or missing one gives 401 and what to do."""
    with Process("--model", str(bundle), *BY_HAND, "--api-keys", KEY) as process:
        client = InferenceClient(model=process.url, token=KEY)
        assert client.text_classification("love")[0].label == "positive"
        for token in ("another-key", None):
            with pytest.raises(HfHubHTTPError, match="401 ") as caught:
                InferenceClient(model=process.url, token=token).text_classification("love")
            assert "Authorization: Bearer KEY" in str(caught.value)


def _post(url: str, body: Any) -> httpx2.Response:
    return httpx2.post(f"{url}/", json=body)


def test_two_texts_are_two_documents(url: str) -> None:
    """Two texts are never taken for a pair: each has its own list of labels, in order."""
    answer = _post(url, {"inputs": ["love", "worst"]}).json()
    assert [item[0]["label"] for item in answer] == ["positive", "negative"]
    assert [len(item) for item in answer] == [3, 3]
    assert len(_post(url, {"inputs": ["love"]}).json()) == len(
        _post(url, {"inputs": "love"}).json()
    )


def test_what_other_clients_send_besides_is_ignored(url: str) -> None:
    """Unknown parameters, options, headers and null have no effect."""
    answer = httpx2.post(
        f"{url}/",
        json={
            "inputs": "love",
            "parameters": {"top_k": None, "function_to_apply": None, "padding": True},
            "options": {"wait_for_model": True, "use_cache": False},
        },
        headers={"x-wait-for-model": "true", "x-use-cache": "0"},
    )
    assert answer.status_code == 200
    assert len(answer.json()[0]) == 3
    assert _post(url, {"inputs": "love", "parameters": None}).status_code == 200


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        ({}, "invalid_request", "inputs is required"),
        ({"inputs": None}, "invalid_request", "inputs must be a string, an object"),
        ({"inputs": {"text": "a", "text_pair": "b"}}, "invalid_request", "takes single texts"),
        ({"inputs": [["a", "b"]]}, "invalid_request", "must be a string, an object"),
        ({"inputs": []}, "invalid_request", "at least one text"),
        ({"inputs": ["a"] * 1001}, "too_many_texts", "there are 1001 texts; at most 1000"),
        ({"inputs": ["love", " ", ""]}, "empty_text", "text 1, counted from 0: the text is empty"),
        ({"inputs": "a", "parameters": []}, "invalid_request", "parameters must be"),
        (
            {"inputs": "a", "parameters": {"top_k": True}},
            "invalid_request",
            "parameters.top_k must be",
        ),
        (
            {"inputs": "a", "parameters": {"top_k": 1.5}},
            "invalid_request",
            "parameters.top_k must be",
        ),
        (
            {"inputs": "a", "parameters": {"top_k": "1"}},
            "invalid_request",
            "parameters.top_k must be",
        ),
        (
            {"inputs": "a", "parameters": {"function_to_apply": "relu"}},
            "invalid_request",
            "function_to_apply must be 'softmax', 'sigmoid' or 'none'",
        ),
    ],
)
def test_a_bad_request_is_a_clear_problem(url: str, body: Any, code: str, says: str) -> None:
    """Code and message fit, and the message is where the clients look for it."""
    answer = _post(url, body)
    assert (answer.status_code, answer.json()["code"]) == (422, code)
    assert says in answer.json()["error"]
    assert answer.headers["content-type"] == "application/problem+json"
