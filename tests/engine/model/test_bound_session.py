"""Sessions on reused buffers, on the CPU provider: the same logits, several threads, several GPUs.

The code is that of the GPUs. Only the memory is elsewhere.
"""

import gc
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from app.engine.machine.gpu import CudaGpu, CudaState
from app.engine.machine.gpu_memory import pinned_array
from app.engine.model import bound_session, device, model
from app.engine.model.bound_session import BoundSession, BoundSessions
from app.engine.model.bundle import EMBEDDED_BUNDLE, Bundle
from app.engine.model.device import CPU
from app.engine.model.load import load_model
from app.engine.model.model import SILENT, Model
from app.engine.model.session import open_sessions
from app.engine.text.encoding import Encoding
from tests.conftest import Serve
from tests.support.cuda import fake_libcuda

PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def plain() -> Model:
    """The embedded model as the CPU computes it."""
    return _load()


def _load() -> Model:
    return load_model(Bundle.open(EMBEDDED_BUNDLE), device="cpu", precision="int8", threads=1)


def _batches(count: int) -> list[list[Encoding]]:
    """Batches of ever other shapes."""
    draw = random.Random(3)
    lengths = [[draw.randint(3, 40) for _ in range(draw.randint(1, 12))] for _ in range(count)]
    return [[_encoding(tokens) for tokens in batch] for batch in lengths]


def _encoding(tokens: int) -> Encoding:
    ids = [101, *(random.randint(1_000, 20_000) for _ in range(tokens - 2)), 102]
    return Encoding.of(ids)


def _run(bound: BoundSession | BoundSessions, plain: Model, batch: Sequence[Encoding]) -> Any:
    tokens = max(map(len, batch))
    return bound.run(len(batch), tokens, lambda inputs: plain._fill(batch, inputs))


def test_logits_are_those_of_run(plain: Model) -> None:
    """For batches of many shapes, one binding gives the same bits as session.run."""
    bound = BoundSession(plain.session, None, SILENT)
    for batch in _batches(30):
        (expected,) = plain.session.run(None, plain.feeds(batch))
        assert np.array_equal(_run(bound, plain, batch), expected)


def test_buffers_grow_by_doubling_and_are_used_again(plain: Model) -> None:
    """There is one set of buffers for each power of two, and no more for later batches."""
    bound = BoundSession(plain.session, None, SILENT)
    for tokens in (3, 256, 257, 500):
        _run(bound, plain, [_encoding(tokens)])
    kept = dict(bound._buffers)
    assert [*kept] == [256, 512]
    assert [len(array) for array in kept[512].host.values()] == [512] * 3
    for tokens in (500, 3):
        _run(bound, plain, [_encoding(tokens)])
    assert bound._buffers == kept


def test_results_do_not_share_the_buffers(plain: Model) -> None:
    """Logits that were returned do not change when the next batch is computed."""
    bound = BoundSession(plain.session, None, SILENT)
    first, second = _batches(2)
    logits = _run(bound, plain, first)
    copied = logits.copy()
    _run(bound, plain, second)
    assert np.array_equal(logits, copied)


def test_buffers_are_on_their_gpu(plain: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch goes from memory pinned for GPU 1 to memory of GPU 1, on a thread that uses GPU 1.

    Each of these memories is on the CPU here.
    """
    places: list[tuple[str, int]] = []
    value = ort.OrtValue.ortvalue_from_shape_and_type

    def on_the_cpu(shape: Any, dtype: Any, *place: Any) -> Any:
        places.append(place)
        return value(shape, dtype)

    def pinned(size: int, gpu: int) -> Any:
        places.append(("pinned", gpu))
        return np.empty(size, np.int64)

    monkeypatch.setattr(ort.OrtValue, "ortvalue_from_shape_and_type", on_the_cpu)
    monkeypatch.setattr(bound_session, "pinned_array", pinned)
    monkeypatch.setattr(bound_session, "use_gpu", lambda gpu: places.append(("thread", gpu)))

    def bound_on_the_cpu(bind: Callable[..., None]) -> Callable[..., None]:
        def moved(binding: Any, name: str, kind: str, number: int, *memory: Any) -> None:
            places.append((kind, number))
            bind(binding, name, "cpu", 0, *memory)

        return moved

    for name in ("bind_input", "bind_output"):
        monkeypatch.setattr(ort.IOBinding, name, bound_on_the_cpu(getattr(ort.IOBinding, name)))
    (batch,) = _batches(1)
    logits = _run(BoundSession(plain.session, 1, SILENT), plain, batch)
    assert np.array_equal(logits, plain.session.run(None, plain.feeds(batch))[0])
    assert places[0] == ("thread", 1)
    assert set(places) == {("thread", 1), ("pinned", 1), ("cuda", 1)}


def test_threads_have_buffers_of_their_own(plain: Model) -> None:
    """Four batches at the same time, on two sessions: two on each, and all logits are right."""
    sessions = [plain.session, _load().session]
    bound = BoundSessions(sessions, [None, None], SILENT)
    together = threading.Barrier(4)

    def run(batch: Sequence[Encoding]) -> bool:
        def fill(inputs: Any) -> None:
            plain._fill(batch, inputs)
            together.wait(PATIENCE_S)  # all have filled their buffers, none has been computed

        found = bound.run(len(batch), max(map(len, batch)), fill)
        return np.array_equal(found, plain.session.run(None, plain.feeds(batch))[0])

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, _batches(4)))
        assert [len(one.idle) for one in bound._replicas] == [2, 2]
        assert all(pool.map(run, _batches(4)))
    assert [len(one.idle) for one in bound._replicas] == [2, 2]
    assert [one.running for one in bound._replicas] == [0, 0]


def test_idle_gpus_take_turns(plain: Model) -> None:
    """Without load, the GPUs take turns, so that each of them is warmed up at the start."""
    bound = BoundSessions([plain.session, plain.session], [None, None], SILENT)
    for batch in _batches(4):
        _run(bound, plain, batch)
    assert [one.begun for one in bound._replicas] == [2, 2]


def test_error_ends_only_its_batch(plain: Model) -> None:
    """An error of ONNX Runtime reaches the caller, and the next batch gets new buffers."""
    bound = BoundSessions([plain.session], [None], SILENT)
    with pytest.raises(Exception, match="out of data bounds"):
        _run(bound, plain, [Encoding.of([101, 99_999_999, 102])])
    (replica,) = bound._replicas
    assert (replica.running, replica.idle) == (0, [])
    (batch,) = _batches(1)
    (expected,) = plain.session.run(None, plain.feeds(batch))
    assert np.array_equal(_run(bound, plain, batch), expected)


def test_service_on_two_gpus(monkeypatch: pytest.MonkeyPatch, serve: Serve) -> None:
    """One queue feeds both: each computes, answers are those of the CPU, and the end is clean.

    Two sessions on the CPU stand in for the GPUs.
    """
    gpu = CudaGpu("pretended", 1 << 30)
    monkeypatch.setattr(device, "cuda_state", lambda: CudaState(gpus=(gpu, gpu)))

    def on_the_cpu(path: Path, providers: Sequence[Any], **options: Any) -> Any:
        assert [one[1]["device_id"] for one in providers] == ["0", "1"]
        return open_sessions(path, [CPU] * len(providers), **options)

    made: list[BoundSessions] = []

    def bound(sessions: Sequence[Any], gpus: Sequence[int], options: Any) -> BoundSessions:
        assert gpus == (0, 1)
        made.append(BoundSessions(sessions, [None] * len(sessions), options))
        return made[-1]

    expected = serve()
    monkeypatch.setattr(model, "open_sessions", on_the_cpu)
    monkeypatch.setattr(model, "BoundSessions", bound)
    client = serve(device="cuda:0,1", runners=0, max_batch_tokens=64)
    texts = [[f"I love this number {number}", "worst"] for number in range(40)]

    def classify(inputs: Sequence[str]) -> Any:
        return client.post("/classify", json={"inputs": inputs}).json()

    with ThreadPoolExecutor(8) as pool:
        answers = [*pool.map(classify, texts)]
    assert answers == [expected.post("/classify", json={"inputs": i}).json() for i in texts]
    info = client.get("/info").json()
    assert (info["device"], info["runners"]) == ("cuda:0,1", 4)
    (bound_sessions,) = made
    assert min(one.begun for one in bound_sessions._replicas) > 5


def test_pinned_memory_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An array on the driver's memory can be written, and ends with its last reference."""
    log = tmp_path / "log"
    monkeypatch.setenv("FAKE_CUDA_LOG", str(log))
    library = fake_libcuda(tmp_path)
    array = pinned_array(100, 1, library)
    array[:] = range(100)
    part = array[50:]
    del array
    gc.collect()
    assert part.sum() == sum(range(50, 100))
    assert log.read_text().split() == ["context-101", "alloc-800"]
    del part
    gc.collect()
    assert log.read_text().split()[2:] == ["context-101", "free"]


@pytest.mark.parametrize("fault", ["FAKE_CUDA_INIT", "FAKE_CUDA_NO_MEMORY", "no library"])
def test_ordinary_memory_does_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """If the driver gives no pinned memory, the array is in ordinary memory."""
    monkeypatch.setenv(fault, "2")
    library = "no-such-libcuda.so" if fault == "no library" else fake_libcuda(tmp_path)
    array = pinned_array(3, 0, library)
    array[:] = 7
    assert array.tolist() == [7, 7, 7]
    assert array.base is None
