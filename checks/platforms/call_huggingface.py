"""huggingface_hub, and what the examples of text-embeddings-inference send."""

import asyncio
import sys
from typing import Any

import httpx2
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import HfHubHTTPError

URL = sys.argv[1]
LABELS = {"positive", "neutral", "negative"}


async def same(text: str) -> Any:
    return await AsyncInferenceClient(model=URL).text_classification(text)


# The examples of InferenceClient.text_classification and zero_shot_classification
client = InferenceClient(model=URL)
found = client.text_classification("I like you")
assert (found[0].label, {one.label for one in found}) == ("positive", LABELS), found
assert asyncio.run(same("I like you")) == found
(best,) = client.text_classification("I like you", top_k=1, function_to_apply="none")
assert (best.label, best.score > 1) == ("positive", True), best
for multi_label in (False, True):
    said = ""
    try:
        client.zero_shot_classification("I like you", ["a", "b"], multi_label=multi_label)
    except HfHubHTTPError as error:
        said = str(error)
    assert "zero-shot classification, which is not done here" in said

# docs/source/en/quick_tour.md of text-embeddings-inference, and router/tests/test_http_predict.rs
single = httpx2.post(f"{URL}/predict", json={"inputs": "I like you."}).json()
assert single[0]["label"] == "positive", single
rows = [["I like you."], ["I hate pineapples"]]
batch = httpx2.post(f"{URL}/predict", json={"inputs": rows}).json()
assert [one[0]["label"] for one in batch] == ["positive", "negative"], batch
assert batch[0] == single, batch
assert httpx2.get(f"{URL}/health").status_code == httpx2.get(f"{URL}/info").status_code == 200
