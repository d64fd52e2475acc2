"""Sessions: their options, inputs without padding, and several of one model."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from sentiment_service.engine.host import cpu_flags
from sentiment_service.engine.model import device, model
from sentiment_service.engine.model.bundle import EMBEDDED_BUNDLE
from sentiment_service.engine.model.device import CPU, CudaGpu, CudaState
from sentiment_service.engine.model.sessions import (
    POSITION_PADDING,
    Replicas,
    flat_feeds,
    open_session,
)

from tests.conftest import Serve
from tests.engine.model.test_device_errors import MATMUL_INTEGER
from tests.support.tiny_bundle import load


def test_nothing_but_the_log_is_on_standard_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """ONNX Runtime would warn of a weight that no node uses, but the service opens the session."""
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    unused = helper.make_tensor("unused", TensorProto.FLOAT, [1], [0.0])
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    graph = helper.make_graph(nodes, "tiny", value[:1], value[1:], [unused])
    imports = [helper.make_opsetid("", 18)]
    path = tmp_path / "tiny.onnx"
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), path)
    open_session(path, CPU, threads=1)
    assert capfd.readouterr().err == ""
    warning = ort.SessionOptions()
    warning.log_severity_level = 2
    ort.InferenceSession(path, warning, providers=[CPU])
    assert "unused" in capfd.readouterr().err


def test_a_failure_is_an_exception_and_no_line(capfd: pytest.CaptureFixture[str]) -> None:
    """What ONNX Runtime logs of a failed batch, in colours, would be no line of the JSON log."""
    session = load(EMBEDDED_BUNDLE, "int8").session
    bad = {node.name: np.full((1, 3), 2**31, np.int64) for node in session.get_inputs()}
    with pytest.raises(Exception, match="indices element out of data bounds"):
        session.run(None, bad)
    assert capfd.readouterr().err == ""


def test_a_session_has_the_default_kernels() -> None:
    """Products cannot saturate, so no option slows them down: other programs need none either."""
    options = load(EMBEDDED_BUNDLE, "int8").session.get_session_options()
    with pytest.raises(RuntimeError):
        options.get_session_config_entry("session.x64quantprecision")


def test_info_names_the_cpu(serve: Serve) -> None:
    """/info names the CPU and the instruction sets that matter for speed."""
    embedded = serve(model=(EMBEDDED_BUNDLE,)).get("/info").json()
    assert embedded["cpu"]
    assert set(embedded["cpu_flags"].split()) <= cpu_flags() | {"unknown"}


# The inputs of a graph without padding: where each text begins, and each token's place in it


def _feeds(
    texts: list[list[int]], typed: list[int], metadata: dict[str, str]
) -> dict[str, list[int]]:
    ids = np.array([token for text in texts for token in text], np.int32)
    lengths = np.array([*map(len, texts)], np.int32)
    feeds = flat_feeds(ids, lengths, np.array(typed, np.int32), metadata)
    assert {array.dtype for array in feeds.values()} == {np.dtype(np.int32)}
    return {name: array.tolist() for name, array in feeds.items()}


def test_tokens_stand_one_after_another() -> None:
    """Three texts of 3, 1 and 4 tokens; the last two tokens of the third are a second text."""
    feeds = _feeds([[5, 6, 7], [8], [9, 9, 5, 6]], [0, 0, 2], {})
    assert feeds == {
        "input_ids": [5, 6, 7, 8, 9, 9, 5, 6],
        "token_type_ids": [0, 0, 0, 0, 0, 0, 1, 1],
        "positions": [0, 1, 2, 0, 0, 1, 2, 3],
        # The places of the tokens in [texts, longest], then those of padding.
        "token_offset": [[0, 1, 2, 4], [8, 9, 10, 11], [3, 5, 6, 7]],
        "cumulative_lengths": [0, 3, 4, 8],
        "first_token": [0, 3, 4],
    }


@pytest.mark.parametrize("padding", [1, 0])
def test_the_padding_id_in_a_text_has_no_position(padding: int) -> None:
    """RoBERTa counts from the padding id + 1, and skips that id; the next text begins anew."""
    texts = [[5, padding, 7, 8], [padding, 5]]
    positions = _feeds(texts, [0, 0], {POSITION_PADDING: str(padding)})["positions"]
    assert positions == [padding + n for n in (1, 0, 2, 3, 0, 1)]


# A model on several GPUs: which of its sessions computes a batch. The sessions are on the CPU


@pytest.fixture
def sessions() -> list[ort.InferenceSession]:
    """Two small sessions."""
    return [ort.InferenceSession(MATMUL_INTEGER, providers=[CPU]) for _ in range(2)]


def test_a_batch_goes_to_the_least_busy(sessions: list[ort.InferenceSession]) -> None:
    """Of four batches at the same time, each session gets two. What is done does not count."""
    replicas = Replicas(sessions)
    with ExitStack() as batches:
        used = [batches.enter_context(replicas.session()) for _ in range(4)]
        assert [used.count(one) for one in sessions] == [2, 2]
    with replicas.session() as busy:
        for _ in range(3):
            with replicas.session() as session:
                assert session is not busy


def test_idle_gpus_take_turns(sessions: list[ort.InferenceSession]) -> None:
    """Without load, the sessions take turns, so that each of them is warmed up at the start."""
    replicas = Replicas(sessions)
    used = []
    for _ in range(4):
        with replicas.session() as session:
            used.append(session)
    assert used == [*sessions, *sessions]


def test_an_error_frees_the_session(sessions: list[ort.InferenceSession]) -> None:
    """A batch that failed is no longer in progress."""
    replicas = Replicas(sessions)
    for _ in range(3):
        with pytest.raises(ValueError, match="failed"), replicas.session():
            raise ValueError("failed")
    assert [one.running for one in replicas._replicas] == [0, 0]


def test_service_on_two_gpus(monkeypatch: pytest.MonkeyPatch, serve: Serve) -> None:
    """One queue feeds both: each computes, answers are those of the CPU, and the end is clean.

    Two sessions on the CPU stand in for the GPUs.
    """
    gpu = CudaGpu("pretended", 1 << 30, (9, 0))
    monkeypatch.setattr(device, "cuda_state", lambda: CudaState(gpus=(gpu, gpu)))

    opened: list[str] = []

    def on_the_cpu(path: Path, provider: Any, **options: Any) -> ort.InferenceSession:
        opened.append(provider[1]["device_id"])
        return open_session(path, CPU, **options)

    made: list[Replicas] = []

    def kept(sessions: Sequence[ort.InferenceSession]) -> Replicas:
        made.append(Replicas(sessions))
        return made[-1]

    expected = serve()
    monkeypatch.setattr(model, "open_session", on_the_cpu)
    monkeypatch.setattr(model, "Replicas", kept)
    client = serve(device="cuda:0,1", runners=0, max_batch_tokens=64, max_queue_tokens=9_999)
    assert opened == ["0", "1"]
    texts = [[f"I love this number {number}", "worst"] for number in range(40)]

    def classify(inputs: Sequence[str]) -> Any:
        return client.post("/classify", json={"inputs": inputs}).json()

    with ThreadPoolExecutor(8) as pool:
        answers = [*pool.map(classify, texts)]
    assert answers == [expected.post("/classify", json={"inputs": i}).json() for i in texts]
    info = client.get("/info").json()
    assert (info["device"], info["runners"]) == ("cuda:0,1", 4)
    (replicas,) = made
    assert min(one.begun for one in replicas._replicas) > 5
