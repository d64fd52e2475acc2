"""POST / with Hugging Face's own clients against a real server."""

import asyncio
from typing import Any

import httpx2
import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import HfHubHTTPError

from tests.conftest import Start

KEY = "key-of-the-test"


def _scores(answer: Any) -> dict[str, float]:
    return {element["label"]: element["score"] for element in answer}


def test_the_client_gets_labels_and_scores(url: str) -> None:
    """The client gets all labels, highest score first, with the native route's scores."""
    answer = InferenceClient(model=url).text_classification("love")
    native = httpx2.post(f"{url}/classify", json={"inputs": "love"}).json()["results"][0]
    assert list(_scores(answer)) == ["positive", "neutral", "negative"]
    assert _scores(answer) == native["scores"]


def test_top_k_cuts_the_answer(url: str) -> None:
    """The client's top_k keeps the best labels."""
    answer = InferenceClient(model=url).text_classification("love", top_k=2)
    assert list(_scores(answer)) == ["positive", "neutral"]


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


def test_the_token_is_an_api_key(start: Start) -> None:
    """The client's token is the API key; a wrong or missing one gives 401 and what to do."""
    process = start("--api-keys", KEY)
    client = InferenceClient(model=process.url, token=KEY)
    assert client.text_classification("love")[0].label == "positive"
    for token in ("another-key", None):
        with pytest.raises(HfHubHTTPError, match="401 ") as caught:
            InferenceClient(model=process.url, token=token).text_classification("love")
        assert "Authorization: Bearer KEY" in str(caught.value)
