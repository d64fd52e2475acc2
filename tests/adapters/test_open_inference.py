"""The Open Inference Protocol against a real server: with tritonclient, or by hand if needed."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.http import aio
from tritonclient.utils import InferenceServerException

from tests.conftest import Serve
from tests.support.serving import metric
from tests.support.tiny_bundle import make_bundle

OUTPUTS = ["label", "score", "logits", "scores", "polarity"]
LOGITS = [[-1, 0, 4], [4, 0.5, -1]]  # of "love" and "worst été"


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[triton.InferenceServerClient]:
    """Triton's client."""
    with triton.InferenceServerClient(url.removeprefix("http://")) as client:
        yield client


def _tensor(texts: list[Any], *, binary: bool = True, column: bool = False) -> triton.InferInput:
    array = np.array(texts, dtype=object).reshape((-1, 1) if column else (-1,))
    tensor = triton.InferInput("text", array.shape, "BYTES")
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


def test_server_and_model_are_live_and_ready(client: triton.InferenceServerClient) -> None:
    """Server and model are ready, with or without a version; unknown ones are not."""
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("tiny")
    assert client.is_model_ready("tiny", "1")
    assert not client.is_model_ready("tiny", "2")
    assert not client.is_model_ready("other")


@pytest.mark.parametrize("binary_input", [True, False])
@pytest.mark.parametrize("binary_output", [True, False, None])
@pytest.mark.parametrize("column", [False, True])
def test_inference_with_numpy(
    client: triton.InferenceServerClient,
    url: str,
    binary_input: bool,
    binary_output: bool | None,
    column: bool,
) -> None:
    """Two texts are two documents, as JSON and as bytes, as a row and as a column."""
    outputs = None  # all of them, which the client wants as bytes
    if binary_output is not None:
        outputs = [triton.InferRequestedOutput(name, binary_output) for name in OUTPUTS]
    tensor = _tensor(["love", "worst été"], binary=binary_input, column=column)
    result = client.infer("tiny", [tensor], outputs=outputs, request_id="seven")
    assert result.get_response()["id"] == "seven"
    assert result.get_response()["model_name"] == "tiny"
    labels = result.as_numpy("label").tolist()
    assert [x if isinstance(x, str) else x.decode() for x in labels] == ["positive", "negative"]
    assert result.as_numpy("logits").tolist() == LOGITS
    native = httpx2.post(f"{url}/classify", json={"inputs": ["love", "worst été"]}).json()
    expected = np.array([[*item["scores"].values()] for item in native["results"]], np.float32)
    assert result.as_numpy("scores").tolist() == expected.tolist()
    assert result.as_numpy("score").tolist() == expected.max(axis=1).tolist()
    assert result.as_numpy("score").dtype == np.float32
    polarity = np.array([item["polarity"] for item in native["results"]], np.float32)
    assert result.as_numpy("polarity").tolist() == polarity.tolist()


def test_only_the_outputs_asked_for_are_answered(client: triton.InferenceServerClient) -> None:
    """Only requested outputs are answered, each in the requested form, as bytes or as JSON."""
    outputs = [
        triton.InferRequestedOutput("score", binary_data=True),
        triton.InferRequestedOutput("label", binary_data=False),
    ]
    result = client.infer("tiny", [_tensor(["love"])], model_version="1", outputs=outputs)
    score, label = result.get_response()["outputs"]
    assert (score["name"], score["parameters"]) == ("score", {"binary_data_size": 4})
    assert (label["name"], label["data"]) == ("label", ["positive"])
    assert result.as_numpy("score").shape == (1,)
    assert result.as_numpy("logits") is None


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False])
def test_bodies_may_be_compressed(
    client: triton.InferenceServerClient, algorithm: str, binary: bool
) -> None:
    """The JSON's length is that of the decompressed body; the answer may be compressed too."""
    result = client.infer(
        "tiny",
        [_tensor(["love"] * 100, binary=binary)],
        request_compression_algorithm=algorithm,
        response_compression_algorithm=algorithm,
    )
    assert result.as_numpy("label").tolist() == [b"positive"] * 100


async def test_the_asynchronous_client_gets_the_same(url: str) -> None:
    """The asynchronous client, on aiohttp, gets the same for several concurrent requests."""
    async with aio.InferenceServerClient(url.removeprefix("http://")) as client:
        assert await client.is_model_ready("tiny")
        inputs = [_tensor(["love"], binary=bool(number % 2)) for number in range(8)]
        results = await asyncio.gather(*(client.infer("tiny", [tensor]) for tensor in inputs))
    assert [result.as_numpy("label").tolist() for result in results] == [[b"positive"]] * 8


def test_the_client_shows_what_was_wrong(client: triton.InferenceServerClient) -> None:
    """The client's exceptions have the service's status and detail. Other refusals are recorded."""
    says = "no model has that name; the served models are: tiny"
    with pytest.raises(InferenceServerException, match=says) as caught:
        client.infer("other", [_tensor(["love"])])
    assert caught.value.status() == "404"
    with pytest.raises(InferenceServerException, match=says):
        client.get_model_metadata("other")


def test_the_path_chooses_the_model(serve: Serve, bundle: Path, tmp_path: Path) -> None:
    """The second of two models computes if the path names it."""
    client = serve(model=(bundle, make_bundle(tmp_path / "other", name="other")))
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["love"]}
    answer = client.post("/v2/models/other/infer", json={"inputs": [tensor]})
    assert answer.json()["model_name"] == "other"
    computed = {"model": "other", "outcome": "ok"}
    assert metric(client, "sentiment_texts_total", **computed) == 1
