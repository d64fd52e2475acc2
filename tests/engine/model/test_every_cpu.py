"""int8 on other x86 CPUs than this one: exact products, and the same logits."""

import json
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentiment_service.engine.host import cpu_flags

from tests.support.machines.cpus import avx2_alone, without_vnni
from tests.support.serving import ROOT, environment, installed

# Products are exact everywhere. The steps in fp32 may round otherwise on another CPU.
TOLERANCE = 0.1

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="compares x86 CPUs"
)


@pytest.fixture(scope="module")
def native() -> Any:
    """The products and logits of this CPU."""
    return _computed([sys.executable])


def _computed(python: Sequence[str], changes: Mapping[str, str] | None = None) -> Any:
    command = [*python, "-m", "tests.support.machines.int8_products"]
    variables = environment(**changes or {})
    variables.pop("OPENBLAS_CORETYPE", None)  # numpy would use kernels of this machine's CPU
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def test_products_are_exact_on_this_cpu(native: Any) -> None:
    """Whatever kernels ONNX Runtime chooses here, no sum of the bundles' weights is wrong."""
    assert native["wrong"]["64"] == 0


@pytest.mark.beside
@pytest.mark.parametrize(
    ("cpu", "saturates"), [("Haswell", True), ("Nehalem", False)], ids=["AVX2 alone", "SSE4.1"]
)
def test_products_and_logits_are_those_of_an_emulated_cpu(
    native: Any, cpu: str, saturates: bool
) -> None:
    """No sum is wrong, though larger weights saturate with AVX2; so the logits are this CPU's."""
    qemu = installed("qemu-x86_64", "qemu-user")
    found = _computed([qemu, "-cpu", cpu, sys.executable])
    assert found["wrong"]["64"] == 0
    assert (found["wrong"]["127"] > 0) == saturates
    np.testing.assert_allclose(found["logits"], native["logits"], atol=TOLERANCE)


@pytest.mark.skipif("avx512bw" not in cpu_flags(), reason="needs AVX-512")
@pytest.mark.parametrize("hidden", [without_vnni, avx2_alone])
def test_products_and_logits_are_those_without_vnni(
    native: Any, tmp_path: Path, hidden: Callable[[Path], dict[str, str]]
) -> None:
    """So as on Skylake and as on Zen 3, when this CPU's VNNI or AVX-512 is hidden."""
    found = _computed([sys.executable], hidden(tmp_path))
    assert found["wrong"]["64"] == 0
    assert found["wrong"]["127"] > 0
    np.testing.assert_allclose(found["logits"], native["logits"], atol=TOLERANCE)
