"""Reduces the last layer to the first token.

The classifier reads only the hidden state of ``<s>`` (``[CLS]``). So the last layer need not
compute queries, attention output and feed-forward of the other tokens. The result is exact:
the same operations compute the first token's values from the same numbers.

The queries of two tokens are kept instead of one. ONNX Runtime multiplies a single row with
another kernel, and the last bit of its sums changes with the padding of the batch.
"""

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnx_ir.tape import Tape

from model_export.graph.encoder_layers import find_layers
from model_export.graph.linear import NotRecognised
from model_export.graph.passes.editor import Editor

QUERIES_KEPT = 2


def keep_first_token(model: ir.Model) -> None:
    """Cut the last layer's queries to two tokens and the rest of the layer to one, in place.

    Raises:
        NotRecognised: the classifier reads more than the first token.
    """
    last = find_layers(model.graph)[-1]
    for use in last.output_norm.outputs[0].uses():
        if not selects_first_token(use.node):
            raise NotRecognised(
                f"{use.node.op_type} {use.node.name} reads more of the last layer than its first "
                "token"
            )
    edit, tape = Editor(model.graph, "first_token"), Tape()
    first = edit.integers("first", [0])
    kept = edit.integers("kept", list(range(QUERIES_KEPT)))
    queries = tape.op("Gather", [last.hidden, kept], {"axis": 1})
    residual = tape.op("Gather", [last.hidden, first], {"axis": 1})
    model.graph.insert_before(last.query.matmul, tape.nodes)
    last.query.matmul.replace_input_with(0, queries)
    add = last.attention_residual
    add.replace_input_with(tuple(add.inputs).index(last.hidden), residual)

    shape = edit.integers("shape", [0, 1, last.hidden_size])
    after = Tape()
    by_head = last.context_reshape.inputs[0]
    last.context_reshape.replace_input_with(0, after.op("Gather", [by_head, first], {"axis": 1}))
    last.context_reshape.replace_input_with(1, shape)
    model.graph.insert_before(last.context_reshape, after.nodes)
    RemoveUnusedNodesPass()(model)


def selects_first_token(node: ir.Node) -> bool:
    """Whether the node takes the first token of [batch, sequence, hidden]."""
    if node.op_type != "Gather" or node.attributes.get_int("axis", 0) != 1:
        return False
    index = node.inputs[1].const_value if node.inputs[1] is not None else None
    return index is not None and not index.numpy().any()
