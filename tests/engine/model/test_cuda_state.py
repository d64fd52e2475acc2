"""What is missing for CUDA, with a library in the place of NVIDIA's driver."""

from pathlib import Path

import onnxruntime as ort
import pytest

from app.engine.machine import gpu
from app.engine.machine.gpu import CUDA, CudaGpu, cuda_state
from tests.support.cuda import fake_libcuda


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a driver's library that shows one GPU and supports CUDA 13."""
    return fake_libcuda(tmp_path_factory.mktemp("driver"))


@pytest.fixture(autouse=True)
def _gpu_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package onnxruntime-gpu for CUDA 13, with all libraries of CUDA."""
    monkeypatch.setattr(ort, "get_available_providers", lambda: [CUDA, "CPUExecutionProvider"])
    monkeypatch.setattr(ort, "cuda_version", "13.0", raising=False)
    monkeypatch.setattr(ort, "preload_dlls", lambda: None, raising=False)
    monkeypatch.setattr(gpu, "_missing_libraries", gpu._missing_libraries.__wrapped__)


def test_nothing_is_missing(driver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's versions and GPUs are reported, and there is no problem."""
    monkeypatch.setenv("FAKE_CUDA_DEVICES", "2")
    monkeypatch.setenv("FAKE_CUDA_VERSION", "13010")
    version = tmp_path / "sys/module/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("580.82.07\n")
    state = cuda_state(driver, tmp_path)
    assert state.gpus == (CudaGpu("Fake GPU 0", 8 << 30), CudaGpu("Fake GPU 1", 16 << 30))
    assert (state.driver, state.driver_cuda, state.runtime_cuda) == ("580.82.07", "13.1", "13.0")
    assert state.refusal == ""


@pytest.mark.parametrize(
    ("variables", "problem", "cure"),
    [
        ({"FAKE_CUDA_INIT": "100"}, "the NVIDIA driver shows no GPU", "CUDA_VISIBLE_DEVICES"),
        ({"FAKE_CUDA_DEVICES": "0"}, "the NVIDIA driver shows no GPU", "--gpus all"),
        ({"FAKE_CUDA_INIT": "34"}, "is a stub for linking", "LD_LIBRARY_PATH"),
        ({"FAKE_CUDA_INIT": "803"}, "have different versions", "restart the machine"),
        ({"FAKE_CUDA_INIT": "999"}, "does not start (cuInit: error 999)", "nvidia-smi"),
        (
            {"FAKE_CUDA_VERSION": "12080"},
            f"supports CUDA 12.8, but onnxruntime-gpu {ort.__version__} needs CUDA 13.0",
            "install a newer driver",
        ),
    ],
)
def test_driver_that_cannot_be_used(
    driver: str,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    problem: str,
    cure: str,
) -> None:
    """Each answer of the driver that means no CUDA has its cause and its cure, in one line."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    state = cuda_state(driver)
    assert problem in state.problem
    assert cure in state.cure
    assert "\n" not in state.refusal


def test_older_minor_version_of_cuda_is_enough(
    driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA promises that a driver serves all minor versions of its major version."""
    monkeypatch.setattr(ort, "cuda_version", "13.2", raising=False)
    assert cuda_state(driver).refusal == ""


def test_no_driver(tmp_path: Path) -> None:
    """Without the driver's library, the driver or the container's access to it is missing."""
    missing = str(tmp_path / "libcuda.so.1")
    state = cuda_state(missing, tmp_path)
    assert "no NVIDIA driver is found" in state.problem
    assert "install the driver" in state.cure
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    state = cuda_state(missing, tmp_path)
    assert "this machine has an NVIDIA driver, but" in state.problem
    assert state.cure.startswith("a container needs nvidia-container-toolkit")


def test_driver_library_that_is_damaged(tmp_path: Path) -> None:
    """A library that cannot be loaded is reported with the loader's reason."""
    library = tmp_path / "libcuda.so.1"
    library.write_bytes(b"not a library, but long enough to be read as one" * 2)
    state = cuda_state(str(library), tmp_path)
    assert "the NVIDIA driver cannot be loaded (" in state.problem
    assert state.cure == "install it again"


def test_package_for_cpus(driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrong package comes before anything else, but the GPUs are reported all the same."""
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CPUExecutionProvider"])
    monkeypatch.setenv("FAKE_CUDA_VERSION", "12080")
    state = cuda_state(driver)
    assert state.problem == "the installed package onnxruntime is the one for CPUs"
    assert "HARDWARE=gpu" in state.cure
    assert state.gpus == (CudaGpu("Fake GPU 0", 8 << 30),)


def test_missing_libraries_are_named(
    driver: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each library that cannot be loaded is named once, and nothing is printed."""

    def preload_dlls() -> None:
        print("Failed to load /site-packages/nvidia/cu13/lib/libcublas.so.13: file too short")
        print("Failed to load libcublas.so.13: cannot open shared object file")
        print("Failed to load libcurand.so.10: cannot open shared object file")
        print("Please follow https://onnxruntime.ai/docs/install/ to install CUDA.")

    monkeypatch.setattr(ort, "preload_dlls", preload_dlls, raising=False)
    state = cuda_state(driver)
    assert state.problem.endswith("cannot be loaded: libcublas.so.13, libcurand.so.10")
    assert "install the extra 'gpu'" in state.cure
    assert capsys.readouterr().out == ""
