"""KServe's clients: REST with the protocols V1 and V2, and gRPC."""

import asyncio
import sys

import numpy as np
from kserve import (
    InferenceGRPCClient,
    InferenceRESTClient,
    InferInput,
    InferRequest,
    RESTConfig,
)

MODEL = "minilm-l6-tweet-sentiment"
TEXTS = ["I love this!", "worst service ever"]
LABELS = ["positive", "negative"]


async def main(url: str) -> None:
    """Ask for readiness and predictions."""
    async with InferenceRESTClient(RESTConfig(protocol="v1")) as client:
        assert await client.is_model_ready(url, MODEL)
        answer = await client.infer(url, {"instances": TEXTS}, model_name=MODEL)
        labels = [one["label"] for one in answer["predictions"]]
        assert labels == LABELS, answer
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:
        assert await client.is_server_live(url)
        assert await client.is_server_ready(url)
        assert await client.is_model_ready(url, MODEL)
        for binary in (True, False):
            tensor = InferInput("text", [len(TEXTS)], "BYTES")
            tensor.set_data_from_numpy(np.array(TEXTS, dtype=object), binary_data=binary)
            request = InferRequest(model_name=MODEL, infer_inputs=[tensor])
            answer = await client.infer(url, request, model_name=MODEL)
            (found,) = (one.as_numpy() for one in answer.outputs if one.name == "label")
            assert list(found) == LABELS, (binary, found)


async def check_grpc(address: str) -> None:
    """The same with gRPC."""
    async with InferenceGRPCClient(address) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready(MODEL)
        for binary in (True, False):
            tensor = InferInput("text", [len(TEXTS)], "BYTES")
            tensor.set_data_from_numpy(np.array(TEXTS, dtype=object), binary_data=binary)
            answer = await client.infer(InferRequest(model_name=MODEL, infer_inputs=[tensor]))
            (found,) = (one.as_numpy() for one in answer.outputs if one.name == "label")
            labels = [one.decode() if isinstance(one, bytes) else one for one in found]
            assert labels == LABELS, (binary, found)


asyncio.run(main(sys.argv[1]))
asyncio.run(check_grpc(sys.argv[2]))
