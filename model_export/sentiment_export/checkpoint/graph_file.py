"""Reads an ONNX file that anyone may have made: what its graph takes and gives, and its weights.

Weights may lie in other files beside it. They are read here, and not by ``onnx`` or ONNX Runtime:
a hub's cache has links in the place of files, and a graph may name any file of the machine.

``write_checkpoint`` writes a bundle as the checkpoint that it would be exported from, with weights
read back from a graph. Of fp32, they are the checkpoint's own. Of int8, they are what the int8
values stand for, so an export of them has the same int8 values again.
"""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)
from onnx.checker import ValidationError
from onnx.defs import onnx_opset_version
from onnx.inliner import inline_local_functions
from sentiment_service.engine.model.bundle import SIDE_FILES, Bundle, Precision
from sentiment_service.errors import UserError, first_line
from sentiment_service.settings.settings import CheckpointOptions

from sentiment_export.checkpoint.architectures import NotRecognised
from sentiment_export.checkpoint.config import read_config
from sentiment_export.checkpoint.family import Encoder
from sentiment_export.checkpoint.layout import cure

PRODUCER = "sentiment-export"  # what our own graphs name as their maker
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
LOGITS = "logits"
# What models give that classify nothing.
FEATURES = ("last_hidden_state", "pooler_output", "sentence_embedding", "token_embeddings")
# The operators of graphs that are quantized already, by parts of their names; and those whose
# weights have four bits, for which a bundle has no variant, unless an attribute says eight.
QUANTIZED = ("QuantizeLinear", "QLinear", "MatMulInteger", "QAttention", "QGemm", "QEmbed")
IN_BLOCKS = ("MatMulNBits", "MatMulBnb4", "GatherBlockQuantized")


@dataclass(frozen=True, slots=True)
class GraphFile:
    """A classifier's graph, without the weights that lie in other files.

    ``precision`` is what the graph computes in. ``labels`` is the number of logits, and ``rows``
    that of tokens with an embedding, where the graph says it.
    """

    path: Path
    model: ModelProto
    logits: str
    precision: Precision
    labels: int | None
    rows: int | None

    @classmethod
    def read(cls, path: Path) -> "GraphFile":
        model = read_model(path)
        if model.producer_name == PRODUCER:
            raise UserError(
                f"{path} is the graph of a bundle, which lacks its manifest.json: copy the bundle "
                "again, or give the checkpoint that it was made from"
            )
        for used in model.opset_import:
            if not used.domain and used.version > onnx_opset_version():
                raise UserError(
                    f"{path} is of opset {used.version}; the newest that the installed ONNX reads "
                    f"is {onnx_opset_version()}: upgrade onnx and onnxruntime, or export it again"
                )
        constants = {tensor.name for tensor in model.graph.initializer}
        inputs = [one for one in model.graph.input if one.name not in constants]
        _check_inputs(path, inputs)
        output = _logits(path, model.graph)
        for name in data_files(model, path):
            _data_file(path, name)
        axes = output.type.tensor_type.shape.dim
        return cls(
            path=path,
            model=model,
            logits=output.name,
            precision=_precision(path, model),
            labels=axes[-1].dim_value or None if axes else None,
            rows=_rows(model.graph),
        )

    @property
    def is_plain(self) -> bool:
        """Whether all is float32 and in ONNX's own operators, which our passes know."""
        return self.precision == "fp32" and not any(node.domain for node in _nodes(self.model))

    @property
    def weights(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """The shape and type of each weight; integers of 64 bits are shapes and places."""
        return {
            tensor.name: (
                tuple(tensor.dims),
                helper.tensor_dtype_to_np_dtype(tensor.data_type).name,
            )
            for tensor in self.model.graph.initializer
            if tensor.dims and tensor.data_type != TensorProto.INT64
        }

    def whole(self) -> ModelProto:
        """The model with all of its weights, and the logits as the only output."""
        for tensor in _tensors(self.model):
            if tensor.external_data:
                tensor.raw_data = _external(tensor, self.path)
                tensor.data_location = tensor.DEFAULT
                tensor.ClearField("external_data")
        output = next(one for one in self.model.graph.output if one.name == self.logits)
        kept = type(output).FromString(output.SerializeToString())
        del self.model.graph.output[:]
        self.model.graph.output.append(kept)
        return self.model


def read_model(path: Path) -> ModelProto:
    """The model in an ONNX file, without the weights that lie in other files."""
    try:
        model = onnx.load_model(path, load_external_data=False)
        if model.functions:  # for the passes; those of another opset stay
            model = inline_local_functions(model)
    except (OSError, DecodeError, ValueError, ValidationError, RuntimeError) as error:
        raise UserError(
            f"cannot read {path}: it is not an ONNX model, or was cut ({first_line(error)})"
            f"{cure(path)}"
        ) from error
    for named in (*model.opset_import, *_nodes(model)):
        if named.domain == "ai.onnx":  # another name of ONNX's own
            named.domain = ""
    if not model.graph.node or not model.graph.output:
        raise UserError(f"cannot read {path}: it is not an ONNX model, or was cut{cure(path)}")
    return model


def data_files(model: ModelProto, graph: Path) -> list[str]:
    """The names of the files beside the file of a model in which weights of it lie."""
    return sorted({_location(tensor, graph) for tensor in _tensors(model)} - {""})


def _location(tensor: TensorProto, graph: Path) -> str:
    said = {entry.key: entry.value for entry in tensor.external_data}
    if not said:
        return ""
    place = PurePosixPath(said.get("location", ""))
    if place.is_absolute() or not place.parts or ".." in place.parts or "\\" in str(place):
        raise UserError(
            f"{graph} has the weight {tensor.name} in {str(place)!r}, which is not a file in its "
            "own directory"
        )
    return str(place)


def _data_file(graph: Path, location: str) -> Path:
    file = graph.parent / location
    if not file.is_file():
        raise UserError(f"{graph} has weights in {location}, which is missing: put it beside it")
    return file


def _external(tensor: TensorProto, graph: Path) -> bytes:
    """The bytes of a weight that lies in another file."""
    location = _location(tensor, graph)
    file = _data_file(graph, location)
    said = {entry.key: entry.value for entry in tensor.external_data}
    size = file.stat().st_size
    try:
        offset = int(said.get("offset") or 0)
        length = int(said.get("length") or bytes_of(tensor) or size - offset)
    except (ValueError, TypeError, KeyError):
        offset = length = -1
    if offset < 0 or length < 0 or length != (bytes_of(tensor) or length):
        raise UserError(
            f"{graph} is damaged: the place of {tensor.name} in {location} does not fit its shape"
        )
    if offset + length > size:
        raise UserError(
            f"{file} was cut: it has {size} bytes, and {tensor.name} ends at {offset + length}"
            f"{cure(file)}"
        )
    with file.open("rb") as opened:
        opened.seek(offset)
        return opened.read(length)


def bytes_of(tensor: TensorProto) -> int:
    """The size of a weight by its shape; 0 where a value is no whole number of bytes."""
    if tensor.data_type in (TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1):
        return 0
    size: int = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return int(prod(tensor.dims)) * size


def _check_inputs(path: Path, inputs: list[ValueInfoProto]) -> None:
    named = {one.name for one in inputs}
    if other := sorted(named - {*INPUTS}):
        raise UserError(
            f"{path} takes {', '.join(other[:3])}; the inputs of a graph that is served can be "
            f"{', '.join(INPUTS)}"
        )
    if INPUTS[0] not in named:
        raise UserError(f"{path} does not take {INPUTS[0]}, so it is not a classifier of texts")
    for one in inputs:
        kind = one.type.tensor_type
        if kind.elem_type != TensorProto.INT64:
            name = TensorProto.DataType.Name(kind.elem_type).lower()
            raise UserError(f"{path} takes {one.name} as {name}; it must be int64: export it again")
        axes = [axis.dim_value for axis in kind.shape.dim]
        if len(axes) != 2 or any(axes):
            shown = ", ".join(str(size or "any") for size in axes)
            raise UserError(
                f"{path} takes {one.name} of the fixed shape [{shown}]; texts have any number and "
                "length: export it again with dynamic axes for batch and sequence"
            )


def _logits(path: Path, graph: GraphProto) -> ValueInfoProto:
    names = [one.name for one in graph.output]
    output: ValueInfoProto = next(
        (one for one in graph.output if one.name == LOGITS), graph.output[0]
    )
    rank = len(output.type.tensor_type.shape.dim)
    if output.name != LOGITS and (len(names) > 1 or output.name in FEATURES):
        raise UserError(
            f"{path} gives {', '.join(names[:4])} and no {LOGITS}: give the graph of a sequence "
            f"classifier; of several outputs, one must be named {LOGITS}"
        )
    if rank not in (0, 2):  # 0: the file does not say it
        raise UserError(
            f"{path} gives {output.name} with {rank} axes, where a sequence classifier's have two: "
            "[batch, labels]"
        )
    return output


def _precision(path: Path, model: ModelProto) -> Precision:
    nodes = _nodes(model)
    for node in nodes:
        bits = next((one.i for one in node.attribute if one.name == "bits"), 4)
        if node.op_type in IN_BLOCKS and bits != 8:
            raise UserError(
                f"{path} has weights of {bits} bits ({node.op_type}), for which there is no "
                "variant: give an fp32, fp16 or int8 graph"
            )
    if any(part in node.op_type for node in nodes for part in (*QUANTIZED, *IN_BLOCKS)):
        return "int8"
    matrices = [tensor for tensor in _tensors(model) if len(tensor.dims) > 1]
    half = any(tensor.data_type == TensorProto.FLOAT16 for tensor in matrices)
    return "fp16" if half else "fp32"


def _rows(graph: GraphProto) -> int | None:
    """How many tokens have an embedding: the rows of the table that the token ids index."""
    shapes = {tensor.name: tensor.dims for tensor in graph.initializer}
    producers = {output: node for node in graph.node for output in node.output}
    for node in graph.node:
        if node.op_type == "Gather" and node.input[1] == INPUTS[0]:
            table = node.input[0]
            if table not in shapes and table in producers and producers[table].input:
                table = producers[table].input[0]  # what DequantizeLinear or a Cast reads
            return shapes[table][0] if len(shapes.get(table, ())) == 2 else None
    return None


def _graphs(model: ModelProto) -> Iterator[GraphProto]:
    """The graph and those within it: the branches of an If, the bodies of loops."""
    waiting = [model.graph]
    while waiting:
        graph = waiting.pop()
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                waiting += [*attribute.graphs, *[attribute.g] * attribute.HasField("g")]


def _nodes(model: ModelProto) -> list[NodeProto]:
    return [node for one in (*_graphs(model), *model.functions) for node in one.node]


def _tensors(model: ModelProto) -> Iterator[TensorProto]:
    for graph in _graphs(model):
        yield from graph.initializer
        for node in graph.node:
            for attribute in node.attribute:
                yield from attribute.tensors
                if attribute.HasField("t"):
                    yield attribute.t


def options_of(bundle: Bundle) -> CheckpointOptions:
    manifest = bundle.manifest
    return CheckpointOptions(
        labels=tuple(manifest.labels),
        preprocessing=manifest.preprocessing,
        text_pairs=manifest.text_pairs,
        max_tokens=manifest.max_tokens,
        languages=tuple(manifest.languages or filter(None, [manifest.language])),
    )


def write_checkpoint(bundle: Bundle, directory: Path) -> None:
    """Write a checkpoint with the weights of the bundle's fp32 graph, or else of its int8 one."""
    from safetensors.numpy import save_file  # of the extra torch

    config = read_config(bundle.path, str(bundle.path))
    source, held_variants = bundle.manifest.source, bundle.manifest.variants
    if not {"fp32", "int8"} & {*held_variants}:
        raise UserError(
            f"{bundle.path} holds only {', '.join(held_variants)}, from which weights are not read "
            f"back: give the checkpoint, {source.repo_id or source.path}"
        )
    precision: Precision = "fp32" if "fp32" in held_variants else "int8"
    try:
        encoder = Encoder.of(config, len(bundle.manifest.labels))
        graph = onnx.load(bundle.variant_path(precision)).graph
        held = _renamed({t.name: numpy_helper.to_array(t) for t in graph.initializer}, encoder)
        weights = {
            name: np.ascontiguousarray(_weight(name, shape, held, encoder), np.float32)
            for name, shape in encoder.weights.items()
        }
    except (NotRecognised, KeyError, ValueError) as error:
        raise UserError(
            f"the weights of {bundle.path} cannot be read back from its {precision} graph "
            f"({error}): give the checkpoint, {source.repo_id or source.path}"
        ) from error
    for name in SIDE_FILES:
        shutil.copyfile(bundle.path / name, directory / name)
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(weights, directory / "model.safetensors")


def _renamed(held: Mapping[str, Any], encoder: Encoder) -> dict[str, Any]:
    """The constants under the names of today; those of 0.2.0 had some others for int8."""
    words = f"{encoder.family.prefix}.embeddings.word_embeddings.weight"
    found = {}
    for name, values in held.items():
        plain = name.removeprefix("int8.")
        plain = re.sub("^word_embedding(?=$|_)", f"{words}_int8", plain)
        plain = plain.replace("weight_int8_scale", "weight_scale")
        if layer := re.fullmatch(r"layer\.(\d+)\.attention_output\.bias", plain):
            place = encoder.layers[int(layer[1])]
            plain = f"{place}.{encoder.family.layer.attention_output}.bias_folded"
        found[plain] = values
    return found


def _weight(
    name: str, shape: tuple[int, ...], held: Mapping[str, Any], encoder: Encoder
) -> np.ndarray:
    """A weight of the checkpoint, undoing what ``graph.classifier`` did to it."""
    layer, (module, _, kind) = encoder.family.layer, name.rpartition(".")
    if name in held:
        values = held[name]
    elif f"{name}.T" in held:
        values = held[f"{name}.T"].T
    elif f"{name}_int8" in held:
        values = held[f"{name}_int8"] * held[f"{module}.weight_scale"]
        values = values if module.endswith("word_embeddings") else values.T
    elif f"{name}.0" in held:  # token types, of which only the first is read
        values = np.broadcast_to(held[f"{name}.0"], shape)
    elif f"{name}_folded" in held:
        values = held[f"{name}_folded"]
    elif kind == "bias" and module.endswith((layer.key, layer.value)):
        # Softmax ignores the key's. The value's is in the folded one, which must be there.
        place = next(place for place in encoder.layers if module.startswith(f"{place}."))
        values = np.zeros_like(held[f"{place}.{layer.attention_output}.bias_folded"])
    else:
        raise KeyError(f"it has no {name}")
    if values.shape != shape:
        raise ValueError(f"{name} is {values.shape}, not {shape}")
    return np.asarray(values)
