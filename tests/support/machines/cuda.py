"""A library that answers as NVIDIA's driver would."""

import shutil
import subprocess
from pathlib import Path

import pytest


def fake_libcuda(directory: Path) -> str:
    """The path of the compiled library. Skips the test where there is no C compiler."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("needs a C compiler")
    source, library = Path(__file__).with_name("fake_libcuda.c"), directory / "libcuda.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", source, "-o", library], check=True)
    return str(library)
