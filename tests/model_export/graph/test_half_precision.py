"""fp16: half the size, nearly the same logits, and fp32 for sums that need it."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto

from app.engine.model.bundle import Bundle
from app.errors import InferenceFailed
from model_export.checkpoint.checkpoint import load_checkpoint
from model_export.graph.variants import write_fp16
from tests.support.checkpoints import ARCHITECTURES, CORPUS, Exported, exported


@pytest.fixture(scope="module", params=ARCHITECTURES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """One of the architectures, exported to fp32 and int8."""
    return exported(tmp_path_factory.getbasetemp(), request.param)


@pytest.fixture
def half(made: Exported, tmp_path: Path) -> Path:
    """The fp16 file."""
    write_fp16(made.plain, tmp_path / "half.onnx")
    return tmp_path / "half.onnx"


def test_logits_are_those_of_pytorch(made: Exported, half: Path) -> None:
    """Within what eleven bits of mantissa allow, in a padded batch; inputs and output as fp32."""
    checkpoint = load_checkpoint(made.source)
    bundle = Bundle.open(made.bundle)
    variant = bundle.manifest.variants["fp32"]
    model = made.model("fp32")
    session = onnx.load(half)
    assert [value.type.tensor_type.elem_type for value in session.graph.output] == [
        TensorProto.FLOAT
    ]
    assert half.stat().st_size < 0.7 * variant.bytes

    model.session = ort.InferenceSession(half, providers=["CPUExecutionProvider"])
    encodings = [model.tokenizer.encode(text) for text in CORPUS]
    for encoding, found in zip(encodings, model.infer(encodings), strict=True):
        assert not isinstance(found, InferenceFailed)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, checkpoint.logits(encoding.ids).numpy(), atol=0.03)


def test_sums_stay_in_fp32(half: Path) -> None:
    """Layer norms and softmax read and give fp32; every matrix is fp16; the graph is valid."""
    model = onnx.load(half)
    onnx.checker.check_model(model, full_check=True)
    types = {value.name: value.data_type for value in model.graph.initializer}
    produced = {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        if node.op_type in ("LayerNormalization", "Softmax"):
            assert produced[node.input[0]].op_type == "Cast"
            assert {types[name] for name in node.input[1:]} <= {TensorProto.FLOAT}
            readers = [other for other in model.graph.node if node.output[0] in other.input]
            assert {reader.op_type for reader in readers} == {"Cast"}
        if node.op_type == "MatMul":
            assert {types.get(name, TensorProto.FLOAT16) for name in node.input} == {
                TensorProto.FLOAT16
            }


def test_no_weight_overflows(half: Path) -> None:
    """The mask's lowest float32 becomes fp16's lowest, not minus infinity."""
    for tensor in onnx.load(half).graph.initializer:
        if tensor.data_type == TensorProto.FLOAT16:
            assert np.isfinite(onnx.numpy_helper.to_array(tensor)).all()
