"""A model on several GPUs: which of its sessions computes a batch. The sessions are on the CPU."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import onnxruntime as ort
import pytest
from sentiment_service.engine.model import device, model
from sentiment_service.engine.model.device import CPU, CudaGpu, CudaState
from sentiment_service.engine.model.sessions import Replicas, open_session

from tests.conftest import Serve
from tests.support.matmul_integer import MATMUL_INTEGER


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
