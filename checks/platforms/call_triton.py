"""Triton's gRPC client, blocking and on asyncio."""

import asyncio
import sys

import numpy as np
import tritonclient.grpc as blocking
from tritonclient.grpc import aio

MODEL = "minilm-l6-tweet-sentiment"
TEXTS = ["I love this!", "worst service ever"]
LABELS = [b"positive", b"negative"]


def texts() -> blocking.InferInput:
    """The input tensor."""
    tensor = blocking.InferInput("text", [len(TEXTS)], "BYTES")
    tensor.set_data_from_numpy(np.array(TEXTS, dtype=object))
    return tensor


def check_blocking(address: str) -> None:
    """Ask for health, metadata, results and an error."""
    with blocking.InferenceServerClient(address) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready(MODEL)
        assert client.get_model_metadata(MODEL).inputs[0].name == "text"
        outputs = [blocking.InferRequestedOutput(name) for name in ("label", "scores")]
        answer = client.infer(MODEL, [texts()], outputs=outputs, request_id="5", client_timeout=10)
        assert list(answer.as_numpy("label")) == LABELS
        assert answer.as_numpy("scores").shape == (len(TEXTS), 3)
        assert answer.get_response().id == "5"
        status = ""
        try:
            client.infer("other", [texts()])
        except blocking.InferenceServerException as error:
            status = error.status()
        assert "NOT_FOUND" in status


async def check_asyncio(address: str) -> None:
    """Send compressed requests at the same time."""
    async with aio.InferenceServerClient(address) as client:
        calls = (client.infer(MODEL, [texts()], compression_algorithm="gzip") for _ in range(20))
        for answer in await asyncio.gather(*calls):
            assert list(answer.as_numpy("label")) == LABELS


check_blocking(sys.argv[2])
asyncio.run(check_asyncio(sys.argv[2]))
