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


def request(*, binary: bool) -> InferRequest:
    """A request with the texts in its tensor, or as bytes behind it."""
    tensor = InferInput("text", [len(TEXTS)], "BYTES")
    tensor.set_data_from_numpy(np.array(TEXTS, dtype=object), binary_data=binary)
    return InferRequest(model_name=MODEL, infer_inputs=[tensor])


async def main(url: str, grpc_address: str) -> None:
    async with InferenceRESTClient(RESTConfig(protocol="v1")) as client:
        assert await client.is_server_live(url)
        assert await client.is_model_ready(url, MODEL)
        answer = await client.infer(url, {"instances": TEXTS}, model_name=MODEL)
        labels = [one["label"] for one in answer["predictions"]]
        assert labels == LABELS, answer
    async with (
        InferenceRESTClient(RESTConfig(protocol="v2")) as rest,
        InferenceGRPCClient(grpc_address) as grpc,
    ):
        for client, where, named in ((rest, [url], {"model_name": MODEL}), (grpc, [], {})):
            assert await client.is_server_live(*where)
            assert await client.is_server_ready(*where)
            assert await client.is_model_ready(*where, MODEL)
            for binary in (True, False):
                answer = await client.infer(*where, request(binary=binary), **named)
                (found,) = (one.as_numpy() for one in answer.outputs if one.name == "label")
                labels = [one.decode() if isinstance(one, bytes) else one for one in found]
                assert labels == LABELS, (client, binary, found)


asyncio.run(main(*sys.argv[1:]))
