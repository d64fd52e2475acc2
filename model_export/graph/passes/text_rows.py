"""Where the tokens of a padded batch are among the rows that are left without padding."""

from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.tape import Tape

from model_export.graph.linear import NotRecognised
from model_export.graph.passes.editor import Editor


@dataclass(frozen=True, slots=True)
class TextRows:
    """Row numbers that map real tokens to padded positions and back; computed once per batch."""

    sequence: ir.Value  # [1], the padded length
    text: ir.Value  # [tokens], each token's text
    position: ir.Value  # [tokens], each token's position in its text
    tokens: ir.Value  # [tokens], rows of [batch * sequence]
    token: ir.Value  # [batch, sequence], rows of [tokens]


def text_rows(graph: ir.Graph, edit: Editor, tape: Tape) -> TextRows:
    """Record the nodes that compute the row numbers from the attention mask [batch, sequence].

    Raises:
        NotRecognised: the graph has no attention mask.
    """
    mask = next((value for value in graph.inputs if value.name == "attention_mask"), None)
    if mask is None:
        raise NotRecognised("the graph has no attention_mask")
    sequence = tape.op("Shape", [mask], {"start": 1, "end": 2})
    real = tape.op("NonZero", [mask])
    text = tape.op("Gather", [real, edit.integers("text", 0)], {"axis": 0})
    position = tape.op("Gather", [real, edit.integers("position", 1)], {"axis": 0})
    tokens = tape.op("Add", [tape.op("Mul", [text, sequence]), position])

    # Padding is masked, so its values only have to be finite. It gets those of the token before
    # it, or of the last row.
    flat = tape.op("Reshape", [mask, edit.integers("vector", [-1])])
    count = tape.op("CumSum", [flat, edit.integers("rows", 0)])
    token = tape.op("Sub", [count, edit.integers("one", 1)])
    token = tape.op("Reshape", [token, tape.op("Shape", [mask])])
    return TextRows(sequence, text, position, tokens, token)
