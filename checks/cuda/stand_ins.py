"""Builds libraries that stand in for NVIDIA's.

With them, ONNX Runtime's CUDA provider loads on a machine without a GPU. Real are: opening a
session, partitioning, fusing, choosing kernels, the arena, copies, errors, and starting kernels.
Not real is the arithmetic: no kernel runs, so logits mean nothing, and what depends on values that
a kernel computes, such as NonZero, cannot run. Nothing is known of speed.

The folder of the same name has what each library must do. All else that the provider asks of it is
a function that returns 0, made here from the provider's own list of symbols.
"""

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from benchmarks.service import ROOT

SOURCES = Path(__file__).with_suffix("")
# NVIDIA's headers need these, which come with the compiler nvcc.
HOST_DEFINES = """
#pragma once
#define __host__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define __builtin_align__(bytes) __attribute__((aligned(bytes)))
#define __align__(bytes) __attribute__((aligned(bytes)))
"""
# By source: the name of the library, and which symbols are its own. The provider's list says so
# of libraries that give their symbols a version.
LIBRARIES: dict[str, tuple[str, Callable[[str, str], bool]]] = {
    "cudart": ("libcudart.so.13", lambda _, version: version == "libcudart.so.13"),
    "cublas": ("libcublas.so.13", lambda _, version: version == "libcublas.so.13"),
    "cublasLt": ("libcublasLt.so.13", lambda _, version: version == "libcublasLt.so.13"),
    "curand": ("libcurand.so.10", lambda symbol, _: symbol.startswith("curand")),
    "cuda": ("libcuda.so.1", lambda symbol, _: re.match("cu[A-Z]", symbol) is not None),
}
# The service wants them to be there; of cuDNN, ONNX Runtime makes a handle.
UNUSED = {
    "libnvrtc.so.13": "",
    "libcufft.so.12": "",
    "libcudnn.so.9": "".join(
        f"int cudnn{what}() {{ return 0; }}" for what in ("Create", "SetStream", "Destroy")
    ),
}


def build(packages: Path, folder: Path) -> dict[str, str]:
    """Write the libraries into ``folder``, and return the environment of a process that uses them.

    ``packages`` is where onnxruntime-gpu and nvidia-cuda-runtime are installed.
    """
    # Without NVIDIA's own runtime, which is beside it and which the service would load.
    (folder / "site").mkdir()
    (folder / "site/onnxruntime").symlink_to(packages / "onnxruntime")
    target = folder / "libraries"
    (target / "crt").mkdir(parents=True)
    (target / "crt/host_defines.h").write_text(HOST_DEFINES)
    (headers,) = packages.glob("nvidia/*/include")
    wanted = _undefined(packages / "onnxruntime/capi/libonnxruntime_providers_cuda.so")
    for source, (library, owns) in LIBRARIES.items():
        written = (SOURCES / f"{source}.c").read_text()
        ours = set(re.findall(r"^\S.*?\b(\w+)\(", written, re.MULTILINE))
        missing = sorted({symbol for symbol, version in wanted if owns(symbol, version)} - ours)
        rest = "".join(f"int {symbol}(void) {{ return 0; }}\n" for symbol in missing)
        (target / f"{source}.c").write_text(written + rest)
        (target / f"{source}.map").write_text(f"{library} {{ global: *; }};\n")
        command: list[str | Path] = ["gcc", "-w", "-O1", "-fPIC", "-shared"]
        command += [f"-I{target}", f"-I{headers}", target / f"{source}.c"]
        command += ["-o", target / library, f"-Wl,-soname,{library}"]
        command += target.glob("libcudart.so.*")  # the first one, which the others report to
        if any(version for symbol, version in wanted if owns(symbol, version)):
            command.append(f"-Wl,--version-script={target / source}.map")
        subprocess.run(command, check=True)
    for library, content in UNUSED.items():
        command = ["gcc", "-shared", "-o", target / library, "-x", "c", "-"]
        subprocess.run(command, input=content, text=True, check=True)
    return {
        "PYTHONPATH": f"{folder / 'site'}{os.pathsep}{ROOT}",
        "LD_LIBRARY_PATH": str(target),
        "STAND_IN_FAULT": str(folder / "fault"),
    }


def _undefined(library: Path) -> set[tuple[str, str]]:
    """The symbols that a library expects of others, each with its version, if any."""
    command = ["nm", "--dynamic", "--undefined-only", str(library)]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    symbols = [line.split()[-1].partition("@")[::2] for line in listed.splitlines()]
    return {(symbol, version.lstrip("@")) for symbol, version in symbols}
