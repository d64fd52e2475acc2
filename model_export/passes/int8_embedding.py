"""The word embedding table in int8, one scale per row.

The table is most of a small or multilingual model's bytes. A row is turned back into
floats when it is looked up, which costs nothing beside the encoder.
"""

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnx_ir.tape import Tape

from app.errors import UserError
from model_export.passes.int8 import quantize_matrix


def quantize_word_embedding(model: ir.Model) -> None:
    """Replace the largest looked-up table [vocabulary, hidden] by int8 rows, in place.

    Raises:
        UserError: the graph looks nothing up.
    """
    lookups = [node for node in model.graph if node.op_type == "Gather" and _table(node)]
    if not lookups:
        raise UserError("unsupported architecture: the graph has no embedding table")
    lookup = max(lookups, key=lambda node: _table(node).size)
    weight, scale = quantize_matrix(_table(lookup).numpy(), axis=1)

    tape = Tape()
    table = tape.initializer(ir.tensor(weight, name="int8.word_embedding"))
    scales = tape.initializer(ir.tensor(scale[:, np.newaxis], name="int8.word_embedding_scale"))
    for initializer in tape.initializers:
        model.graph.register_initializer(initializer)
    ids = lookup.inputs[1]
    rows = tape.op("Cast", [tape.op("Gather", [table, ids])], {"to": ir.DataType.FLOAT})
    rows = tape.op("Mul", [rows, tape.op("Gather", [scales, ids])])
    model.graph.insert_before(lookup, tape.nodes)
    for use in tuple(lookup.outputs[0].uses()):
        use.node.replace_input_with(use.idx, rows)
    RemoveUnusedNodesPass()(model)


def _table(lookup: ir.Node) -> ir.TensorProtocol | None:
    """The float matrix that a Gather reads rows of, if it is one."""
    table = lookup.inputs[0].const_value if lookup.inputs[0] is not None else None
    is_table = table is not None and table.dtype == ir.DataType.FLOAT and len(table.shape) == 2
    return table if is_table else None
