"""Sessions: which int8 kernels a CPU gets, and how they affect the logits."""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from app.engine.machine.cpu import cpu_flags
from app.engine.model import model as model_module
from app.engine.model.bundle import EMBEDDED_BUNDLE
from app.engine.model.device import CPU
from app.engine.model.model import Model
from app.engine.model.session import Int8Kernels, int8_kernels, open_session
from tests.conftest import Serve
from tests.support.machines.cpus import without_vnni
from tests.support.serving import COMMAND, ROOT, Process, environment
from tests.support.tiny_bundle import load

OPTION = "session.x64quantprecision"
X86 = platform.machine() in ("x86_64", "AMD64")


@pytest.fixture(scope="module")
def native() -> Any:
    """The embedded model's logits on this CPU, with both kinds of kernels."""
    return _logits([sys.executable])


def _logits(python: Sequence[str], changes: Mapping[str, str] | None = None) -> Any:
    command = [*python, "-m", "tests.support.machines.int8_logits"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(**changes or {}), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def _option(model: Model) -> str | None:
    options = model.session.get_session_options()
    try:
        value: str = options.get_session_config_entry(OPTION)
    except RuntimeError:  # it is not set
        return None
    return value


@pytest.mark.parametrize(
    ("wrong_by", "kernels"), [(0, "U8S8"), (-1, "U8U8")], ids=["exact", "saturated"]
)
def test_the_probe_looks_at_the_sums(
    monkeypatch: pytest.MonkeyPatch, wrong_by: int, kernels: Int8Kernels
) -> None:
    """One inexact sum is enough to avoid the fast kernels."""

    class Computed:
        def __init__(self, *arguments: Any, **named: Any) -> None:
            pass

        def run(self, _: None, feeds: dict[str, Any]) -> list[Any]:
            sums = feeds["a"].astype(np.int32) @ feeds["b"].astype(np.int32)
            sums[-1, -1] += wrong_by
            return [sums]

    monkeypatch.setattr(ort, "InferenceSession", Computed)
    assert int8_kernels.__wrapped__() == kernels


@pytest.mark.parametrize(("kernels", "option"), [("U8S8", None), ("U8U8", "1")])
def test_the_option_is_set_only_where_products_saturate(
    monkeypatch: pytest.MonkeyPatch, kernels: Int8Kernels, option: str | None
) -> None:
    """The slow kernels halve int8's speed; they are used only where needed."""
    monkeypatch.setattr(model_module, "int8_kernels", lambda: kernels)
    model = load(EMBEDDED_BUNDLE, "int8")
    assert model.kernels == kernels
    assert _option(model) == option
    assert _option(model.with_threads(2)) == option


def test_fp32_asks_for_no_kernels(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fp32 models do not run the probe, which is for int8 alone."""
    monkeypatch.setattr(model_module, "int8_kernels", lambda: pytest.fail("it was asked"))
    assert load(bundle).kernels is None


@pytest.mark.skipif(not cpu_flags() & {"avx512_vnni", "avx_vnni"}, reason="needs VNNI")
def test_a_cpu_with_vnni_takes_the_fast_kernels(native: Any) -> None:
    """With VNNI, products do not saturate, and the fast kernels give the slow ones' logits."""
    assert native["chosen"] == "U8S8"
    np.testing.assert_allclose(native["logits"]["U8S8"], native["logits"]["U8U8"], atol=1e-5)


@pytest.mark.skipif(not X86, reason="emulates x86")
def test_with_avx2_alone_the_logits_are_the_same(native: Any) -> None:
    """On an emulated Haswell the fast kernels would be wrong; the probe chooses the others."""
    qemu = shutil.which("qemu-x86_64")
    if qemu is None:
        _give_up("qemu-user is not installed")
    _same_logits(_logits([qemu, "-cpu", "Haswell", sys.executable]), native)


@pytest.mark.skipif("avx512bw" not in cpu_flags(), reason="needs AVX-512")
def test_with_avx512_without_vnni_the_logits_are_the_same(native: Any, tmp_path: Path) -> None:
    """As on Skylake: logits are right on this CPU when its VNNI is hidden from ONNX Runtime."""
    if not (shutil.which("gcc") and shutil.which("objdump")):
        _give_up("gcc and objdump are not installed")
    _same_logits(_logits([sys.executable], without_vnni(tmp_path)), native)


def test_nothing_but_the_log_is_on_standard_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """ONNX Runtime would warn of a weight that no node uses, but the service opens the session."""
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    unused = helper.make_tensor("unused", TensorProto.FLOAT, [1], [0.0])
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    graph = helper.make_graph(nodes, "tiny", value[:1], value[1:], [unused])
    imports = [helper.make_opsetid("", 18)]
    path = tmp_path / "tiny.onnx"
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), path)
    open_session(path, CPU, threads=1, kernels=None)
    assert capfd.readouterr().err == ""
    warning = ort.SessionOptions()
    warning.log_severity_level = 2
    ort.InferenceSession(path, warning, providers=[CPU])
    assert "unused" in capfd.readouterr().err


def _give_up(reason: str) -> NoReturn:
    """Fail in continuous integration, which has the tools; skip elsewhere."""
    (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)


def _same_logits(found: Any, native: Any) -> None:
    expected = native["logits"][native["chosen"]]
    assert found["chosen"] == "U8U8"
    np.testing.assert_allclose(found["logits"]["U8U8"], expected, atol=1e-5)
    # It is needed: what saturates is far off.
    assert np.abs(np.subtract(found["logits"]["U8S8"], expected)).max() > 1e-3


def test_the_log_names_plan_and_kernels() -> None:
    """The first lines of the log have runners, threads, the budget and the kernels."""
    flags = ("--runners", "1", "--threads", "1", "--max-batch-tokens", "256")
    with Process(*flags, command=COMMAND) as process:
        assert "runners 1 x threads 1, at most 256 tokens a batch" in process.first_lines
        assert f"int8 with ONNX Runtime's {int8_kernels()} kernels" in process.first_lines


def test_info_names_the_kernels(serve: Serve) -> None:
    """/info names the kernels and the CPU; without int8 it names none."""
    embedded = serve(model=(EMBEDDED_BUNDLE,)).get("/info").json()
    assert embedded["int8_kernels"] == int8_kernels()
    assert embedded["cpu"]
    assert set(embedded["cpu_flags"].split()) <= cpu_flags() | {"unknown"}
    assert serve().get("/info").json()["int8_kernels"] is None
