"""Fused operators of the fp16 graph: the same logits, on a CPU where it has them, else in numpy."""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto
from onnxruntime.capi import onnxruntime_pybind11_state as native

from app.errors import UserError
from model_export.graph.encoder_layers import find_layers
from model_export.graph.fusions import DEFAULT_FUSIONS, FUSIONS, fuse
from model_export.graph.linear import NotRecognised
from model_export.graph.passes.first_token import keep_first_token
from model_export.graph.passes.fused_attention import fuse_attention
from model_export.graph.variants import write_fp16
from tests.support.checkpoints import ARCHITECTURES, LAYERS, exported
from tests.support.contrib_operators import evaluate
from tests.support.graphs import random_encodings, run, session

DOMAIN = "com.microsoft"
PACKED = "packed-attention"
PADDED = [name for name in FUSIONS if name != PACKED]
# Each fusion alone, and all that go together.
CHOICES: list[Sequence[str]] = [[name] for name in FUSIONS] + [PADDED, list(FUSIONS)]
ON_CPU = [names for names in CHOICES if PACKED not in names]
ENCODINGS = random_encodings(0)
HALF_TOLERANCE = 0.02  # of logits that vary by about 1


@pytest.fixture(scope="module", params=ARCHITECTURES)
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph that no pass has seen."""
    return exported(tmp_path_factory.getbasetemp(), request.param).plain


@cache
def _shortened(plain: Path) -> ir.Model:
    model = ir.load(plain)
    for domain in [domain for domain in model.opset_imports if domain]:
        del model.opset_imports[domain]
    keep_first_token(model)
    return model


@cache
def _expected(plain: Path) -> np.ndarray:
    return run(session(_shortened(plain)), ENCODINGS)


def _operators(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in model.graph if node.domain == DOMAIN)


@pytest.mark.parametrize("names", ON_CPU, ids="+".join)
def test_fp32_logits_are_the_same_on_the_cpu_provider(plain: Path, names: Sequence[str]) -> None:
    """ONNX Runtime's own kernels compute the logits of the plain graph, in a padded batch."""
    fused, _ = fuse(_shortened(plain), names, "fp32")
    found = run(session(fused, optimised=False), ENCODINGS)
    np.testing.assert_allclose(found, _expected(plain), rtol=0, atol=1e-5)


@pytest.mark.parametrize("names", CHOICES, ids="+".join)
def test_fp32_logits_are_the_same_in_numpy(plain: Path, names: Sequence[str]) -> None:
    """The operators' definitions give the logits of the plain graph, also those for CUDA only."""
    fused, _ = fuse(_shortened(plain), names, "fp32")
    np.testing.assert_allclose(evaluate(fused, ENCODINGS), _expected(plain), rtol=0, atol=1e-5)


@pytest.fixture(params=CHOICES, ids="+".join)
def half(plain: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """An fp16 file with fusions."""
    write_fp16(plain, tmp_path / "half.onnx", request.param)
    return tmp_path / "half.onnx"


def test_fp16_logits_are_nearly_the_same(plain: Path, half: Path) -> None:
    """In numpy; and on the CPU provider, which casts to fp32 where it has no fp16 kernel."""
    model = ir.load(half)
    np.testing.assert_allclose(
        evaluate(model, ENCODINGS), _expected(plain), rtol=0, atol=HALF_TOLERANCE
    )
    if "PackedAttention" not in _operators(model):
        found = run(session(model), ENCODINGS)
        np.testing.assert_allclose(found, _expected(plain), rtol=0, atol=HALF_TOLERANCE)
