"""The Open Inference Protocol against a real server: with tritonclient, or by hand if needed."""

import asyncio
import json
import struct
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
from tests.support.serving import Process, metric
from tests.support.tiny_bundle import make_bundle

BY_HAND = ("--runners", "2", "--threads", "1", "--max-batch-tokens", "512")
OUTPUTS = ["label", "score", "logits", "scores"]
LOGITS = [[-1, 0, 4], [4, 0.5, -1]]  # of "love" and "worst été"
FLAT = [-1, 0, 4, 4, 0.5, -1]


@pytest.fixture(scope="module")
def url(bundle: Path) -> Iterator[str]:
    """The URL of a server of the tiny model."""
    with Process("--model", str(bundle), *BY_HAND) as process:
        yield process.url


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


def test_the_client_reads_statistics_configuration_and_index(
    client: triton.InferenceServerClient,
) -> None:
    """Triton's client finds the calls beyond inference, and the model's name and tensors there."""
    (stats,) = client.get_inference_statistics()["model_stats"]
    assert stats == client.get_inference_statistics("tiny", "1")["model_stats"][0]
    assert stats["name"] == "tiny"
    config = client.get_model_config("tiny")
    assert [tensor["dims"] for tensor in config["output"]] == [[-1], [-1], [-1, 3], [-1, 3]]
    assert client.get_model_repository_index()[0]["state"] == "READY"
    with pytest.raises(InferenceServerException, match="no admin keys"):
        client.load_model("tiny")


def test_metadata_describe_server_and_model(client: triton.InferenceServerClient) -> None:
    """The client reads tensors, ordered labels, and that binary tensors are supported."""
    server = client.get_server_metadata()
    assert server["name"] == "sentiment-service"
    assert server["version"]
    assert "binary_tensor_data" in server["extensions"]
    model = client.get_model_metadata("tiny")
    assert model == client.get_model_metadata("tiny", "1")
    assert (model["name"], model["versions"]) == ("tiny", ["1"])
    assert model["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    assert model["outputs"] == [
        {"name": "label", "datatype": "BYTES", "shape": [-1]},
        {"name": "score", "datatype": "FP32", "shape": [-1]},
        {"name": "logits", "datatype": "FP32", "shape": [-1, 3]},
        {"name": "scores", "datatype": "FP32", "shape": [-1, 3]},
    ]
    assert model["parameters"]["labels"] == ["negative", "neutral", "positive"]


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


def test_the_asynchronous_client_gets_the_same(url: str) -> None:
    """The asynchronous client, on aiohttp, gets the same for several concurrent requests."""

    async def classify() -> list[Any]:
        async with aio.InferenceServerClient(url.removeprefix("http://")) as client:
            assert await client.is_model_ready("tiny")
            inputs = [_tensor(["love"], binary=bool(number % 2)) for number in range(8)]
            return await asyncio.gather(*(client.infer("tiny", [tensor]) for tensor in inputs))

    results = asyncio.run(classify())
    assert [result.as_numpy("label").tolist() for result in results] == [[b"positive"]] * 8


def test_a_long_text_is_truncated_unless_refused(client: triton.InferenceServerClient) -> None:
    """The parameter overflow works as on the native route; the exception has our detail."""
    long = _tensor(["love " * 20])
    assert client.infer("tiny", [long]).as_numpy("label").tolist() == [b"positive"]
    with pytest.raises(InferenceServerException, match="the text has 22 tokens"):
        client.infer("tiny", [long], parameters={"overflow": "error"})


def test_the_client_shows_what_was_wrong(client: triton.InferenceServerClient) -> None:
    """The client's exceptions have the service's status and detail."""
    love = _tensor(["love"])
    for model, version, says in (
        ("other", "", "no model has that name; the served models are: tiny"),
        ("tiny", "2", "tiny is served in version 1 only"),
    ):
        with pytest.raises(InferenceServerException, match=says) as caught:
            client.infer(model, [love], model_version=version)
        assert caught.value.status() == "404"
        with pytest.raises(InferenceServerException, match=says):
            client.get_model_metadata(model, version)
    number = triton.InferInput("text", [1], "FP32")
    number.set_data_from_numpy(np.zeros(1, dtype=np.float32))
    for tensors, says in (
        ([_tensor(["love", " "])], "text 1, counted from 0: the text is empty"),
        ([_tensor([b"\xff"])], "element 0 of the binary data, counted from 0, is not UTF-8"),
        ([_tensor(["love"] * 1001)], "more than the 1000 texts"),
        ([number], "datatype must be 'BYTES'"),
        ([love, love], "inputs must not have more items than 1"),
        ([triton.InferInput("title", [1], "BYTES")], "inputs.0.name must be 'text'"),
        ([triton.InferInput("text", [1], "BYTES")], "inputs.0.data is required"),
    ):
        with pytest.raises(InferenceServerException, match=says) as caught:
            client.infer("tiny", tensors)
        assert caught.value.status() == "422"
    shared = triton.InferRequestedOutput("label")
    shared.set_shared_memory("region", 8)
    classes = triton.InferRequestedOutput("scores", class_count=2)
    for output, name in ((shared, "shared_memory_region"), (classes, "classification")):
        with pytest.raises(InferenceServerException, match=f"{name} must be left out"):
            client.infer("tiny", [love], outputs=[output])


def _input(texts: Any, **changes: Any) -> dict[str, Any]:
    tensor = {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts}
    return tensor | changes


def _post(url: str, body: Any, model: str = "tiny") -> httpx2.Response:
    # Not httpx's own JSON, which cannot say half of a surrogate pair.
    return httpx2.post(f"{url}/v2/models/{model}/infer", content=json.dumps(body))


def test_json_without_binary_data(url: str) -> None:
    """As in the specification: outputs row by row, and an id only if the request had one."""
    body = {"inputs": [_input(["love", "worst été"])], "outputs": [{"name": "logits"}]}
    assert _post(url, body).json() == {
        "model_name": "tiny",
        "model_version": "1",
        "outputs": [{"name": "logits", "datatype": "FP32", "shape": [2, 3], "data": FLAT}],
    }
    answer = _post(url, {"inputs": [_input(["love"])], "outputs": []})
    assert [output["name"] for output in answer.json()["outputs"]] == OUTPUTS
    assert "tokenize;dur=" in answer.headers["server-timing"]


@pytest.mark.parametrize("whole", [True, False])
def test_an_output_may_differ_from_the_request(url: str, whole: bool) -> None:
    """binary_data of an output overrides binary_data_output of the request."""
    body = {
        "inputs": [_input(["love"])],
        "outputs": [
            {"name": "label", "parameters": {"binary_data": not whole}},
            {"name": "score"},
        ],
        "parameters": {"binary_data_output": whole},
    }
    answer = _post(url, body)
    document = answer.content[: int(answer.headers["inference-header-content-length"])]
    label, score = json.loads(document)["outputs"]
    assert ("data" in label, "data" in score) == (whole, not whole)


@pytest.mark.parametrize(
    ("shape", "data"), [([2], [["love"], ["worst"]]), ([2.0, 1], [["love"], ["worst"]])]
)
def test_data_may_be_nested(url: str, shape: list[float], data: Any) -> None:
    """Nested data with one text per row are accepted as texts."""
    tensor = {"name": "text", "datatype": "BYTES", "shape": shape, "data": data}
    outputs = _post(url, {"inputs": [tensor]}).json()["outputs"]
    assert outputs[0]["data"] == ["positive", "negative"]


@pytest.mark.parametrize("name", ["", "ü\n\0", "\ud800", "x" * 10_000])
def test_any_id_comes_back(url: str, name: str) -> None:
    """Any id of JSON comes back, in JSON answers and in binary ones."""
    inputs = [_input(["love"])]
    assert _post(url, {"id": name, "inputs": inputs}).json()["id"] == name
    body = {"id": name, "inputs": inputs, "parameters": {"binary_data_output": True}}
    answer = _post(url, body)
    length = int(answer.headers["inference-header-content-length"])
    assert json.loads(answer.content[:length])["id"] == name


def test_what_clients_send_besides_is_ignored(url: str) -> None:
    """Parameters and fields without meaning for a classifier have no effect."""
    body = {
        "inputs": [_input(["love"], parameters={"content_type": "str"})],
        "outputs": [{"name": "label", "parameters": {"content_type": "str"}}],
        "parameters": {"sequence_id": 1, "priority": 1, "timeout": 1000},
        "model_name": "whatever",
    }
    assert _post(url, body).json()["outputs"][0]["data"] == ["positive"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ([], "the body must be a JSON object"),
        ({}, "inputs is required"),
        ({"inputs": []}, "inputs must not have fewer items than 1"),
        ({"inputs": [{}] * 45_000}, "inputs must not have more items than 1"),
        ({"inputs": [None]}, "inputs.0 "),
        ({"inputs": [_input([])]}, "shape must be [n] or [n, 1]"),
        ({"inputs": [_input(["a"], shape=[2])]}, "shape says 2 texts; there are 1"),
        ({"inputs": [_input(["a"], shape=[10**4000])]}, "texts; there are 1"),
        ({"inputs": [_input(["a", "b"], shape=[1, 2])]}, "shape must be [n] or [n, 1]"),
        ({"inputs": [_input(["a"], shape=[True])]}, "shape must be [n] or [n, 1]"),
        ({"inputs": [_input(["a"], shape=["1"])]}, "shape must be [n] or [n, 1]"),
        ({"inputs": [_input(["a"], shape=1)]}, "shape must be [n] or [n, 1]"),
        ({"inputs": [_input([["a", "b"]])]}, "data must be a list of strings, or of lists"),
        ({"inputs": [_input([["a"], "b"])]}, "data must be a list of strings, or of lists"),
        ({"inputs": [_input([1])]}, "data must be a list of strings, or of lists"),
        ({"inputs": [_input(["a"], data="a")]}, "data must be a list of strings, or of lists"),
        ({"inputs": [_input(["a"], data=None)]}, "data must be a list of strings, or of lists"),
        ({"inputs": [_input(["\ud800"])]}, "surrogate"),
        ({"inputs": [_input(["a"])], "id": 7}, "id must be a string"),
        ({"inputs": [_input(["a"])], "outputs": [{"name": "x"}]}, "outputs.0.name must"),
        (
            {"inputs": [_input(["a"])], "outputs": [{"name": "label"}] * 9},
            "outputs must not have more items than 4",
        ),
        (
            {"inputs": [_input(["a"])], "parameters": {"overflow": "x"}},
            "parameters.overflow must be",
        ),
        (
            {"inputs": [_input(["a"])], "parameters": {"binary_data_output": "yes"}},
            "parameters.binary_data_output must be",
        ),
    ],
)
def test_a_bad_request_is_a_clear_problem(url: str, body: Any, says: str) -> None:
    """The message is where clients of the protocol look for it."""
    answer = _post(url, body)
    assert (answer.status_code, says in answer.json()["error"]) == (422, True), answer.text
    assert answer.headers["content-type"] == "application/problem+json"


def _binary(url: str, binary: bytes, *, shape: int = 1, **changes: Any) -> httpx2.Response:
    """Post a binary tensor; its declared size, header or JSON can be replaced."""
    size = changes.get("size", len(binary))
    tensor: dict[str, Any] = {"name": "text", "datatype": "BYTES", "shape": [shape]}
    tensor |= {"parameters": {"binary_data_size": size}} if size is not None else {}
    document = json.dumps({"inputs": [tensor | changes.get("tensor", {})]}).encode()
    header = changes.get("header", str(len(document)))
    headers = {"inference-header-content-length": header} if header is not None else {}
    headers["content-type"] = "application/octet-stream"
    content = document + binary
    return httpx2.post(f"{url}/v2/models/tiny/infer", content=content, headers=headers)


def _element(data: bytes, length: int | None = None) -> bytes:
    return struct.pack("<I", len(data) if length is None else length) + data


def test_a_binary_tensor_by_hand(url: str) -> None:
    """A text is a length of four bytes, little-endian, and UTF-8; the default answer is JSON."""
    binary = _element(b"love") + _element("worst été".encode())
    outputs = _binary(url, binary, shape=2).json()["outputs"]
    assert outputs[0]["data"] == ["positive", "negative"]
    assert outputs[2]["data"] == FLAT


LOVE = _element(b"love")


@pytest.mark.parametrize(
    ("binary", "changes", "says"),
    [
        (_element(b"love", 2**32 - 1), {}, "should have 4294967295 bytes, but only 4 are left"),
        (_element(b"love", 5), {}, "element 0 of the binary data, counted from 0, should have 5"),
        (_element(b"love", 3), {}, "ends in the middle of an element's length"),
        (LOVE[:3], {}, "ends in the middle of an element's length"),
        (LOVE + _element(b"\xc3"), {"shape": 2}, "element 1 of the binary data, counted from 0"),
        (LOVE, {"shape": 2}, "shape says 2 texts; there are 1"),
        (LOVE * 2, {}, "shape says 1 texts; there are 2"),
        (b"", {}, "binary_data_size must be left out, because no bytes follow the JSON"),
        (_element(b"") * 500_000, {"shape": 500_000}, "more than the 1000 texts"),
        (_element(b"") * 1_001 + b"not read", {}, "more than the 1000 texts"),
        (_element(b""), {}, "the text is empty"),
        (LOVE, {"size": 7}, "binary_data_size is 7, but 8 bytes follow the JSON"),
        (LOVE, {"size": 10**12}, "binary_data_size is 1000000000000, but 8 bytes follow"),
        (LOVE, {"size": -8}, "binary_data_size must be at least 0"),
        (LOVE, {"size": "8"}, "binary_data_size must be a whole number"),
        (LOVE, {"size": None}, "inputs.0.parameters is required"),
        (LOVE, {"tensor": {"data": ["a"]}}, "inputs.0.data must be left out"),
        (b"", {"size": 8, "header": None}, "binary_data_size must be left out, because no bytes"),
        (b"", {"size": None}, "inputs.0.data is required"),
        (LOVE, {"header": None}, "not valid JSON: Extra data"),
        (LOVE, {"header": "0"}, "not valid JSON"),
        (LOVE, {"header": "9"}, "not valid JSON"),
        (LOVE, {"header": "999999999"}, "must be the number of bytes of the JSON"),
        (LOVE, {"header": "9" * 5_000}, "must be the number of bytes of the JSON"),
        (LOVE, {"header": "-1"}, "must be the number of bytes of the JSON"),
        (LOVE, {"header": "1e2"}, "must be the number of bytes of the JSON"),
        (LOVE, {"header": ""}, "must be the number of bytes of the JSON"),
    ],
)
def test_bad_binary_data_is_a_clear_problem(
    url: str, binary: bytes, changes: Any, says: str
) -> None:
    """Lengths, sizes or shapes that do not fit the received bytes get a clear problem."""
    answer = _binary(url, binary, **changes)
    assert (answer.status_code, says in answer.json()["error"]) == (422, True), answer.text


def test_an_empty_body_is_no_json_object(url: str) -> None:
    """An empty body gets the same message as on the other routes."""
    answer = httpx2.post(f"{url}/v2/models/tiny/infer", content=b"")
    assert (answer.status_code, answer.json()["error"]) == (422, "the body must be a JSON object")


def test_media_types(url: str) -> None:
    """Bytes, JSON and no media type are accepted, as clients send them; others are refused."""
    content = json.dumps({"inputs": [_input(["love"])]})
    for declared, status in (
        ({}, 200),
        ({"content-type": "application/json; charset=utf-8"}, 200),
        ({"content-type": "application/octet-stream"}, 200),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
    ):
        answer = httpx2.post(f"{url}/v2/models/tiny/infer", content=content, headers=declared)
        assert answer.status_code == status


def test_paths_that_name_nothing(url: str) -> None:
    """Unknown paths get 404, including a route's template and Triton's other routes."""
    for model in ("%7Bname%7D", "tiny/versions/1.0", "tiny/versions/", "a/b", "%ff"):
        assert _post(url, {"inputs": [_input(["love"])]}, model).status_code == 404
    for path in ("trace/setting", "systemsharedmemory/status", "logging", "repository"):
        assert httpx2.get(f"{url}/v2/{path}").json()["code"] == "not_found"


def test_the_path_chooses_the_model(serve: Serve, bundle: Path, tmp_path: Path) -> None:
    """The second of two models computes if the path names it."""
    client = serve(model=(bundle, make_bundle(tmp_path / "other", name="other")))
    answer = client.post("/v2/models/other/infer", json={"inputs": [_input(["love"])]})
    assert answer.json()["model_name"] == "other"
    computed = {"model": "other", "outcome": "ok"}
    assert metric(client, "sentiment_texts_total", **computed) == 1


def test_readiness_ends_with_the_service(serve: Serve) -> None:
    """At shutdown, neither server nor model is ready, but the server is alive."""
    client = serve()
    client.app.state.service.lifecycle.stop()  # type: ignore[attr-defined]
    for path in ("health/ready", "models/tiny/ready"):
        answer = client.get(f"/v2/{path}")
        assert (answer.status_code, answer.json()["code"]) == (503, "shutting_down")
    assert client.get("/v2/health/live").json() == {"live": True}
