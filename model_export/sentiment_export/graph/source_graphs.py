"""Writes the variants of a checkpoint whose source is an ONNX graph of someone else.

A plain fp32 graph gets the passes. One that is quantized, in half precision or in operators that
the passes do not know is the one variant as it is.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
from onnx import ModelProto, version_converter
from sentiment_service.engine.model.bundle import Precision
from sentiment_service.engine.model.device import CPU
from sentiment_service.engine.model.sessions import loading_error
from sentiment_service.errors import UserError

from sentiment_export.checkpoint.architectures import NotRecognised
from sentiment_export.checkpoint.checkpoint import Checkpoint
from sentiment_export.checkpoint.graph_file import GraphFile
from sentiment_export.graph.builder import LARGEST_FILE, LEAST_OUTSIDE, OPSET, external_data
from sentiment_export.graph.variants import ExportedGraphs, fold_constants

NO_ONNX_IR = "it is kept as it is: int8 and fp16 need onnx-ir, which the extra `onnx` installs"
OTHER_OPERATORS = "it is kept as it is: other variants need a graph in ONNX's plain operators"


class SourceGraphs:
    """The graph in ``checkpoint.graph``, and what is made of it in the directory ``work``.

    ``session`` computes the source's own logits. ``kept`` says why the graph is the only variant;
    it is empty if the passes are for it.
    """

    def __init__(self, checkpoint: Checkpoint, file: GraphFile, work: Path) -> None:
        """Read the weights, open the graph and compute a text.

        Raises:
            UserError: ONNX Runtime cannot compute the graph, or its output is not [texts, labels].
        """
        self._file = file
        self._source, self._plain = work / "source.onnx", work / "plain.onnx"
        model = file.whole()
        _save(model, self._source)
        self.session = _opened(self._source, file.path)
        if not file.labels:  # the service reads it in the file
            _check_shape(self.session, file, len(checkpoint.labels))
            model = onnx.load_model(self._source, load_external_data=False)
            axes = model.graph.output[0].type.tensor_type.shape
            del axes.dim[:]
            axes.dim.add(dim_param="batch_size")
            axes.dim.add(dim_value=len(checkpoint.labels))
            onnx.save_model(model, self._source)
        self.kept = self._why_kept()

    @property
    def is_masked(self) -> bool:
        """Whether the graph is told which tokens are padding."""
        return "attention_mask" in [node.name for node in self.session.get_inputs()]

    def possible(self, wanted: Sequence[Precision]) -> Sequence[Precision]:
        """Those of the ``wanted`` variants that there can be; if the graph is kept, its own."""
        return (self._file.precision,) if self.kept else wanted

    def write(self, precision: Precision, target: Path) -> list[str]:
        """Write a variant; see ``Graphs``."""
        if not self.kept:
            return ExportedGraphs(self._plain).write(precision, target)
        model = onnx.load_model(self._source)
        _save(model, target)
        return [f"as it is in {self._file.path.name}"]

    def _why_kept(self) -> str:
        if self._file.precision != "fp32":
            return f"it is in {self._file.precision} already, and kept as it is"
        if not self._file.is_plain:
            return OTHER_OPERATORS
        if not find_spec("onnx_ir"):
            return NO_ONNX_IR
        import onnx_ir as ir

        from sentiment_export.graph.passes.rows import compute_on_rows

        try:
            _at_our_opset(self._source, self._plain)
            linears, _ = compute_on_rows(ir.load(self._plain))
        except NotRecognised:
            return OTHER_OPERATORS
        return "" if linears else OTHER_OPERATORS


def _at_our_opset(source: Path, plain: Path) -> None:
    """Write the graph at the opset of the passes, or a newer one, with its constants folded.

    Raises:
        NotRecognised: an operator has no form at that opset that is known.
    """
    model = onnx.load_model(source, load_external_data=False)
    version = next(used.version for used in model.opset_import if not used.domain)
    if version >= OPSET:
        fold_constants(source, plain)
        return
    if external_data(source).exists():
        raise NotRecognised(f"opset {version} in a graph beyond 2 GB")
    converted = plain.with_name("converted.onnx")
    try:
        onnx.save_model(version_converter.convert_version(model, OPSET), converted)
    except Exception as error:  # the converter raises what C++ does
        raise NotRecognised(f"opset {version}: {error}") from error
    fold_constants(converted, plain)
    converted.unlink()


def _opened(path: Path, named: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        return ort.InferenceSession(path, options, providers=[CPU])
    except Exception as error:  # onnxruntime's exceptions share no base class
        raise loading_error(error, f"ONNX Runtime cannot load {named}") from error


def _check_shape(session: ort.InferenceSession, file: GraphFile, labels: int) -> None:
    """Compute a text of two tokens, and check the shape of its logits."""
    feeds: dict[str, Any] = {node.name: [[1, 1]] for node in session.get_inputs()}
    try:
        (logits,) = session.run(None, feeds)
    except Exception as error:
        raise loading_error(error, f"{file.path} fails on a text") from error
    shape = list(getattr(logits, "shape", ()))
    if shape != [1, labels]:
        raise UserError(
            f"{file.path} gives {file.logits} of the shape {shape} for one text, but config.json "
            f"names {labels} labels"
        )


def _save(model: ModelProto, target: Path) -> None:
    """Write a graph with its weights; see ``Graph.write``."""
    size = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    onnx.save_model(
        model,
        target,
        save_as_external_data=size > LARGEST_FILE,
        location=external_data(target).name,
        size_threshold=LEAST_OUTSIDE,
    )
