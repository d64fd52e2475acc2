"""Devices: which one a setting names, how it is opened, and why it is refused."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime as ort
import pytest
from sentiment_service.engine.loading import load, load_again, load_as_set, load_model
from sentiment_service.engine.model import device as device_module
from sentiment_service.engine.model.bundle import EMBEDDED_BUNDLE, Bundle
from sentiment_service.engine.model.device import CONTEXT_MB, CPU, CUDA, CudaGpu, CudaState, Device
from sentiment_service.engine.model.model import Model
from sentiment_service.errors import UserError
from sentiment_service.files.local import LocalClassifier
from sentiment_service.settings.settings import Settings

TWO_GPUS = CudaState(gpus=(CudaGpu("A100", 40 << 30, (8, 0)), CudaGpu("L4", 24 << 30, (8, 9))))
NO_DRIVER = CudaState(problem="no NVIDIA driver is found", cure="install the driver")


Pretend = Callable[[CudaState], None]


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Pretend:
    """Sets what is found for CUDA."""
    return lambda state: monkeypatch.setattr(device_module, "cuda_state", lambda: state)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, pretend: Pretend) -> list[dict[str, Any]]:
    """The arguments of each session that was opened; a machine with two GPUs is pretended.

    The sessions are on the CPU and say that they are not.
    """
    arguments: list[dict[str, Any]] = []
    real = ort.InferenceSession

    def session(path: Path, options: ort.SessionOptions, **keywords: Any) -> ort.InferenceSession:
        arguments.append({"options": options, **keywords})
        made = real(path, options, providers=[CPU])
        made.get_providers = lambda: [one[0] for one in keywords["providers"][:-1]] + [CPU]
        return made

    monkeypatch.setattr(ort, "InferenceSession", session)
    pretend(TWO_GPUS)
    monkeypatch.setattr(ort, "get_available_providers", lambda: [CUDA, CPU])
    return arguments


def _load(path: Path, device: str, gpu_memory_mb: int = 0) -> Model:
    return load_model(
        Bundle.open(path),
        device=device,
        precision="auto",
        threads=1,
        gpu_memory_mb=gpu_memory_mb,
    )


@pytest.mark.parametrize(
    ("setting", "gpus", "name"),
    [
        ("cpu", (), "cpu"),
        ("cuda", (0,), "cuda:0"),
        ("cuda:1", (1,), "cuda:1"),
        ("cuda:2,0", (2, 0), "cuda:2,0"),
    ],
)
def test_what_a_setting_names(setting: str, gpus: tuple[int, ...], name: str) -> None:
    """A device has its GPUs in the given order. Without a number it is the first GPU."""
    assert Device.of(setting).gpus == gpus
    assert str(Device.of(setting)) == name


def test_options_of_cuda(bundle: Path, opened: list[dict[str, Any]]) -> None:
    """Products in full fp32, no attention by cuDNN, no patterns, no fallback, NonZero on the CPU.

    The arena keeps its default: growths of the next power of two. A limit of memory is given to
    ONNX Runtime in bytes, for each GPU.
    """
    model = _load(bundle, "cuda:1")
    _load(bundle, "cuda:0,1", gpu_memory_mb=1_500)
    arguments, *limited = opened
    options = {"use_tf32": "0", "sdpa_kernel": "55"}  # the bit 8 is cuDNN's
    assert arguments["providers"] == [(CUDA, {"device_id": "1", **options}), CPU]
    assert not arguments["options"].enable_mem_pattern
    on_cpu = "session.name_based_layer_assignment"
    assert arguments["options"].get_session_config_entry(on_cpu) == "cpu(NonZero)"
    assert not arguments["enable_fallback"]
    assert arguments["disabled_optimizers"] is None  # those are slow only on a CPU
    assert model.provider_options == options
    for number, one in enumerate(limited):
        assert one["providers"][0][1]["device_id"] == str(number)
        assert one["providers"][0][1]["gpu_mem_limit"] == "1500000000"


def test_workers_share_the_memory_of_a_gpu(bundle: Path, opened: list[dict[str, Any]]) -> None:
    """Each of four gets a quarter of the limit; without one, of the GPU, less what CUDA takes."""
    for limit_mb in (2_000, 0):
        config = Settings(device="cuda:1", gpu_memory_mb=limit_mb).engine_config(gpu_workers=4)
        load_as_set(bundle, config, threads=1)
    limits = [one["providers"][0][1]["gpu_mem_limit"] for one in opened]
    quarter_mb = (24 << 30) // 1_000_000 // 4
    assert limits == ["500000000", str((quarter_mb - CONTEXT_MB) * 1_000_000)]


def test_options_of_the_cpu(bundle: Path) -> None:
    """The CPU has no options, and keeps its memory patterns."""
    model = _load(bundle, "cpu", gpu_memory_mb=5)
    assert model.provider_options == {}
    assert model.session.get_session_options().enable_mem_pattern


def test_gpu_that_is_not_there(bundle: Path, opened: list[dict[str, Any]]) -> None:
    """The error names the GPU and those that are there."""
    with pytest.raises(UserError, match=r"^there is no GPU 2: CUDA shows 0 \(A100\), 1 \(L4\)$"):
        _load(bundle, "cuda:0,2")
    assert not opened


@pytest.mark.usefixtures("version_known")
def test_gpu_that_is_not_supported(
    bundle: Path, opened: list[dict[str, Any]], pretend: Pretend
) -> None:
    """The error names the GPU, and the other one can be used."""
    gpus = (CudaGpu("V100", 16 << 30, (7, 0)), CudaGpu("L4", 24 << 30, (8, 9)))
    pretend(CudaState(gpus=gpus))
    with pytest.raises(
        UserError, match=r"^GPU 0 is not supported: V100 has compute capability 7.0"
    ):
        _load(bundle, "cuda:0,1")
    assert not opened
    assert _load(bundle, "cuda:1").provider == CUDA


def test_cuda_that_cannot_be_used(bundle: Path, pretend: Pretend) -> None:
    """The error names the cause and the cure in one line."""
    pretend(NO_DRIVER)
    words = r"^CUDA cannot be used: no NVIDIA driver is found; install the driver; to serve "
    with pytest.raises(UserError, match=words):
        _load(bundle, "cuda:1")


@pytest.mark.parametrize(
    ("providers", "warnings"),
    [([CUDA, CPU], 1), ([CPU], 0)],
    ids=["package for GPUs", "package for CPUs"],
)
def test_auto_serves_on_the_cpu_and_says_why(
    bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
    pretend: Pretend,
    caplog: pytest.LogCaptureFixture,
    providers: list[str],
    warnings: int,
) -> None:
    """A warning says why the CPU computes, unless the package for CPUs was installed."""
    pretend(NO_DRIVER)
    monkeypatch.setattr(ort, "get_available_providers", lambda: providers)
    with caplog.at_level(logging.WARNING):
        assert _load(bundle, "auto").provider == CPU
    words = "serving on the CPU: CUDA cannot be used: no NVIDIA"
    assert [message.startswith(words) for message in caplog.messages] == [True] * warnings


def test_auto_without_a_variant_for_cuda(
    opened: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    """A bundle for CPUs is served on the CPU beside a GPU, with a warning."""
    with caplog.at_level(logging.WARNING):
        model = _load(EMBEDDED_BUNDLE, "auto")
    assert (model.provider, model.precision) == (CPU, "int8")
    assert "has no fp32 variant; it holds: int8" in caplog.text


def test_runtime_that_falls_back_is_refused(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, pretend: Pretend
) -> None:
    """A session that ONNX Runtime opened on the CPU in silence does not serve."""
    real = ort.InferenceSession
    pretend(TWO_GPUS)
    monkeypatch.setattr(ort, "InferenceSession", lambda path, *_, **__: real(path, providers=[CPU]))
    with pytest.raises(UserError, match="ONNX Runtime does not use CUDAExecutionProvider"):
        _load(bundle, "cuda")


def test_reload_stays_on_the_device(
    bundle: Path,
    opened: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    pretend: Pretend,
) -> None:
    """A model that auto has put on the first GPU stays there, though CUDA fails for a moment."""
    config = Settings(runners=1, threads=1, max_batch_tokens=64).engine_config()
    monkeypatch.setattr(Model, "infer", lambda model, encodings: [0.0] * len(encodings))
    old, plan = load(bundle, config, 1)
    assert (str(old.device), len(opened)) == ("cuda:0", 1)
    pretend(NO_DRIVER)
    with pytest.raises(UserError, match="CUDA cannot be used"):
        list(load_again(old, config, 1, plan))


def test_files_have_two_runners_on_each_gpu(bundle: Path, opened: list[dict[str, Any]]) -> None:
    """Without a measurement, the number of CPUs does not decide how many runners GPUs have."""
    settings = Settings(model=(bundle,), device="cuda:0,1")
    assert LocalClassifier(settings, measure=False)._runners == 4
    assert len(opened) == 2
