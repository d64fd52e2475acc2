"""Stores the word embedding table in int8, with one scale per row.

The table takes most of the bytes of a small or multilingual model. A row is converted back to
floats when it is looked up, which costs almost nothing compared with the encoder.
"""

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnx_ir.tape import Tape

from app.errors import UserError
from model_export.graph.encoder_layers import array_of
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

    tape = Tape()
    table = tape.initializer(ir.tensor(weight, name="int8.word_embedding"))
    scales = tape.initializer(ir.tensor(scale[:, np.newaxis], name="int8.word_embedding_scale"))
    for initializer in tape.initializers:
        model.graph.register_initializer(initializer)
    ids = lookup.inputs[1]
    values = tape.op("Cast", [tape.op("Gather", [table, ids])], {"to": ir.DataType.FLOAT})
    rows = tape.op("Mul", [values, tape.op("Gather", [scales, ids])])
    scope = str(lookup.name).rpartition("/")[0]
    for number, node in enumerate(tape.nodes):
        node.name = f"{scope}/{node.op_type}_{number}"
    model.graph.insert_before(lookup, tape.nodes)
    for use in tuple(lookup.outputs[0].uses()):
        use.node.replace_input_with(use.idx, rows)
    model.graph.remove(lookup, safe=True)
    RemoveUnusedNodesPass()(model)


def _table(node: ir.Node) -> np.ndarray | None:
    """The float matrix from which the node reads rows; None if it is no such Gather."""
    source = node.inputs[0] if node.op_type == "Gather" else None
    if source is None or source.const_value is None:
        return None
    array = array_of(source)
    return array if array.dtype == np.float32 and array.ndim == 2 else None
