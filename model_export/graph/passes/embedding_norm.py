"""Replaces the embeddings, their sum and its layer norm by one operator.

    EmbedLayerNormalization(input_ids [batch, sequence], segment_ids [batch, sequence],
                            word_embedding, position_embedding, segment_embedding [rows, hidden],
                            gamma, beta [hidden], -, position_ids [batch or 1, sequence])
        → [batch, sequence, hidden]

The ids are int32. The positions are those that the graph computes: 0, 1, 2, ... for BERT; counted
from the ids for RoBERTa. Segments are left out where there is one only (RoBERTa), and its embedding
is added to the positions. On CUDA, the fp16 operator computes mean and variance in fp32 since ONNX
Runtime's pull request 28682 (the kernels of onnxruntime-gpu 1.31.1 have its signature). Later
versions check the ids on the GPU and wait once per batch for the answer (``embed_layer_norm.cc``).
"""

from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnx_ir.tape import Tape

from model_export.graph.linear import (
    NotRecognised,
    array_of,
    consumer,
    consumers,
    input_of,
    producer,
)
from model_export.graph.passes.contrib import DOMAIN, contrib
from model_export.graph.passes.editor import Editor, scope_of
from model_export.graph.passes.skip_layer_norm import DEFAULT_EPSILON


@dataclass(frozen=True, slots=True)
class _Embedding:
    table: ir.Value  # [rows, hidden]
    ids: ir.Value  # [batch or 1, sequence]


def fuse_embeddings(model: ir.Model) -> None:
    """Fuse words, positions, segments and layer norm, in place.

    Raises:
        NotRecognised: the graph does not begin with these.
    """
    graph = model.graph
    words, others, norm = _sum_of_embeddings(graph)
    if len(others) not in (1, 2):
        raise NotRecognised("the embeddings are not those of words, positions and segments")
    *segments, positions = sorted(others, key=_rows)  # there are more positions than segments
    edit, tape = Editor(graph, "embeddings"), Tape()
    position_table, segment_ids, segment_table = positions.table, None, None
    if segments and _rows(segments[0]) == 1:
        both = array_of(position_table) + array_of(segments[0].table)
        position_table = edit.constant("positions_and_segment", both)
    elif segments:
        segment_ids, segment_table = _int32(tape, segments[0].ids), segments[0].table
    gamma, beta = norm.inputs[1:3]
    tables = [words.table, position_table, segment_table]
    position_ids = _int32(tape, positions.ids)
    fused = contrib(
        tape,
        "EmbedLayerNormalization",
        [_int32(tape, words.ids), segment_ids, *tables, gamma, beta, None, position_ids],
        outputs=2,  # type inference asks for the second one, lengths counted from a mask
        epsilon=norm.attributes.get_float("epsilon", DEFAULT_EPSILON),
    )
    model.opset_imports[DOMAIN] = 1
    edit.insert_before(norm, tape, scope_of(norm.outputs[0]))
    edit.replace(norm, fused)
    _take_shape_from_ids(graph, words)
    RemoveUnusedNodesPass()(model)


def _sum_of_embeddings(graph: ir.Graph) -> tuple[_Embedding, list[_Embedding], ir.Node]:
    """The embedding of words, those that are added to it, and the layer norm of the sum."""
    ids = next((i for i in graph.inputs if i.name == "input_ids"), None)
    if ids is None:
        raise NotRecognised("the graph has no input_ids")
    lookup = consumer(ids, "Gather")
    words, total, others = _embedding(lookup), lookup.outputs[0], []
    while (node := consumer(total, "Add", "LayerNormalization")).op_type == "Add":
        other = next(v for v in node.inputs if v is not total)
        others.append(_embedding(producer(other, "Gather")))
        total = node.outputs[0]
    if len(node.inputs) != 3 or len(consumers(total)) != 1:
        raise NotRecognised("the sum of the embeddings does not feed one layer norm with a bias")
    return words, others, node


def _embedding(lookup: ir.Node) -> _Embedding:
    table = input_of(lookup, 0)
    if lookup.attributes.get_int("axis", 0) != 0 or array_of(table).ndim != 2:
        raise NotRecognised(f"{lookup.name} takes no rows of a table")
    return _Embedding(table, input_of(lookup, 1))


def _rows(embedding: _Embedding) -> int:
    return int(array_of(embedding.table).shape[0])


def _int32(tape: Tape, ids: ir.Value) -> ir.Value:
    return tape.op("Cast", [ids], {"to": ir.DataType.INT32})


def _take_shape_from_ids(graph: ir.Graph, words: _Embedding) -> None:
    """Free the lookup of words from readers that only want the size of the batch (DistilBERT)."""
    for shape in [node for node in graph if node.op_type == "Shape"]:
        lookup = input_of(shape, 0).producer()
        if lookup is None or lookup.op_type != "Gather" or lookup.inputs[0] is not words.table:
            continue
        if all(_takes_batch_or_length(reader) for reader in consumers(shape.outputs[0])):
            shape.replace_input_with(0, words.ids)


def _takes_batch_or_length(reader: ir.Node) -> bool:
    """Whether it takes only the first or the second size of a shape."""
    return reader.op_type == "Gather" and array_of(reader.inputs[1]).tolist() in (0, 1, [0], [1])
