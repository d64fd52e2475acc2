"""What is missing for CUDA, with a library in the place of NVIDIA's driver."""

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnxruntime as ort
import pytest
from sentiment_service.engine.model.device import (
    CPU,
    CUDA,
    MACHINE_CODE,
    CudaGpu,
    CudaState,
    cuda_state,
)

SOURCE = Path(__file__).parents[2] / "support/machines/fake_libcuda.c"
GPU_LOCK = Path(__file__).parents[3] / "requirements/gpu.txt"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a library that answers as a driver with one GPU, which supports CUDA 13."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("needs a C compiler")
    library = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", SOURCE, "-o", library], check=True)
    return str(library)


class Runtime:
    """Stands in for the package onnxruntime-gpu for CUDA 13, with all libraries of CUDA."""

    def __init__(
        self,
        cuda_version: str = "13.0",
        preload_dlls: Callable[..., None] = lambda: None,
        providers: Sequence[str] = (CUDA, CPU),
    ) -> None:
        self.cuda_version = cuda_version
        self.preload_dlls = preload_dlls
        self.get_available_providers = lambda: providers


def state_of(driver: str, root: Path = Path("/"), *path: Path, **runtime: Any) -> CudaState:
    """The state with NVIDIA's packages in ``path``; without those that PyTorch may have brought."""
    return cuda_state(driver, root, Runtime(**runtime), [*map(str, path)])


def test_nothing_is_missing(driver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's versions and GPUs are reported, and there is no problem.

    A driver serves all minor versions of its major version of CUDA, later ones too.
    """
    monkeypatch.setenv("FAKE_CUDA_DEVICES", "2")
    monkeypatch.setenv("FAKE_CUDA_CAPABILITY_1", "86")
    monkeypatch.setenv("FAKE_CUDA_VERSION", "13010")
    version = tmp_path / "sys/module/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("580.82.07\n")
    state = state_of(driver, tmp_path, cuda_version="13.2")
    assert state.gpus == (
        CudaGpu("Fake GPU 0", 8 << 30, (9, 0)),
        CudaGpu("Fake GPU 1", 16 << 30, (8, 6)),
    )
    assert (state.driver, state.driver_cuda, state.runtime_cuda) == ("580.82.07", "13.1", "13.2")
    assert state.problem == ""


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
    state = state_of(driver)
    assert problem in state.problem
    assert cure in state.cure
    assert "\n" not in state.problem + state.cure


@pytest.mark.usefixtures("version_known")
@pytest.mark.parametrize(
    ("capability", "name"),
    [
        ("70", "7.0"),
        ("60", "6.0"),
        ("72", "7.2"),
        ("100", "10.0"),
        ("103", "10.3"),
        ("110", "11.0"),
    ],
)
def test_gpu_without_machine_code(
    driver: str, monkeypatch: pytest.MonkeyPatch, capability: str, name: str
) -> None:
    """P100, V100, B200 and others are refused in one line before a batch fails on them."""
    monkeypatch.setenv("FAKE_CUDA_CAPABILITY_0", capability)
    words = f"Fake GPU 0 has compute capability {name}, and onnxruntime-gpu {ort.__version__} has "
    assert state_of(driver).problem.startswith(words + "machine code for 7.5, 8.0, ")


@pytest.mark.parametrize("capability", ["75", "80", "86", "87", "89", "90", "120", "121"])
def test_gpu_with_machine_code(
    driver: str, monkeypatch: pytest.MonkeyPatch, capability: str
) -> None:
    """T4, A100, L4, H100, RTX 50 and later minor versions of these are supported."""
    monkeypatch.setenv("FAKE_CUDA_CAPABILITY_0", capability)
    assert state_of(driver).problem == ""


@pytest.mark.usefixtures("version_known")
def test_another_gpu_may_be_supported(driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA can be used with one of two GPUs; the other one says why it cannot."""
    monkeypatch.setenv("FAKE_CUDA_DEVICES", "2")
    monkeypatch.setenv("FAKE_CUDA_CAPABILITY_0", "70")
    state = state_of(driver)
    assert state.problem == ""
    assert [bool(one.problem) for one in state.gpus] == [True, False]


def test_what_the_locked_version_supports_is_known() -> None:
    """After an upgrade of ONNX Runtime, somebody must look what the new wheels were built for.

    Of other versions nothing is known, so that every GPU is tried.
    """
    locked = re.search(r"^onnxruntime-gpu==(\d+\.\d+)\.", GPU_LOCK.read_text(), re.MULTILINE)
    assert locked
    assert locked[1] in MACHINE_CODE


def test_libraries_beside_other_packages_are_found(driver: str, tmp_path: Path) -> None:
    """NVIDIA's packages may be in any directory of Python's path, as after `install --target`."""
    lib = tmp_path / "nvidia/cu13/lib"
    lib.mkdir(parents=True)
    loaded: list[str | None] = []

    def preload_dlls(directory: str | None = None) -> None:
        loaded.append(directory)
        if str(lib) not in loaded:
            print("Failed to load libcublas.so.13: cannot open shared object file")

    state = state_of(driver, Path("/"), tmp_path, preload_dlls=preload_dlls)
    assert state.problem == ""
    assert loaded == [str(lib), None]


def test_no_driver(tmp_path: Path) -> None:
    """Without the driver's library, the driver or the container's access to it is missing."""
    missing = str(tmp_path / "libcuda.so.1")
    state = state_of(missing, tmp_path)
    assert "no NVIDIA driver is found" in state.problem
    assert "install the driver" in state.cure
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    state = state_of(missing, tmp_path)
    assert "this machine has an NVIDIA driver, but" in state.problem
    assert state.cure.startswith("a container needs nvidia-container-toolkit")


def test_package_for_cpus(driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrong package comes before anything else, but the GPUs are reported all the same."""
    monkeypatch.setenv("FAKE_CUDA_VERSION", "12080")
    state = state_of(driver, providers=[CPU])
    assert state.problem == "the installed package onnxruntime is the one for CPUs"
    assert "HARDWARE=gpu" in state.cure
    assert state.gpus == (CudaGpu("Fake GPU 0", 8 << 30, (9, 0)),)


def test_missing_libraries_are_named(driver: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each library that cannot be loaded is named once, and nothing is printed.

    The second try finds cuDNN on the system's search path.
    """

    def preload_dlls() -> None:
        print("Failed to load /site-packages/nvidia/cu13/lib/libcublas.so.13: file too short")
        print("Failed to load libcublas.so.13: cannot open shared object file")
        print("Failed to load /site-packages/nvidia/cudnn/lib/libcudnn.so.9: file too short")
        print("Failed to load libcurand.so.10: cannot open shared object file")
        print("Please follow https://onnxruntime.ai/docs/install/ to install CUDA.")

    state = state_of(driver, preload_dlls=preload_dlls)
    assert state.problem.endswith("cannot be loaded: libcublas.so.13, libcurand.so.10")
    assert "install the extra 'gpu'" in state.cure
    assert capsys.readouterr().out == ""
