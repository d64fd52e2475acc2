"""The conditions of a measurement: date, machine and versions."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version

import onnxruntime

from app.engine.machine.cpu import available_cpus, cpu_name, vector_flags
from app.engine.model.session import int8_kernels


def conditions() -> dict[str, str]:
    """The conditions that are printed with every table."""
    kernels = {"U8S8": "U8S8", "U8U8": "U8U8 (U8S8 saturates here)"}[int8_kernels()]
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": f"{cpu_name()} {platform.machine()} ({vector_flags()}; int8 kernels {kernels}), "
        f"{available_cpus():g} CPUs, "
        f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        # The package onnxruntime has another name for GPUs.
        "versions": f"Python {platform.python_version()}, onnxruntime {onnxruntime.__version__}, "
        + ", ".join(f"{name} {version(name)}" for name in ("tokenizers", "fastapi")),
    }
