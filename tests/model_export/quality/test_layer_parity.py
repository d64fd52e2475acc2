"""Layer parity: finds the first module of an exported graph that differs from PyTorch."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from sentiment_export.checkpoint.checkpoint import Checkpoint, load_checkpoint
from sentiment_export.graph.editor import array_of
from sentiment_export.graph.variants import graphs_of
from sentiment_export.output import ONNX_FILES
from sentiment_export.quality.verification import (
    LAYER_TOLERANCE,
    first_wrong,
    layer_parity,
    layer_table,
)
from sentiment_service.engine.model.bundle import Precision
from sentiment_service.errors import UserError

from tests.support.checkpoints import LAYERS, Exported

IDS = [5, 17, 9, 30, 41, 17, 8, 6]


def _variant(made: Exported, precision: Precision) -> Path:
    return made.bundle / ONNX_FILES[precision]


def _norms(checkpoint: Checkpoint) -> list[str]:
    modules = checkpoint.model.named_modules()
    return [name for name, module in modules if type(module).__name__ == "LayerNorm"]


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_a_sound_export_departs_nowhere(
    made: Exported, precision: Precision, tmp_path: Path
) -> None:
    """Every layer norm and the classifier are compared, with half the tolerance to spare."""
    checkpoint = load_checkpoint(made.source)
    target = tmp_path / "model.onnx"
    if precision == "fp16":
        graphs_of(checkpoint, tmp_path)("fp16", target)
    report = layer_parity(
        checkpoint, target if precision == "fp16" else _variant(made, precision), precision, IDS
    )
    assert first_wrong(precision, report) is None
    assert layer_table(precision, report).endswith("\nfirst module beyond the tolerance: none")
    compared = [*report]
    norms = _norms(checkpoint)
    assert len(norms) == 2 * LAYERS + 1
    assert set(norms) < set(compared)
    assert compared[-1].startswith("classifier")
    largest = max(relative for _, relative in report.values())
    assert largest < LAYER_TOLERANCE[precision] / 2


def test_every_linear_layer_of_the_encoder_is_compared(made: Exported) -> None:
    """Six a layer in fp32; in int8 all but the keys and values, whose biases are elsewhere."""
    checkpoint = load_checkpoint(made.source)
    expected: dict[Precision, int] = {"fp32": 6, "int8": 4}
    for precision, linears in expected.items():
        report = layer_parity(checkpoint, _variant(made, precision), precision, IDS)
        kinds = {name: type(m).__name__ for name, m in checkpoint.model.named_modules()}
        encoder = [module for module in report if ".layer." in module]
        assert sum(kinds[name] == "Linear" for name in encoder) == linears * LAYERS


def _damage(source: Path, target: Path, weight: str, change: Callable[[np.ndarray], None]) -> Path:
    """A copy in which the one constant of that name is changed."""
    model = ir.load(source)
    value = model.graph.initializers[weight]
    array = np.array(array_of(value))
    change(array)
    value.const_value = ir.tensor(array, name=weight)
    ir.save(model, target)
    return target


def _double(array: np.ndarray) -> None:
    array *= 2


def _double_a_row_of_the_text(array: np.ndarray) -> None:
    array[IDS[3]] *= 2


def _move(array: np.ndarray) -> None:
    array[3] += 2


def _make_nan(array: np.ndarray) -> None:
    array[0] = np.nan


ENCODER = "roberta.encoder.layer."
FP32_DAMAGES = [
    ("roberta.embeddings.word_embeddings.weight", _double_a_row_of_the_text),
    ("roberta.embeddings.LayerNorm.bias", _move),
    (f"{ENCODER}0.attention.self.value.bias", _move),
    (f"{ENCODER}1.attention.output.dense.bias", _move),
    (f"{ENCODER}1.attention.output.LayerNorm.bias", _make_nan),
    (f"{ENCODER}1.attention.self.query.weight.T", _double),
    (f"{ENCODER}1.intermediate.dense.weight.T", _double),
    (f"{ENCODER}0.output.LayerNorm.weight", _double),
    ("classifier.dense.weight", _double),
    ("classifier.out_proj.weight", _double),
]


@pytest.mark.parametrize(("weight", "change"), FP32_DAMAGES)
def test_a_damaged_fp32_weight_is_named(
    weight: str, change: Callable[[np.ndarray], None], roberta: Exported, tmp_path: Path
) -> None:
    """The module it belongs to departs first, though all that follow depart as well."""
    source = _variant(roberta, "fp32")
    damaged = _damage(source, tmp_path / "damaged.onnx", weight, change)
    report = layer_parity(load_checkpoint(roberta.source), damaged, "fp32", IDS)
    expected = weight.removesuffix(".T").rpartition(".")[0]
    assert first_wrong("fp32", report) == expected
    assert layer_table("fp32", report).endswith(f"\nfirst module beyond the tolerance: {expected}")


INT8_DAMAGES = [
    (f"{ENCODER}0.attention.self.query", f"{ENCODER}0.attention.self.query"),
    # The values themselves are not compared in int8, what attention makes of them is.
    (f"{ENCODER}0.attention.self.value", f"{ENCODER}0.attention.output.dense"),
    (f"{ENCODER}1.attention.output.dense", f"{ENCODER}1.attention.output.dense"),
    (f"{ENCODER}1.intermediate.dense", f"{ENCODER}1.intermediate.dense"),
    (f"{ENCODER}1.output.dense", f"{ENCODER}1.output.dense"),
]


@pytest.mark.parametrize(("damaged_module", "module"), INT8_DAMAGES)
def test_a_damaged_int8_weight_is_named(
    damaged_module: str, module: str, roberta: Exported, tmp_path: Path
) -> None:
    """Though int8 is off everywhere by a little."""
    source = _variant(roberta, "int8")
    damaged = _damage(source, tmp_path / "damaged.onnx", f"{damaged_module}.weight_scale", _double)
    report = layer_parity(load_checkpoint(roberta.source), damaged, "int8", IDS)
    assert first_wrong("int8", report) == module


def test_weights_beside_the_graph_are_read(roberta: Exported, tmp_path: Path) -> None:
    """A graph whose weights are in a file of their own is compared like any other."""
    model = ir.load(_variant(roberta, "fp32"))
    ir.save(model, tmp_path / "model.onnx", external_data="weights", size_threshold_bytes=1)
    before = sorted(path.name for path in tmp_path.iterdir())
    assert before == ["model.onnx", "weights"]
    checkpoint = load_checkpoint(roberta.source)
    report = layer_parity(checkpoint, tmp_path / "model.onnx", "fp32", IDS)
    assert first_wrong("fp32", report) is None
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_graph_without_names_is_refused(tmp_path: Path, roberta: Exported) -> None:
    """Nothing compared is not the same as nothing departs."""
    model = ir.load(_variant(roberta, "fp32"))
    for number, node in enumerate(model.graph):
        node.name = f"node_{number}"
    ir.save(model, tmp_path / "model.onnx")
    with pytest.raises(UserError, match=r"no value in .* is named after a module"):
        layer_parity(load_checkpoint(roberta.source), tmp_path / "model.onnx", "fp32", IDS)
