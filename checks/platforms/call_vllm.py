"""What vLLM's two examples and tests for classification send, and OpenAI's client."""

import sys
from typing import Any

import requests
from openai import NotFoundError, OpenAI

URL = sys.argv[1]
PROMPTS = ["I love this!", "worst service ever"]
LABELS = ["positive", "negative"]


def post(path: str, status: int = 200, **body: Any) -> Any:
    answer = requests.post(URL + path, json=body, timeout=10)
    assert answer.status_code == status, (path, body, answer.text)
    return answer.json()


def labels(answer: Any) -> list[str]:
    """The labels of an answer that has all that vLLM's has."""
    assert answer["object"] == "list", answer
    assert [one["index"] for one in answer["data"]] == list(range(len(answer["data"])))
    assert all(len(one["probs"]) == one["num_classes"] for one in answer["data"])
    return [one["label"] for one in answer["data"]]


# examples/pooling/classify/classification_online.py, and openai_classification_client.py
model = requests.get(f"{URL}/v1/models", timeout=10).json()["data"][0]["id"]
by_text = post("/classify", model=model, input=PROMPTS)
assert labels(by_text) == LABELS
ids = [post("/tokenize", model=model, prompt=prompt)["tokens"] for prompt in PROMPTS]
by_ids = post("/classify", model=model, input=ids)
assert by_ids["data"] == by_text["data"]

# tests/entrypoints/pooling/classify/test_online.py; where it expects 400, the status is 422
for path in ("/classify", "/invocations"):
    for prompt in (PROMPTS[0], ids[0]):
        assert labels(post(path, model=model, input=prompt)) == LABELS[:1]
        assert labels(post(path, model=model, input=[prompt] * 10)) == LABELS[:1] * 10
long = {"model": model, "input": "hello " * 600, "truncate_prompt_tokens": 5}
assert post("/classify", **long)["usage"]["prompt_tokens"] == 5
for special in (True, False):
    post("/classify", model=model, input=PROMPTS[0], add_special_tokens=special)
logits, scores = (
    post("/classify", model=model, input=PROMPTS[0], use_activation=use)["data"][0]["probs"]
    for use in (False, True)
)
assert abs(sum(scores) - 1) < 1e-6 < abs(sum(logits) - 1)
long["truncate_prompt_tokens"] = 513
assert "truncate_prompt_tokens" in post("/classify", 422, **long)["error"]["message"]
empties: list[str | list[str]] = ["", []]
for empty in empties:
    assert "error" in post("/classify", 422, model=model, input=empty)
chat = [{"role": "user", "content": PROMPTS[0]}]
assert "chat template" in post("/classify", 422, model=model, messages=chat)["error"]["message"]

# tests/entrypoints/serve/tokenize/test_tokenization.py
tokens = post("/tokenize", model=model, prompt="hello", return_token_strs=True)
assert (tokens["count"], tokens["max_model_len"]) == (len(tokens["tokens"]), 512), tokens
assert tokens["token_strs"] == ["[CLS]", "hello", "[SEP]"], tokens
bare = post("/tokenize", model=model, prompt="hello", add_special_tokens=False)
assert (bare["tokens"], bare["token_strs"]) == (tokens["tokens"][1:-1], None), bare

with OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0) as client:
    assert [one.id for one in client.models.list()] == [model]
    assert client.models.retrieve(model).id == model
    assert labels(client.post("/classify", body={"input": PROMPTS}, cast_to=object)) == LABELS
    said: object = None
    try:
        client.moderations.create(input=PROMPTS[0])
    except NotFoundError as error:
        said = error.body
    assert "the nearest is POST /v1/" in str(said), said
