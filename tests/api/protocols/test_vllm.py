"""POST /v1/classify with OpenAI's client against a real server, as users of vLLM send it."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openai import AuthenticationError, NotFoundError, OpenAI, UnprocessableEntityError

from tests.support.serving import Process

BY_HAND = ("--runners", "2", "--threads", "1", "--max-batch-tokens", "512")
KEY = "key-of-the-test"
LONG = "love " * 20  # 22 tokens, of 16


@pytest.fixture(scope="module")
def url(bundle: Path) -> Iterator[str]:
    """The URL of a server of the tiny model, which needs a key."""
    with Process("--model", str(bundle), *BY_HAND, "--api-keys", KEY) as process:
        yield process.url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[OpenAI]:
    """OpenAI's client."""
    with OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def _classify(client: OpenAI, **body: Any) -> Any:
    return client.post("/classify", body=body, cast_to=object)


def test_the_client_gets_what_vllm_answers(client: OpenAI, url: str) -> None:
    """The answer has every member of vLLM's; probabilities are in the order of the labels."""
    answer = _classify(client, model="tiny", input="love")
    native = httpx2.post(
        f"{url}/classify", json={"inputs": "love"}, headers={"authorization": f"Bearer {KEY}"}
    ).json()
    assert answer.pop("id").startswith("classify-")
    assert abs(answer.pop("created") - time.time()) < 60
    assert answer == {
        "object": "list",
        "model": "tiny",
        "data": [
            {
                "index": 0,
                "label": "positive",
                "probs": [native["results"][0]["scores"][label] for label in native["labels"]],
                "num_classes": 3,
            }
        ],
        "usage": {
            "prompt_tokens": 3,
            "total_tokens": 3,
            "completion_tokens": 0,
            "prompt_tokens_details": None,
        },
    }


def test_the_id_is_that_of_the_request(client: OpenAI) -> None:
    """The client's x-request-id is in the answer."""
    answer: Any = client.post(
        "/classify",
        body={"input": "love"},
        cast_to=object,
        options={"headers": {"x-request-id": "seven"}},
    )
    assert answer["id"] == "classify-seven"


def test_two_texts_are_two_documents(client: OpenAI) -> None:
    """A list is that many documents, in order, even if no model is named."""
    data = _classify(client, input=["love", "worst", "love"])["data"]
    assert [item["index"] for item in data] == [0, 1, 2]
    assert [item["label"] for item in data] == ["positive", "negative", "positive"]
    assert len(_classify(client, input=["love"])["data"]) == 1


@pytest.mark.parametrize("truncation", [{}, {"truncate_prompt_tokens": -1}])
def test_a_long_text_is_cut_to_the_models_maximum(client: OpenAI, truncation: Any) -> None:
    """A long text is truncated, requested or not; removed tokens are not counted as computed."""
    answer = _classify(client, input=[LONG, "love"], truncation_side="right", **truncation)
    assert answer["usage"]["prompt_tokens"] == 16 + 3


@pytest.mark.parametrize("name", ["use_activation", "activation"])
def test_without_activation_logits_are_answered(client: OpenAI, name: str) -> None:
    """false gives logits, by vLLM's current or older name; true and null give probabilities."""
    assert _classify(client, input="love", **{name: False})["data"][0]["probs"] == [-1, 0, 4]
    for value in (True, None):
        probs = _classify(client, input="love", **{name: value})["data"][0]["probs"]
        assert sum(probs) == pytest.approx(1)


def test_what_clients_send_besides_is_ignored(client: OpenAI) -> None:
    """Fields without meaning for a classifier have no effect."""
    body = {"user": "me", "priority": 0, "encoding_format": "float", "add_special_tokens": True}
    assert _classify(client, input="love", **body)["data"][0]["label"] == "positive"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "input is required"),
        ({"input": None}, "input must be a string, an object"),
        ({"input": [1, 2]}, "input must be a string, an object"),
        ({"input": [["a", "b"]]}, "input must be a string, an object"),
        ({"input": []}, "at least one text"),
        ({"input": ["a"] * 1001}, "there are 1001 texts; at most 1000"),
        ({"input": ["a", ""]}, "text 1, counted from 0: the text is empty"),
        ({"messages": []}, "input is required"),
        ({"input": "a", "model": 1}, "model must be a string"),
        ({"input": "a", "truncate_prompt_tokens": 8}, "truncate_prompt_tokens must be -1"),
        ({"input": "a", "truncation_side": "left"}, "truncation_side must be 'right'"),
        ({"input": "a", "use_activation": 0}, "use_activation must be"),
    ],
)
def test_the_client_shows_what_was_wrong(client: OpenAI, body: Any, says: str) -> None:
    """The client's exception has our detail and code; the answer is still our problem document."""
    with pytest.raises(UnprocessableEntityError) as caught:
        _classify(client, **body)
    assert says in str(caught.value)
    problem = caught.value.response.json()
    assert (problem["code"], problem["status"]) == (caught.value.code, 422)
    assert says in problem["detail"]


def test_an_unknown_model_and_a_wrong_key_are_the_clients_own_exceptions(
    client: OpenAI, url: str
) -> None:
    """404 names the served models; 401 says what to send."""
    with pytest.raises(NotFoundError, match="served models are: tiny"):
        _classify(client, model="gpt", input="love")
    with (
        OpenAI(base_url=f"{url}/v1", api_key="another", max_retries=0) as other,
        pytest.raises(AuthenticationError) as caught,
    ):
        _classify(other, input="love")
    assert "Authorization: Bearer KEY" in str(caught.value.body)


def test_the_client_lists_the_served_models(client: OpenAI) -> None:
    """The client lists the models; its examples use the first one."""
    models = client.models.list().data
    assert [model.id for model in models] == ["tiny"]
    assert models[0].created > 0
