"""Stores the word embedding table in int8, with one scale per row.

The table takes most of the bytes of a small or multilingual model. A row is converted back to
floats when it is looked up, which costs almost nothing compared with the encoder.
"""

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnx_ir.tape import Tape

from app.errors import UserError
from model_export.graph.linear import array_of
from model_export.graph.passes.editor import Editor
from model_export.graph.passes.int8 import quantize_matrix


def quantize_word_embedding(model: ir.Model) -> None:
    """Replace the largest embedding table [vocabulary, hidden] by int8 rows, in place.

    Raises:
        UserError: the graph has no embedding table.
    """
    lookups = [(node, array) for node in model.graph if (array := _table(node)) is not None]
    if not lookups:
        raise UserError("unsupported architecture: the graph has no embedding table")
    lookup, largest = max(lookups, key=lambda pair: pair[1].size)
    weight, scale = quantize_matrix(largest, axis=1)

    edit, tape = Editor(model.graph, "int8"), Tape()
    table = edit.constant("word_embedding", weight)
    scales = edit.constant("word_embedding_scale", scale[:, np.newaxis])
    ids = lookup.inputs[1]
    values = tape.op("Cast", [tape.op("Gather", [table, ids])], {"to": ir.DataType.FLOAT})
    rows = tape.op("Mul", [values, tape.op("Gather", [scales, ids])])
    edit.insert_before(lookup, tape, str(lookup.name).rpartition("/")[0])
    edit.replace(lookup, rows)
    RemoveUnusedNodesPass()(model)


def _table(node: ir.Node) -> np.ndarray | None:
    """The float matrix from which the node reads rows; None if it is no such Gather."""
    source = node.inputs[0] if node.op_type == "Gather" else None
    if source is None or source.const_value is None:
        return None
    array = array_of(source)
    return array if array.dtype == np.float32 and array.ndim == 2 else None
