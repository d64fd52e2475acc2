"""Writes the variants of a checkpoint: from its weights, PyTorch's graph or someone else's.

BERT's family is written from its weights. Other architectures are exported by PyTorch, and the
passes change that graph.

An ONNX graph that takes the place of weights gets the passes, too, if it is plain fp32. One that is
quantized, in half precision or in operators that the passes do not know is the one variant as it
is.
"""

import ast
import gc
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import ModelProto, version_converter
from sentiment_service.engine.model.bundle import Precision
from sentiment_service.engine.model.device import CPU
from sentiment_service.engine.model.sessions import loading_error
from sentiment_service.errors import UserError

from sentiment_export.checkpoint.architectures import NotRecognised
from sentiment_export.checkpoint.checkpoint import Checkpoint
from sentiment_export.checkpoint.family import Encoder
from sentiment_export.checkpoint.graph_file import GraphFile
from sentiment_export.checkpoint.tokenizer import TYPED
from sentiment_export.graph.builder import LARGEST_FILE, LEAST_OUTSIDE, OPSET, external_data
from sentiment_export.graph.classifier import Classifier, Int8Classifier
from sentiment_export.graph.flat import FlatClassifier

# What is done to the graph, as manifest and model card say it.
NO_PADDING = "padding left out"
LAST_LAYER_SHORTENED = "last layer for the first token only"
END_SHORTENED = "first token only after the last attention"
INT8 = ("int8 with a scale per token", "int8 embedding")
# Where PyTorch's exporter says in which module of the model a node is.
SCOPES = "pkg.torch.onnx.name_scopes"

# Writes a variant to a file, and returns what was done to the graph, in plain words.
Write = Callable[[Precision, Path], list[str]]


def graphs_of(checkpoint: Checkpoint, work: Path) -> Write:
    """What writes the checkpoint's variants; ``work`` is for files."""
    if checkpoint.encoder is None:
        return partial(write_from_graph, export_graph(checkpoint, work))
    return partial(_write_from_weights, checkpoint.encoder, checkpoint.weights)


def _write_from_weights(
    encoder: Encoder, weights: Mapping[str, np.ndarray], precision: Precision, target: Path
) -> list[str]:
    kind, passes = _OF_WEIGHTS[precision]
    kind(encoder, weights).write(target)
    return [NO_PADDING, LAST_LAYER_SHORTENED, *passes]


_OF_WEIGHTS: Mapping[Precision, tuple[Callable[[Encoder, Any], Classifier], tuple[str, ...]]] = {
    "fp32": (Classifier, ()),
    "int8": (Int8Classifier, INT8),
    "fp16": (FlatClassifier, ("half precision with CUDA's operators",)),
}


def write_from_graph(plain: Path, precision: Precision, target: Path) -> list[str]:
    """Write a variant of a ``plain`` fp32 graph, which has dynamic axes and a mask.

    In fp16, padding is kept. Dropping it needs the number of real tokens, which only the GPU
    knows, and the CPU would have to wait for it in the middle of the graph.
    """
    # Only these graphs need onnx-ir.
    import onnx_ir as ir

    from sentiment_export.graph import editor, precisions, rows

    model = ir.load(plain)
    # ONNX Runtime lists every domain that it knows; other readers may refuse unknown domains.
    for domain in [domain for domain in model.opset_imports if domain]:
        del model.opset_imports[domain]
    editor.put_gelu_in_order(model.graph)
    if precision == "fp16":
        precisions.to_half_precision(model)
        passes = ["half precision"]
    else:
        rows.sum_tokens_in_order(model)
        linears, first_token_only = rows.compute_on_rows(model)
        passes = [NO_PADDING, *[END_SHORTENED] * first_token_only]
        if precision == "int8":
            precisions.quantize_linears(model, linears)
            precisions.quantize_word_embedding(model)
            passes += INT8
    values = tuple(model.graph.initializers.values())
    outside = None
    if sum(v.const_value.nbytes for v in values if v.const_value is not None) > LARGEST_FILE:
        outside = external_data(target).name
    for value in values:
        if outside is None and isinstance(value.const_value, ir.ExternalTensor):
            # Mapped from disk; loading would hold the weights in memory a second time.
            value.const_value = ir.tensor(value.const_value.numpy(), name=value.name)
    ir.save(model, target, external_data=outside)
    return passes


def export_graph(checkpoint: Checkpoint, directory: Path) -> Path:
    """Export the checkpoint by PyTorch at opset 18 to a plain fp32 graph in ``directory``.

    Its batch and sequence axes are dynamic, its constants are folded, its nodes are named after
    PyTorch's modules, and its large weights are in a file beside it.
    """
    exported, plain = directory / "exported.onnx", directory / "plain.onnx"
    _export_by_pytorch(checkpoint, exported)
    gc.collect()  # circles of the exporter's objects hold the weights once more
    fold_constants(exported, plain)
    exported.unlink()
    external_data(exported).unlink()
    return plain


def fold_constants(exported: Path, plain: Path) -> None:
    """Write a graph with its constants folded, and its large weights in a file beside it."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(plain)
    external = "session.optimized_model_external_initializers_"
    options.add_session_config_entry(external + "file_name", external_data(plain).name)
    options.add_session_config_entry(external + "min_size_in_bytes", str(2**20))
    ort.InferenceSession(exported, options, providers=["CPUExecutionProvider"])


def _export_by_pytorch(checkpoint: Checkpoint, target: Path) -> None:
    """Write the graph of the checkpoint's module, its weights in a file beside it."""
    import onnx_ir as ir
    import torch
    from optimum.utils import DummyTextInputGenerator, NormalizedTextConfig

    config = checkpoint.model.config
    names = ["input_ids", "attention_mask"]
    if config.model_type in TYPED and config.type_vocab_size:
        names.append("token_type_ids")
    example = DummyTextInputGenerator("text-classification", NormalizedTextConfig(config))
    any_size = dict.fromkeys((0, 1), torch.export.Dim.DYNAMIC)
    with _quiet():
        program: Any = torch.onnx.export(
            checkpoint.model,
            kwargs={name: example.generate(name) for name in names},
            input_names=names,
            output_names=["logits"],
            dynamic_shapes=dict.fromkeys(names, any_size),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    model = program.model
    for value in model.graph.inputs:
        value.shape = ir.Shape(["batch_size", "sequence_length"])
    model.graph.outputs[0].shape = ir.Shape(["batch_size", len(checkpoint.labels)])
    _name_after_modules(model, {name for name, _ in checkpoint.model.named_modules()})
    ir.save(model, target, external_data=external_data(target).name)


def _name_after_modules(model: Any, modules: set[str]) -> None:
    """Name each node after its module (``/encoder/layer/0/output/dense/Add_12``).

    The exporter's other notes go: they have lines of the source files and their paths.
    """
    for number, node in enumerate(model.graph):
        # A list of the modules, outermost first, and the operator. What an optimisation of the
        # exporter made has none.
        *_, module, _ = ast.literal_eval(node.metadata_props.get(SCOPES, "['', '']"))
        scope = f"/{module.replace('.', '/')}" if module in modules - {""} else ""
        node.name = f"{scope}/{node.op_type}_{number}"
        for index, output in enumerate(node.outputs):
            output.metadata_props.clear()
            if not output.is_graph_output():
                output.name = f"{node.name}_output_{index}"
        node.metadata_props.clear()
    model.graph.metadata_props.clear()
    model.metadata_props.clear()


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the exporters' tracing and deprecation messages from the user."""
    import transformers

    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    transformers.utils.logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous)


OTHER_OPERATORS = (
    "it is kept as it is: other variants need an attention_mask and ONNX's plain operators in fp32"
)


class SourceGraphs:
    """The graph in ``checkpoint.graph``, and what is made of it in the directory ``work``.

    ``session`` computes the source's own logits. ``kept`` says why the graph is the only variant;
    it is empty if the passes are for it.
    """

    def __init__(self, checkpoint: Checkpoint, file: GraphFile, work: Path) -> None:
        self._file = file
        self._source, self._plain = work / "source.onnx", work / "plain.onnx"
        model = file.whole()
        _save_source(model, self._source)
        self.session = _opened(self._source, file.path)
        _check_shape(self.session, file, len(checkpoint.labels))
        if not file.labels:  # the service reads it in the file
            model = onnx.load_model(self._source, load_external_data=False)
            axes = model.graph.output[0].type.tensor_type.shape
            del axes.dim[:]
            axes.dim.add(dim_param="batch_size")
            axes.dim.add(dim_value=len(checkpoint.labels))
            onnx.save_model(model, self._source)
        self.kept = self._why_kept()

    @property
    def is_masked(self) -> bool:
        return "attention_mask" in [node.name for node in self.session.get_inputs()]

    def write(self, precision: Precision, target: Path) -> list[str]:
        if not self.kept:
            return write_from_graph(self._plain, precision, target)
        _save_source(onnx.load_model(self._source), target)
        return [f"as it is in {self._file.path.name}"]

    def _why_kept(self) -> str:
        if self._file.precision != "fp32":
            return f"it is in {self._file.precision} already, and kept as it is"
        if not self._file.is_plain:
            return OTHER_OPERATORS
        if not find_spec("onnx_ir"):
            return (
                "it is kept as it is: int8 and fp16 need onnx-ir, which the extra `onnx` installs"
            )
        import onnx_ir as ir

        from sentiment_export.graph.rows import compute_on_rows

        try:
            _at_our_opset(self._source, self._plain)
            linears, _ = compute_on_rows(ir.load(self._plain))
        except NotRecognised:
            return OTHER_OPERATORS
        return "" if linears else OTHER_OPERATORS


def _at_our_opset(source: Path, plain: Path) -> None:
    """Write the graph at the opset of the passes, or a newer one, with its constants folded."""
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
    # Some models have one token type alone.
    inputs = [node.name for node in session.get_inputs()]
    feeds: dict[str, Any] = {name: [[int(name != "token_type_ids")] * 2] for name in inputs}
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


def _save_source(model: ModelProto, target: Path) -> None:
    """Write a graph with its weights, in a second file if one cannot hold them."""
    size = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    onnx.save_model(
        model,
        target,
        save_as_external_data=size > LARGEST_FILE,
        location=external_data(target).name,
        size_threshold=LEAST_OUTSIDE,
    )
