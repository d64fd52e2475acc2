"""Makes the mean over all tokens independent of the padding (ModernBERT).

The exporter writes the sum over the tokens as ReduceSum, of products with the mask. ONNX Runtime
adds in an order that depends on the padded length, so the last bits of a text's sum depend on the
other texts of its batch. A product of two equal rows with the mask's values adds one token after
another. ``first_token.py`` says why there are two rows.
"""

import onnx_ir as ir
from onnx_ir.tape import Tape

from model_export.graph.linear import array_of, input_of
from model_export.graph.passes.editor import Editor, hidden_states, scope_of


def sum_tokens_in_order(model: ir.Model) -> None:
    """Replace every masked sum over the tokens by a product with the mask, in place."""
    hidden = hidden_states(model)
    edit = Editor(model.graph, "mean_pooling")
    for node in tuple(model.graph):
        masked = input_of(node, 0).producer() if _sums_tokens(node) else None
        if masked is None or masked.op_type != "Mul":
            continue
        masks = [v for v in masked.inputs if v is not None and hidden.get(v) == 1]
        states = [v for v in masked.inputs if v is not None and hidden.get(v, 1) != 1]
        if len(masks) == len(states) == 1:
            tape = Tape()
            mask = tape.op("Transpose", [masks[0]], {"perm": [0, 2, 1]})
            two_rows = tape.op("Concat", [mask, mask], {"axis": 1})
            sums = tape.op("MatMul", [two_rows, states[0]])
            first = edit.integers("first", 0)
            total = tape.op("Gather", [sums, first], {"axis": 1})
            edit.insert_before(node, tape, f"{scope_of(node.outputs[0])}/mean_pooling")
            edit.replace(node, total)


def _sums_tokens(node: ir.Node) -> bool:
    """Whether the node sums [batch, sequence, features] to [batch, features]."""
    if (
        node.op_type != "ReduceSum"
        or "keepdims" not in node.attributes
        or node.attributes["keepdims"].as_int()
    ):
        return False
    axes = input_of(node, 1)
    return axes.const_value is not None and array_of(axes).tolist() == [1]
