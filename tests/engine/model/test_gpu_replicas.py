"""A model on several GPUs: which of its sessions computes a batch. The sessions are on the CPU."""

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

from app.engine.machine.gpu import CudaGpu, CudaState
from app.engine.model import device, model
from app.engine.model.bundle import sha256
from app.engine.model.device import CPU
from app.engine.model.model import Model
from app.engine.model.sessions import Replicas, open_session
from tests.conftest import Serve
from tests.support.matmul_integer import MATMUL_INTEGER
from tests.support.tiny_bundle import different_texts, load, make_bundle, write_manifest


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


def _narrow(bundle: Path) -> None:
    """Let the model take its inputs as int32."""
    path = bundle / "onnx/model.onnx"
    graph = onnx.load(path)
    names = {value.name: f"{value.name}_wide" for value in graph.graph.input}
    for node in graph.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    for value in graph.graph.input:
        value.type.tensor_type.elem_type = TensorProto.INT32
        cast = helper.make_node("Cast", [value.name], [names[value.name]], to=TensorProto.INT64)
        graph.graph.node.insert(0, cast)
    onnx.save(graph, path)
    variant = {"file": "onnx/model.onnx", "sha256": sha256(path), "bytes": path.stat().st_size}
    parity = {"samples": 1, "max_abs_logit_diff": 0.0, "label_agreement": 1.0}
    write_manifest(bundle, variants={"fp32": variant | {"parity": parity}})


def test_a_graph_may_take_ids_as_int32(tmp_path: Path) -> None:
    """Half the bytes are copied where a graph takes them; the logits are the same."""
    bundle = make_bundle(tmp_path / "tiny")

    def logits() -> tuple[Model, Any]:
        loaded = load(bundle)
        encodings = [loaded.tokenizer.encode(text) for text in different_texts(5)]
        return loaded, loaded.infer(encodings)

    _, expected = logits()
    _narrow(bundle)
    narrow, found = logits()
    assert {array.dtype for array in narrow.feeds([narrow.tokenizer.encode("love")]).values()} == {
        np.dtype(np.int32)
    }
    assert np.array_equal(found, expected)


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
    client = serve(device="cuda:0,1", runners=0, max_batch_tokens=64)
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
