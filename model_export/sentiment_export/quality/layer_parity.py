"""Compares a variant with the PyTorch checkpoint module by module, on one text.

If the logits differ, the report names the first module that differs. Forward hooks record the
outputs of PyTorch's modules. The exporter names each node after its module
(``/encoder/layer.0/output/dense/Add``), so the last node of that name holds the module's output.
"""

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import torch
from sentiment_service.engine.model.bundle import Precision
from sentiment_service.engine.model.device import CPU
from sentiment_service.engine.model.sessions import flat_feeds, for_cpu
from sentiment_service.errors import UserError

from sentiment_export.checkpoint.checkpoint import Checkpoint

# The difference allowed, relative to the largest value in the module's output. The largest
# measured on random models of 2 and 12 layers: fp32 7e-6, fp16 0.006, int8 0.11 (its logits 0.2).
TOLERANCE: dict[Precision, float] = {"fp32": 1e-4, "fp16": 0.02, "int8": 0.25}
# Logits near 0 are no more exact than others, so their largest value counts as at least this.
SMALLEST_LOGIT = 2.0
# The int8 pass drops the key's bias and moves the value's bias to the attention output. The
# result is right, but these two modules differ from PyTorch's.
NOT_IN_INT8 = (".key", ".value", ".k_lin", ".v_lin")  # the last two: DistilBERT
TINY = float(np.finfo(np.float32).tiny)  # avoids dividing by an output of zeros


@dataclass(frozen=True, slots=True)
class Difference:
    """Largest difference of one module's output; ``relative`` to PyTorch's largest value."""

    module: str
    max_abs_diff: float
    relative: float


@dataclass(frozen=True, slots=True)
class LayerReport:
    """The differences of all modules, in the order in which PyTorch calls them."""

    precision: Precision
    differences: list[Difference]

    @property
    def first_wrong(self) -> str | None:
        """The first module beyond the tolerance; later ones compute from its wrong output."""
        # "not <=" instead of ">", so that a NaN counts as beyond.
        allowed = TOLERANCE[self.precision]
        return next((d.module for d in self.differences if not d.relative <= allowed), None)

    def table(self) -> str:
        """The report for a terminal."""
        width = max(len(difference.module) for difference in self.differences)
        lines = [f"{self.precision + ' module':{width}}  max abs diff  relative"]
        lines += [
            f"{d.module:{width}}  {d.max_abs_diff:12.3g}  {d.relative:8.2g}"
            for d in self.differences
        ]
        lines.append(f"first module beyond the tolerance: {self.first_wrong or 'none'}")
        return "\n".join(lines)


def layer_parity(
    checkpoint: Checkpoint, onnx_path: Path, precision: Precision, ids: list[int]
) -> LayerReport:
    """Run one text's ids through both and compare every module that both have.

    Raises:
        UserError: no value of the graph is named after a module.
    """
    expected = _module_outputs(checkpoint, ids)
    if precision == "int8":
        expected = {m: array for m, array in expected.items() if not m.endswith(NOT_IN_INT8)}
    model = ir.load(onnx_path)
    # The last value that each module computes. Modules that the graph does not have, such as
    # dropout, are not compared.
    scopes = (((node.name or "").rpartition("/")[0], node.outputs[0]) for node in model.graph)
    named = {scope.strip("/").replace("/", "."): value for scope, value in scopes}
    values = {module: named[module] for module in expected if module in named}
    if not values:
        raise UserError(f"no value in {onnx_path} is named after a module of the checkpoint")
    logits = next(reversed(expected))
    found = _run(model, list(values.values()), ids)
    differences = [
        _difference(module, expected[module], array, SMALLEST_LOGIT if module == logits else TINY)
        for module, array in zip(values, found, strict=True)
    ]
    return LayerReport(precision, differences)


def _module_outputs(checkpoint: Checkpoint, ids: list[int]) -> dict[str, np.ndarray]:
    """Output of each module without submodules, in the order of the calls."""
    outputs: dict[str, np.ndarray] = {}
    with ExitStack() as hooks:
        for name, module in checkpoint.model.named_modules():
            if not any(module.children()):

                def record(_: Any, __: Any, output: Any, name: str = name) -> None:
                    # ModernBERT's rotary embeddings are a pair. ALBERT calls its one layer many
                    # times; in the graph, the first call has its name.
                    if isinstance(output, torch.Tensor):
                        outputs.setdefault(name, output.numpy().copy())

                hooks.callback(module.register_forward_hook(record).remove)
        checkpoint.logits(ids)
    return outputs


def _run(model: ir.Model, values: list[ir.Value], ids: list[int]) -> list[np.ndarray]:
    """The values for one text, computed without graph optimisations."""
    graph = model.graph
    graph.outputs.extend(value for value in values if not value.is_graph_output())
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    feeds: dict[str, np.ndarray] = {
        "input_ids": np.array([ids], np.int64),
        "attention_mask": np.ones((1, len(ids)), np.int64),
        "token_type_ids": np.zeros((1, len(ids)), np.int64),
    }
    if any(value.name == "token_offset" for value in graph.inputs):
        flat_ids, length, typed = (np.array(n, np.int32) for n in (ids, [len(ids)], [0]))
        feeds |= flat_feeds(flat_ids, length, typed, model.metadata_props)
    with tempfile.TemporaryDirectory(prefix="layer-parity-") as directory:
        path = Path(directory) / "model.onnx"
        # The weights go into a separate file, which a graph of over 2 GB needs.
        ir.save(model, path, external_data="model.onnx.data")
        folder = "session.model_external_initializers_file_folder_path"
        options.add_session_config_entry(folder, directory)
        session = ort.InferenceSession(for_cpu(path), options, providers=[CPU])
        wanted = {node.name: feeds[node.name] for node in session.get_inputs()}
        return [np.asarray(array) for array in session.run([v.name for v in values], wanted)]


def _difference(module: str, expected: np.ndarray, found: np.ndarray, least: float) -> Difference:
    """Compare token by token; the last layer may have only its first one or two tokens.

    ``least`` is the smallest divisor of the relative difference.
    """
    width = expected.shape[-1]
    rows = found.reshape(-1, width).astype(np.float64)
    reference = expected.reshape(-1, width)[: len(rows)].astype(np.float64)
    largest = float(np.abs(rows[: len(reference)] - reference).max())
    return Difference(module, largest, largest / max(float(np.abs(reference).max()), least))
