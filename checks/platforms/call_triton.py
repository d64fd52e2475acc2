"""Triton's clients: what its examples for health, metadata and texts call, over HTTP and gRPC."""

import asyncio
import sys
from types import ModuleType
from typing import Any

import numpy as np
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from tritonclient.grpc import aio
from tritonclient.utils import InferenceServerException

MODEL = "minilm-l6-tweet-sentiment"
TEXTS = np.array(["I love this!", "worst service ever"], dtype=object)
LABELS = [b"positive", b"negative"]
# The extensions that this service does not have; the error names what there is instead.
EXTENSIONS = {
    "get_model_config": [MODEL],
    "get_inference_statistics": [MODEL],
    "get_model_repository_index": [],
    "load_model": [MODEL],
    "get_trace_settings": [],
    "get_system_shared_memory_status": [],
}
INSTEAD = {over_grpc: "the methods are", over_http: "the nearest is"}


def texts(module: ModuleType, **options: bool) -> Any:
    tensor = module.InferInput("text", TEXTS.shape, "BYTES")
    tensor.set_data_from_numpy(TEXTS, **options)
    return tensor


def check(module: ModuleType, client: Any, compressed: dict[str, str]) -> None:
    """Ask for health, metadata and results, and for what is refused."""
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(MODEL)
    assert "sentiment-service" in str(client.get_server_metadata())
    assert "logits" in str(client.get_model_metadata(MODEL))
    outputs = [module.InferRequestedOutput(name) for name in ("label", "scores")]
    asked = {"outputs": outputs, "request_id": "5", "sequence_id": 1, "sequence_start": True}
    for options in ({}, compressed, {"model_version": "1", "priority": 1, **asked}):
        answer = client.infer(MODEL, [texts(module)], **options)
        assert list(answer.as_numpy("label")) == LABELS
        assert answer.as_numpy("scores").shape == (len(TEXTS), 3)
    classes = [module.InferRequestedOutput("scores", class_count=2)]
    refuse("classification must be left out", client.infer, MODEL, [texts(module)], outputs=classes)
    refuse("the served models are", client.infer, "other", [texts(module)])
    for name, arguments in EXTENSIONS.items():
        refuse(INSTEAD[module], getattr(client, name), *arguments)


def refuse(words: str, call: Any, *arguments: Any, **options: Any) -> None:
    """Make a call that must raise the client's exception with these words."""
    said = ""
    try:
        call(*arguments, **options)
    except InferenceServerException as error:
        said = error.message()
    assert words in said, (call, said)


async def check_asyncio(address: str) -> None:
    async with aio.InferenceServerClient(address) as client:
        tensors = [texts(over_grpc)]
        calls = (client.infer(MODEL, tensors, compression_algorithm="gzip") for _ in range(20))
        for answer in await asyncio.gather(*calls):
            assert list(answer.as_numpy("label")) == LABELS


url, grpc_address = sys.argv[1:]
with over_grpc.InferenceServerClient(grpc_address) as grpc_client:
    check(over_grpc, grpc_client, {"compression_algorithm": "gzip"})
asyncio.run(check_asyncio(grpc_address))
with over_http.InferenceServerClient(url.removeprefix("http://")) as client:
    check(over_http, client, {"request_compression_algorithm": "gzip"})
    as_json = [over_http.InferRequestedOutput("label", binary_data=False)]
    answer = client.infer(MODEL, [texts(over_http, binary_data=False)], outputs=as_json)
    assert list(answer.as_numpy("label")) == [label.decode() for label in LABELS]
    later = client.async_infer(MODEL, [texts(over_http)])
    assert list(later.get_result().as_numpy("label")) == LABELS
