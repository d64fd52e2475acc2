"""Where a model computes: on the CPU, or on one or several GPUs, with ONNX Runtime's options.

ONNX Runtime serves on the CPU without an error if CUDA cannot be used. So the service asks NVIDIA's
driver itself, through its library, and names the cause and the cure.
"""

import contextlib
import ctypes
import io
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import onnxruntime as ort

from sentiment_service.errors import UserError

CUDA = "CUDAExecutionProvider"
# The driver's own library. The name is the same in every version.
LIBCUDA = "libcuda.so.1"

_CONTAINER = (
    "a container needs nvidia-container-toolkit on the host and the option --gpus all (Kubernetes: "
    "the limit nvidia.com/gpu)"
)
# The compute capabilities that the wheels of onnxruntime-gpu have machine code for, by version. It
# runs on later minor versions, too. The wheels have no PTX, which a driver compiles for other GPUs.
MACHINE_CODE = {"1.31": ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (12, 0))}
# CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
_CAPABILITY = (75, 76)


@dataclass(frozen=True, slots=True)
class CudaGpu:
    """A GPU that CUDA can see. Its number is its place in ``CudaState.gpus``.

    ``capability`` is its compute capability, (major, minor).
    """

    name: str
    memory_bytes: int
    capability: tuple[int, int]

    def __str__(self) -> str:
        major, minor = self.capability
        gib = self.memory_bytes / 2**30
        return f"{self.name}, {gib:.0f} GiB, compute capability {major}.{minor}"

    @property
    def problem(self) -> str:
        """Why ONNX Runtime cannot compute on it; empty if it can, or if that is not known."""
        known = MACHINE_CODE.get(ort.__version__.rpartition(".")[0])
        major, minor = self.capability
        if known is None or any(major == code[0] and minor >= code[1] for code in known):
            return ""
        accepted = ", ".join(f"{code[0]}.{code[1]}" for code in known)
        return (
            f"{self.name} has compute capability {major}.{minor}, and onnxruntime-gpu "
            f"{ort.__version__} has machine code for {accepted} only"
        )


@dataclass(frozen=True, slots=True)
class CudaState:
    """What was found for CUDA. If it cannot be used, ``problem`` says why and ``cure`` what helps.

    ``driver`` is the version of NVIDIA's driver, such as ``580.82.07``. ``driver_cuda`` is the
    newest CUDA that it supports, and ``runtime_cuda`` the one that ONNX Runtime was built for.
    Each is empty if it is not known.
    """

    driver: str = ""
    driver_cuda: str = ""
    runtime_cuda: str = ""
    gpus: tuple[CudaGpu, ...] = ()
    problem: str = ""
    cure: str = ""


# What cuInit may return, and the cause and cure (CUDA driver API, CUresult).
_INIT_ERRORS = {
    34: (
        f"the {LIBCUDA} that was found is a stub for linking programs",
        "remove the directory with the stubs from LD_LIBRARY_PATH",
    ),
    100: (
        "the NVIDIA driver shows no GPU",
        f"look at nvidia-smi and at CUDA_VISIBLE_DEVICES; {_CONTAINER}",
    ),
    802: ("the GPUs are not ready", "start the driver's services, such as nvidia-fabricmanager"),
    803: (
        "the NVIDIA driver's library and its kernel module have different versions",
        "restart the machine, so that it loads the module of the installed driver",
    ),
}


def cuda_state(
    library: str = LIBCUDA,
    root: Path = Path("/"),
    runtime: Any = ort,
    path: Sequence[str] | None = None,
) -> CudaState:
    """Ask the driver's ``library`` for its GPUs, and find out what is missing for CUDA.

    ``root`` is the directory that holds ``proc`` and ``sys``, ``runtime`` the module of ONNX
    Runtime, and ``path`` where Python finds packages.
    """
    # ONNX Runtime has this attribute if it was built for CUDA.
    built_for = str(getattr(runtime, "cuda_version", ""))
    answer = _ask_driver(library, root)
    state = replace(answer, driver=_driver_version(root), runtime_cuda=built_for)
    problem, cure = state.problem, state.cure
    if CUDA not in runtime.get_available_providers():
        problem = "the installed package onnxruntime is the one for CPUs"
        cure = "install the extra 'gpu' in place of 'cpu' (in a clone: make install HARDWARE=gpu)"
    elif not problem and _major(state.driver_cuda) < _major(state.runtime_cuda):
        problem = (
            f"the NVIDIA driver supports CUDA {state.driver_cuda}, but "
            f"onnxruntime-gpu {ort.__version__} needs CUDA {state.runtime_cuda}"
        )
        cure = "install a newer driver"
    elif not problem and all(gpu.problem for gpu in state.gpus):
        problem, cure = state.gpus[0].problem, "use another GPU"
    elif not problem and (
        missing := _missing_libraries(runtime, tuple(sys.path if path is None else path))
    ):
        problem = f"these libraries of CUDA cannot be loaded: {', '.join(missing)}"
        cure = "install the extra 'gpu', which brings them (in a clone: make install HARDWARE=gpu)"
    return replace(state, problem=problem, cure=cure)


def _ask_driver(library: str, root: Path) -> CudaState:
    """The newest CUDA that the driver supports and its GPUs, or why it cannot be used."""
    try:
        cuda = ctypes.CDLL(library)
    except OSError:
        return _no_library(library, root)
    if code := cuda.cuInit(0):
        problem = f"the NVIDIA driver does not start (cuInit: error {code})"
        problem, cure = _INIT_ERRORS.get(code, (problem, "check that nvidia-smi works"))
        return CudaState(problem=problem, cure=cure)
    number, count = ctypes.c_int(), ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(number))
    cuda.cuDeviceGetCount(ctypes.byref(count))
    if not count.value:
        problem, cure = _INIT_ERRORS[100]
        return CudaState(problem=problem, cure=cure)
    version = f"{number.value // 1000}.{number.value % 1000 // 10}"
    gpus = tuple(_gpu(cuda, index) for index in range(count.value))
    return CudaState(driver_cuda=version, gpus=gpus)


def _gpu(cuda: ctypes.CDLL, index: int) -> CudaGpu:
    device, memory = ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(256)
    major, minor = ctypes.c_int(), ctypes.c_int()
    cuda.cuDeviceGet(ctypes.byref(device), index)
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    for value, attribute in zip((major, minor), _CAPABILITY, strict=True):
        cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
    return CudaGpu(name.value.decode(errors="replace"), memory.value, (major.value, minor.value))


def _no_library(library: str, root: Path) -> CudaState:
    if (root / "proc/driver/nvidia").is_dir():
        # The host's kernel has the driver, and shows it in /proc to containers as well.
        problem = f"this machine has an NVIDIA driver, but {library} is not found"
        return CudaState(problem=problem, cure=_CONTAINER)
    problem = f"no NVIDIA driver is found ({library})"
    return CudaState(problem=problem, cure=f"install the driver; {_CONTAINER}")


def _driver_version(root: Path) -> str:
    try:
        return (root / "sys/module/nvidia/version").read_text().strip()
    except OSError:
        return ""


def _major(version: str) -> int:
    return int(version.partition(".")[0] or 0)


@cache
def _missing_libraries(runtime: Any, path: tuple[str, ...]) -> tuple[str, ...]:
    """Load the libraries of the packages nvidia-*, and return the names of those that are missing.

    ONNX Runtime finds them by itself only on the system's search path, or beside its own package.
    ``pip install --target`` puts packages elsewhere.
    """
    places = [str(lib) for entry in path for lib in sorted(Path(entry).glob("nvidia/*/lib"))]
    with contextlib.redirect_stdout(io.StringIO()) as output:  # it prints what it cannot load
        for place in places:
            runtime.preload_dlls(directory=place)
        # A library that is loaded by now is found by its name, wherever it is.
        output.truncate(output.seek(0))
        runtime.preload_dlls()
    # What has a path was tried by its name as well.
    names = re.findall(r"^Failed to load ([^\s/]+):", output.getvalue(), re.MULTILINE)
    return tuple(dict.fromkeys(names))


CPU = "CPUExecutionProvider"

# The kernels of attention that ONNX Runtime may choose from on a GPU, with their bits in its option
# `sdpa_kernel` (``AttentionBackend`` in its attention_common.h). It takes the first that can
# compute a node; MATH can compute all. 8 is cuDNN's.
ATTENTION_KERNELS = {"FLASH": 1, "EFFICIENT": 2, "TRT_FUSED": 4, "MATH": 16, "TRT_FLASH": 32}

# What each process takes on a GPU for CUDA's context and kernels: an estimate, not measured.
CONTEXT_MB = 600

# A provider of ONNX Runtime, with its options where they are not the default.
Provider = str | tuple[str, dict[str, str]]


@dataclass(frozen=True, slots=True)
class Device:
    """The CPU, or the GPUs with these numbers. Each GPU has a copy of the model.

    ``workers`` of the service share each GPU: this process, and others with their own copies.
    """

    gpus: tuple[int, ...] = ()
    workers: int = 1

    @classmethod
    def of(cls, setting: str, workers: int = 1) -> "Device":
        """The device that a valid ``--device`` names. Without numbers, ``cuda`` is the first GPU.

        The numbers are CUDA's. ``CUDA_VISIBLE_DEVICES`` selects and orders the GPUs that have one.
        """
        if setting == "cpu":
            return cls()
        numbers = setting.partition(":")[2] or "0"
        return cls(tuple(map(int, numbers.split(","))), workers)

    def __str__(self) -> str:
        return f"cuda:{','.join(map(str, self.gpus))}" if self.gpus else "cpu"

    @property
    def copies(self) -> int:
        """The number of copies of the model: one on the CPU, else one on each GPU."""
        return len(self.gpus) or 1

    @property
    def provider(self) -> str:
        return CUDA if self.gpus else CPU

    def check(self) -> None:
        """Raise ``UserError`` if CUDA, or one of the GPUs, is not there or cannot be used."""
        if not self.gpus:
            return
        state = cuda_state()
        if state.problem:
            to_go_on = "to serve without a GPU, use --device cpu"
            raise UserError(f"CUDA cannot be used: {state.problem}; {state.cure}; {to_go_on}")
        if missing := [number for number in self.gpus if number >= len(state.gpus)]:
            shown = ", ".join(f"{number} ({gpu.name})" for number, gpu in enumerate(state.gpus))
            raise UserError(f"there is no GPU {missing[0]}: CUDA shows {shown}")
        for number in self.gpus:
            if problem := state.gpus[number].problem:
                raise UserError(f"GPU {number} is not supported: {problem}; use another GPU")

    def hardware(self) -> str:
        """The names and the memory of the GPUs; empty on the CPU."""
        gpus = self._visible_gpus() if self.gpus else []
        return ", ".join(f"{gpu.name} {gpu.memory_bytes}" for gpu in gpus)

    def providers(self, gpu_memory_mb: int) -> list[Provider]:
        """ONNX Runtime's provider for each session: one on the CPU, else one on each GPU.

        ``gpu_memory_mb`` limits the memory of all workers' sessions on a GPU. 0 means: no limit, or
        all of it for workers that share it. Each gets an equal part.
        """
        if not self.gpus:
            return [CPU]
        options = self.options(gpu_memory_mb)
        return [(CUDA, {"device_id": str(number), **options}) for number in self.gpus]

    def options(self, gpu_memory_mb: int) -> dict[str, str]:
        """The provider's options that are the same for each session; none on the CPU."""
        if not self.gpus:
            return {}
        limit_mb = gpu_memory_mb // self.workers
        if self.workers > 1 and not gpu_memory_mb:
            least = min(gpu.memory_bytes for gpu in self._visible_gpus())
            limit_mb = least // 1_000_000 // self.workers - CONTEXT_MB
        return _cuda_options(limit_mb)

    def _visible_gpus(self) -> list[CudaGpu]:
        return [gpu for number, gpu in enumerate(cuda_state().gpus) if number in self.gpus]


def _cuda_options(memory_mb: int) -> dict[str, str]:
    """Options of ONNX Runtime's CUDA provider, where its defaults do not fit.

    Its defaults fit for the search of convolution algorithms (these models have no convolution),
    for copying on the stream that computes (another stream can race: ONNX Runtime #4829), for CUDA
    graphs, which are off (they need batches of one shape), and for the arena: each growth is
    twice the one before, up to 1 GiB. Growths by what a batch needs (``kSameAsRequested``) leave
    pieces that later batches do not fit in, so memory grows with new shapes (#13500). Each session
    keeps its memory after a batch, since the next would have to allocate it again.
    """
    options = {
        # TF32 keeps 10 bits of a product's inputs. Logits in fp32 would differ from the CPU's, and
        # from those that the export has compared with the checkpoint.
        "use_tf32": "0",
        # The kernels of attention that may be used: all but cuDNN's. On an H100 or newer, cuDNN's
        # would be preferred. They build a graph for each new shape and never free it, and nearly
        # every batch has a new shape.
        "sdpa_kernel": str(sum(ATTENTION_KERNELS.values())),
    }
    if memory_mb:
        options["gpu_mem_limit"] = str(memory_mb * 1_000_000)
    return options
