"""int8 on other x86 CPUs than this one: exact products, the same logits, the recorded answers."""

import json
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from sentiment_service.engine.host import cpu_flags

from tests.conftest import FLAGS
from tests.replay.comparison import differences
from tests.replay.corpus import CORPUS
from tests.replay.recording import FRACTION, read, recorded
from tests.support.machines.cpus import AVX2_ALONE, without_vnni
from tests.support.serving import ROOT, Process, environment, installed

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


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which this CPU's VNNI is hidden."""
    return without_vnni(tmp_path_factory.mktemp("hidden"))


@pytest.mark.skipif("avx512bw" not in cpu_flags(), reason="needs AVX-512")
@pytest.mark.parametrize("more", [{}, AVX2_ALONE], ids=["AVX-512", "AVX2 alone"])
def test_products_and_logits_are_those_without_vnni(
    native: Any, hidden: dict[str, str], more: dict[str, str]
) -> None:
    """So as on Skylake and as on Zen 3, when this CPU's VNNI or AVX-512 is hidden."""
    found = _computed([sys.executable], hidden | more)
    assert found["wrong"]["64"] == 0
    assert found["wrong"]["127"] > 0
    np.testing.assert_allclose(found["logits"], native["logits"], atol=TOLERANCE)


@pytest.mark.skipif("avx2" not in cpu_flags(), reason="needs an x86 CPU with AVX2")
def test_the_recorded_answers_are_those_of_avx2(hidden: dict[str, str]) -> None:
    """Of the requests whose figures no other one has: forms of answers do not depend on a CPU."""
    recording = read(ROOT / "tests/api/recorded/recorded_answers.json")
    first: dict[str, str] = {}
    for name, one in recording.items():
        bodies = [str(answer.get("body", answer.get("long_body"))) for answer in one["answers"]]
        first.setdefault(str([*map(FRACTION.findall, bodies)]), name)
    before = {name: recording[name] for name in first.values()}
    with Process(*FLAGS, variables=hidden | AVX2_ALONE) as service:
        answers = recorded(service.url, [one for one in CORPUS if one.name in before])
    assert len(before) > 150
    assert list(differences(before, answers, tolerance=TOLERANCE)) == []
