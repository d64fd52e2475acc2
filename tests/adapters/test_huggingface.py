"""POST / with Hugging Face's own clients, and POST /predict as TEI's documentation uses it."""

import asyncio
import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import HfHubHTTPError

from tests.conftest import Listen, Serve
from tests.support.serving import Gate, eventually, installed, metric

KEY = "key-of-the-test"


def _scores(answer: Any) -> dict[str, float]:
    return {element["label"]: element["score"] for element in answer}


def test_the_client_gets_labels_and_scores(url: str) -> None:
    """The client gets all labels, highest score first, with the native route's scores.

    Its top_k keeps the best labels.
    """
    answer = InferenceClient(model=url).text_classification("love")
    native = httpx2.post(f"{url}/classify", json={"inputs": "love"}).json()["results"][0]
    assert list(_scores(answer)) == ["positive", "neutral", "negative"]
    assert _scores(answer) == native["scores"]
    answer = InferenceClient(model=url).text_classification("love", top_k=2)
    assert list(_scores(answer)) == ["positive", "neutral"]


async def test_the_asynchronous_client_gets_the_same(url: str) -> None:
    """The asynchronous client, on aiohttp, gets the same; its requests share connections."""
    async with AsyncInferenceClient(model=url) as client:
        answers = await asyncio.gather(*map(client.text_classification, ["love", "worst"] * 4))
    assert [answer[0].label for answer in answers] == ["positive", "negative"] * 4


def test_the_client_shows_what_was_wrong(url: str) -> None:
    """The client's exception has the service's detail."""
    with pytest.raises(HfHubHTTPError, match="the text is empty or blank"):
        InferenceClient(model=url).text_classification("")
    with pytest.raises(HfHubHTTPError, match="top_k must be at least 1"):
        InferenceClient(model=url).text_classification("love", top_k=0)


def test_the_token_is_an_api_key(listen: Listen) -> None:
    """The client's token is the API key; a wrong or missing one gives 401 and what to do."""
    url = f"http://127.0.0.1:{listen(api_keys=KEY)}"
    client = InferenceClient(model=url, token=KEY)
    assert client.text_classification("love")[0].label == "positive"
    for token in ("another-key", None):
        with pytest.raises(HfHubHTTPError, match="401 ") as caught:
            InferenceClient(model=url, token=token).text_classification("love")
        assert "Authorization: Bearer KEY" in str(caught.value)


def _labels(answer: Any) -> Any:
    """The labels, in place of the objects that have them."""
    return [_labels(item) if isinstance(item, list) else item["label"] for item in answer]


def _curl(url: str, body: str) -> Any:
    command = [installed("curl", "curl"), "-s", f"{url}/predict", "-X", "POST", "-d", body]
    command += ["-H", "Content-Type: application/json"]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


def test_curl_as_documented(url: str) -> None:
    """One text gets one list, a TEI batch a list of lists; the highest score comes first."""
    one = _curl(url, '{"inputs":"I love you."}')
    assert _labels(one) == ["positive", "neutral", "negative"]
    assert [item["score"] for item in one] == sorted((item["score"] for item in one), reverse=True)
    batch = _curl(url, '{"inputs":[["I love you."], ["worst of all"]]}')
    assert batch[0] == one
    assert _labels(batch)[1] == ["negative", "neutral", "positive"]


def test_an_error_has_the_type_that_tei_gives_it(
    serve: Serve, gate: Gate, pool: ThreadPoolExecutor
) -> None:
    """``error_type`` stands beside our members; one who shall come again learns when."""
    client = serve(runners=1, max_queue_tokens=12)

    def ask(text: str, **headers: str) -> tuple[int, str, str, bool]:
        answer = client.post("/predict", json={"inputs": text}, headers=headers)
        said = answer.json()
        retries = "retry-after" in answer.headers
        return answer.status_code, said["error_type"], said["code"], retries

    assert ask("nan") == (500, "Backend", "inference_failed", False)
    gate.close()
    late = ask("love", **{"x-request-timeout-ms": "100"})
    assert late == (504, "Backend", "deadline_exceeded", False)
    for _ in range(2):
        pool.submit(client.post, "/classify", json={"inputs": ["worst", "worst"]})
    eventually(lambda: metric(client, "sentiment_queue_tokens", model="tiny") == 12)
    assert ask("love") == (429, "Overloaded", "overloaded", True)


LONG = "love " * 20


@pytest.mark.parametrize("path", ["/", "/invocations"])
@pytest.mark.parametrize(
    ("parameters", "refused"),
    [
        ({"truncation": False}, "the text has 22 tokens"),
        ({"truncation": "do_not_truncate"}, "the text has 22 tokens"),
        ({"truncation": "sometimes"}, "parameters.truncation"),
        ({"truncation": True, "max_length": 5}, "parameters.max_length must be at least 16"),
        ({"add_special_tokens": False}, "parameters.add_special_tokens"),
        ({"truncation": True, "padding": True, "max_length": 512}, None),
        ({"truncation": "longest_first", "padding": "max_length", "max_length": None}, None),
        ({"truncation": None, "add_special_tokens": True, "return_tensors": "pt"}, None),
    ],
)
def test_a_parameter_of_the_tokenizer_is_followed_or_refused(
    url: str, path: str, parameters: dict[str, Any], refused: str | None
) -> None:
    """A long text is cut at the model's length, or the request is refused: 422 names the reason."""
    answer = httpx2.post(f"{url}{path}", json={"inputs": LONG, "parameters": parameters})
    if refused is None:
        assert answer.status_code == 200
    else:
        assert (answer.status_code, refused in answer.json()["detail"]) == (422, True), answer.text
