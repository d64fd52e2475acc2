"""Finds the encoder layers of a BERT-like classifier in its ONNX graph.

The passes use these layers instead of node names. So one pass works for BERT, DistilBERT,
RoBERTa and XLM-RoBERTa, and for every other architecture with post-norm layers of this form.
"""

from dataclasses import dataclass

import onnx_ir as ir

from sentiment_export.graph.linear import (
    Linear,
    NotRecognised,
    array_of,
    consumer,
    input_of,
    linear_to,
    producer,
)


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    """One post-norm transformer layer.

    hidden → query, key, value → scores → softmax → context → attention_output
    → + hidden → attention_norm → intermediate → activation → output → + → output_norm
    """

    query: Linear
    key: Linear
    value: Linear
    attention_output: Linear
    attention_residual: ir.Node
    attention_norm: ir.Node
    intermediate: Linear
    output: Linear
    output_norm: ir.Node
    head_reshapes: tuple[ir.Node, ir.Node, ir.Node]
    context_reshape: ir.Node

    @property
    def hidden(self) -> ir.Value:
        """The layer's input: [batch, sequence, hidden], or [tokens, hidden]."""
        return self.key.input

    @property
    def residual(self) -> ir.Value:
        """The value added to the attention output: the hidden state, or its first token."""
        operands = self.attention_residual.inputs
        return next(v for v in operands if v is not None and v is not self.attention_output.output)

    @property
    def heads(self) -> int:
        """Number of attention heads; ``drop_padding`` makes it unreadable."""
        batch_sequence_heads_width = producer(self.head_reshapes[0].inputs[1], "Concat")
        return int(array_of(input_of(batch_sequence_heads_width, 2)).item())

    @property
    def hidden_size(self) -> int:
        """Width of the hidden state."""
        return int(array_of(self.key.weight).shape[0])


def find_layers(graph: ir.Graph) -> list[EncoderLayer]:
    """The encoder layers, first to last.

    Raises:
        NotRecognised: the graph has no layers, or a layer does not have the expected form.
    """
    layers = [_layer(node) for node in graph if node.op_type == "Softmax"]
    if not layers:
        raise NotRecognised("the graph has no attention layers")
    return layers


def _layer(softmax: ir.Node) -> EncoderLayer:
    masked = producer(input_of(softmax, 0), "Add", "Where")  # DistilBERT masks with Where
    scores = _above(input_of(masked, 2 if masked.op_type == "Where" else 0), "MatMul")
    query_reshape = _above(input_of(scores, 0), "Reshape")
    key_reshape = _above(input_of(scores, 1), "Reshape")
    context = consumer(softmax.outputs[0], "MatMul")
    value_reshape = _above(input_of(context, 1), "Reshape")
    context_reshape = _joined_heads(context.outputs[0])
    attention_output = _linear_from(context_reshape.outputs[0])
    attention_residual = consumer(attention_output.output, "Add")
    attention_norm = consumer(attention_residual.outputs[0], "LayerNormalization")
    intermediate = _linear_from(attention_norm.outputs[0])
    attended = attention_norm.outputs[0]
    output_residual = consumer(attended, "Add")
    other = next(v for v in output_residual.inputs if v is not attended)
    return EncoderLayer(
        query=linear_to(input_of(query_reshape, 0)),
        key=linear_to(input_of(key_reshape, 0)),
        value=linear_to(input_of(value_reshape, 0)),
        attention_output=attention_output,
        attention_residual=attention_residual,
        attention_norm=attention_norm,
        intermediate=intermediate,
        output=linear_to(other),
        output_norm=consumer(output_residual.outputs[0], "LayerNormalization"),
        head_reshapes=(query_reshape, key_reshape, value_reshape),
        context_reshape=context_reshape,
    )


def _linear_from(source: ir.Value) -> Linear:
    matmul = consumer(source, "MatMul")
    return linear_to(consumer(matmul.outputs[0], "Add").outputs[0])


def _above(value: ir.Value, wanted: str) -> ir.Node:
    """The nearest ``wanted`` node above, past nodes that reorder the heads or scale."""
    moves = ("Transpose", "Gather", "Div", "Mul")
    node = producer(value, wanted, *moves)
    while node.op_type != wanted:
        node = producer(input_of(node, 0), wanted, *moves)
    return node


def _joined_heads(context: ir.Value) -> ir.Node:
    """The Reshape that joins the heads, below a Transpose, a Gather or both."""
    node = consumer(context, "Transpose", "Reshape")
    if node.op_type == "Reshape":  # drop_padding selects the heads of the real tokens
        return consumer(consumer(node.outputs[0], "Gather").outputs[0], "Reshape")
    node = consumer(node.outputs[0], "Reshape", "Gather")  # the last layer selects its first token
    return node if node.op_type == "Reshape" else consumer(node.outputs[0], "Reshape")
