"""What users of vLLM send, with OpenAI's client and without one, against a real server."""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from tests.conftest import FLAGS
from tests.support.serving import Process

if TYPE_CHECKING:
    from openai import OpenAI

KEY = "key-of-the-test"


@pytest.fixture(scope="module")
def url(bundle: Path) -> Iterator[str]:
    """The URL of a server of the tiny model, which needs a key."""
    with Process("--model", str(bundle), *FLAGS, "--api-keys", KEY) as process:
        yield process.url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator["OpenAI"]:
    """OpenAI's client, whose import takes each process that runs tests a second."""
    from openai import OpenAI

    with OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def _classify(client: "OpenAI", **body: Any) -> Any:
    return client.post("/classify", body=body, cast_to=object)


def _retrieve(client: "OpenAI") -> Any:
    return client.models.retrieve("gpt")


def _listed(client: "OpenAI") -> Any:
    return client.models.list().data


def _post(url: str, path: str, **body: Any) -> Any:
    """The answer to a body that is sent as vLLM's examples send theirs, without a client."""
    return httpx2.post(
        url + path, json=body, headers={"authorization": f"Bearer {KEY}"}, timeout=60
    ).json()


def _probabilities(answer: Any) -> list[list[float]]:
    return [one["probs"] for one in answer["data"]]


@pytest.mark.parametrize("path", ["/classify", "/v1/classify", "/invocations"])
def test_a_body_of_vllm_is_answered_in_its_form_where_vllm_has_it(url: str, path: str) -> None:
    """Texts, their token ids from /tokenize, and a list of them get vLLM's answer and same bits."""
    texts = ["love it", "worst"]
    by_text = _post(url, path, model="tiny", input=texts)
    assert [one["label"] for one in by_text["data"]] == ["positive", "negative"]
    ids = [_post(url, "/tokenize", model="tiny", prompt=text)["tokens"] for text in texts]
    by_ids = _post(url, path, model="tiny", input=ids)
    assert (by_ids["data"], by_ids["usage"]) == (by_text["data"], by_text["usage"])
    assert _probabilities(_post(url, path, input=ids[1])) == _probabilities(by_text)[1:]


@pytest.mark.parametrize("text", ["love " * 20, "love worst love worst"])
def test_a_text_is_cut_as_it_asks(url: str, text: str) -> None:
    """`truncate_prompt_tokens` counts special tokens, which stay; without them, texts have more."""
    cut = _post(url, "/classify", input=text, truncate_prompt_tokens=4)
    assert cut["usage"]["prompt_tokens"] == 4
    words = " ".join(text.split()[:2])
    assert cut["data"] == _post(url, "/classify", input=words)["data"]
    bare = {"truncate_prompt_tokens": 4, "add_special_tokens": False}
    assert _post(url, "/classify", input=text, **bare)["usage"]["prompt_tokens"] == 4
    ids = [1, 4, 4, 5, 2]
    cut = _post(url, "/classify", input=ids, truncate_prompt_tokens=3)
    assert cut["data"] == _post(url, "/classify", input=ids[:3])["data"]


def test_the_client_gets_what_vllm_answers(client: "OpenAI", url: str) -> None:
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


def test_the_client_shows_what_was_wrong(client: "OpenAI") -> None:
    """The client's exception has our detail and code; the answer is still our problem document."""
    from openai import UnprocessableEntityError

    with pytest.raises(UnprocessableEntityError, match="input is required") as caught:
        _classify(client)
    problem = caught.value.response.json()
    assert (problem["code"], problem["status"]) == (caught.value.code, 422)


def test_an_unknown_model_and_a_wrong_key_are_the_clients_own_exceptions(
    client: "OpenAI", url: str
) -> None:
    """404 names the served models; 401 says what to send, also where the client lists models."""
    from openai import AuthenticationError, NotFoundError, OpenAI

    for asked in (partial(_classify, model="gpt", input="love"), _retrieve):
        with pytest.raises(NotFoundError, match="served models are: tiny"):
            asked(client)
    with OpenAI(base_url=f"{url}/v1", api_key="another", max_retries=0) as other:
        for asked in (partial(_classify, input="love"), _retrieve, _listed):
            with pytest.raises(AuthenticationError, match="Authorization: Bearer KEY"):
                asked(other)


def test_the_client_lists_the_served_models(client: "OpenAI") -> None:
    """The client lists the models; its examples use the first one."""
    models = client.models.list().data
    assert [model.id for model in models] == ["tiny"]
    assert models[0].created > 0


@pytest.mark.parametrize("path", ["/classify", "/v1/classify", "/invocations"])
@pytest.mark.parametrize("value", [True, False])
def test_a_body_of_infinity_is_refused(url: str, path: str, value: bool) -> None:
    """Its clients read another form, and raw scores were not what they got: the error says so."""
    answer = _post(url, path, input="love it", raw_scores=value)
    assert (answer["status"], "raw_scores is Infinity's" in answer["detail"]) == (422, True)
