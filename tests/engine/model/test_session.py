"""Sessions: their options, and what the log and /info tell of them."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from sentiment_service.engine.host import cpu_flags
from sentiment_service.engine.model.bundle import EMBEDDED_BUNDLE
from sentiment_service.engine.model.device import CPU
from sentiment_service.engine.model.sessions import open_session

from tests.conftest import Serve
from tests.support.serving import COMMAND, Process
from tests.support.tiny_bundle import load


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
    open_session(path, CPU, threads=1)
    assert capfd.readouterr().err == ""
    warning = ort.SessionOptions()
    warning.log_severity_level = 2
    ort.InferenceSession(path, warning, providers=[CPU])
    assert "unused" in capfd.readouterr().err


def test_a_failure_is_an_exception_and_no_line(capfd: pytest.CaptureFixture[str]) -> None:
    """What ONNX Runtime logs of a failed batch, in colours, would be no line of the JSON log."""
    session = load(EMBEDDED_BUNDLE, "int8").session
    bad = {node.name: np.full((1, 3), 2**31, np.int64) for node in session.get_inputs()}
    with pytest.raises(Exception, match="indices element out of data bounds"):
        session.run(None, bad)
    assert capfd.readouterr().err == ""


def test_a_session_has_the_default_kernels() -> None:
    """Products cannot saturate, so no option slows them down: other programs need none either."""
    options = load(EMBEDDED_BUNDLE, "int8").session.get_session_options()
    with pytest.raises(RuntimeError):
        options.get_session_config_entry("session.x64quantprecision")


def test_the_log_names_the_plan() -> None:
    """The first lines of the log have runners, threads and the budget."""
    flags = ("--runners", "1", "--threads", "1", "--max-batch-tokens", "256")
    with Process(*flags, command=COMMAND) as process:
        assert "runners 1 x threads 1, at most 256 tokens a batch" in process.first_lines


def test_info_names_the_cpu(serve: Serve) -> None:
    """/info names the CPU and the instruction sets that matter for speed."""
    embedded = serve(model=(EMBEDDED_BUNDLE,)).get("/info").json()
    assert embedded["cpu"]
    assert set(embedded["cpu_flags"].split()) <= cpu_flags() | {"unknown"}
