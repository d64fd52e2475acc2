"""Facts of the wheel onnxruntime-gpu that the service relies on, read from its files."""

import mmap
import re
from collections.abc import Iterator
from pathlib import Path

from sentiment_service.engine.model import device as gpu

from checks.support.fatbin import MACHINE_CODE, PTX, entries

CUDA_MAJOR = "13"  # of requirements/gpu.txt, and of docs/gpu.md's driver 580


def facts(site: Path) -> dict[str, str]:
    """ONNX Runtime's version, its CUDA, and the compute capabilities that it has code for."""
    package = site / "onnxruntime/capi"
    written = (package / "build_and_package_info.py").read_text()
    with (
        (package / "libonnxruntime_providers_cuda.so").open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library,
    ):
        codes = {(kind, code_for) for kind, code_for, *_ in entries(library)}
    return {
        "version": _value(written, "__version__"),
        "CUDA": _value(written, "cuda_version"),
        "machine code": _capabilities(codes, MACHINE_CODE),
        "PTX": _capabilities(codes, PTX) or "none",
    }


def wrong(found: dict[str, str]) -> Iterator[str]:
    """What the service takes for granted and the wheel does not have."""
    if found["CUDA"].partition(".")[0] != CUDA_MAJOR:
        yield f"the wheel is built for CUDA {found['CUDA']}, not {CUDA_MAJOR}"
    known = gpu.MACHINE_CODE.get(found["version"].rpartition(".")[0], ())
    ours = ", ".join(f"{major}.{minor}" for major, minor in known)
    if ours != found["machine code"]:
        yield f"engine/model/device.py names machine code for {ours or 'nothing'}"
    if found["PTX"] != "none":
        yield f"the wheel has PTX for {found['PTX']}, which newer GPUs can run"


def _value(written: str, name: str) -> str:
    found = re.search(rf"^{name} = '(.+)'$", written, re.MULTILINE)
    return found[1] if found else "unknown"


def _capabilities(codes: set[tuple[int, int]], wanted: int) -> str:
    numbers = sorted(code_for for kind, code_for in codes if kind == wanted)
    return ", ".join(f"{number // 10}.{number % 10}" for number in numbers)
