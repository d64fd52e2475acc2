"""Finds the encoder layers of a BERT-like classifier in its ONNX graph.

The passes use these layers instead of node names. So one pass works for BERT, DistilBERT,
RoBERTa and XLM-RoBERTa, and for every other architecture with post-norm layers of this form.
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from app.errors import UserError


@dataclass(frozen=True, slots=True)
class Linear:
    """``x @ weight + bias``; weight [inputs, outputs], bias [outputs]."""

    matmul: ir.Node
    add: ir.Node
    weight: ir.Value
    bias: ir.Value

    @property
    def input(self) -> ir.Value:
        """``x``, [..., inputs]."""
        return _input(self.matmul, 0)

    @property
    def output(self) -> ir.Value:
        """The result, [..., outputs]."""
        return self.add.outputs[0]


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
    def context(self) -> ir.Value:
        """The result of attention before the output projection, [..., hidden]."""
        return self.attention_output.input

    @property
    def activation(self) -> str:
        """``Gelu`` for the exact (erf) form, else the type of the activation's first operator."""
        first = _consumers(self.intermediate.output)
        following = [node for op in first for node in _consumers(op.outputs[0])]
        return "Gelu" if any(n.op_type == "Erf" for n in following) else first[0].op_type

    @property
    def heads(self) -> int:
        """Number of attention heads; ``drop_padding`` makes it unreadable."""
        batch_sequence_heads_width = _producer(self.head_reshapes[0].inputs[1], "Concat")
        return int(array_of(_input(batch_sequence_heads_width, 2)).item())

    @property
    def hidden_size(self) -> int:
        """Width of the hidden state."""
        return int(array_of(self.key.weight).shape[0])


def find_layers(graph: ir.Graph) -> list[EncoderLayer]:
    """The encoder layers, first to last.

    Raises:
        UserError: the graph has no layers, or a layer does not have the expected form.
    """
    layers = [_layer(node) for node in graph if node.op_type == "Softmax"]
    if not layers:
        raise UserError("unsupported architecture: the graph has no attention layers")
    return layers


def _layer(softmax: ir.Node) -> EncoderLayer:
    masked = _producer(_input(softmax, 0), "Add", "Where")  # DistilBERT masks with Where
    scores = _above(_input(masked, 2 if masked.op_type == "Where" else 0), "MatMul")
    query_reshape = _above(_input(scores, 0), "Reshape")
    key_reshape = _above(_input(scores, 1), "Reshape")
    context = _consumer(softmax.outputs[0], "MatMul")
    value_reshape = _above(_input(context, 1), "Reshape")
    context_reshape = _joined_heads(context.outputs[0])
    attention_output = _linear_from(context_reshape.outputs[0])
    attention_residual = _consumer(attention_output.output, "Add")
    attention_norm = _consumer(attention_residual.outputs[0], "LayerNormalization")
    intermediate = _linear_from(attention_norm.outputs[0])
    output_residual = next(
        node
        for node in _consumers(attention_norm.outputs[0])
        if node.op_type == "Add" and node is not intermediate.add
    )
    other = next(v for v in output_residual.inputs if v is not attention_norm.outputs[0])
    return EncoderLayer(
        query=_linear_to(_input(query_reshape, 0)),
        key=_linear_to(_input(key_reshape, 0)),
        value=_linear_to(_input(value_reshape, 0)),
        attention_output=attention_output,
        attention_residual=attention_residual,
        attention_norm=attention_norm,
        intermediate=intermediate,
        output=_linear_to(other),
        output_norm=_consumer(output_residual.outputs[0], "LayerNormalization"),
        head_reshapes=(query_reshape, key_reshape, value_reshape),
        context_reshape=context_reshape,
    )


def array_of(value: ir.Value) -> np.ndarray:
    """The array of a constant (an initializer).

    Raises:
        UserError: the value is computed.
    """
    if value.const_value is None:
        raise UserError(f"unsupported architecture: {value.name} is not a constant")
    return value.const_value.numpy()


def _linear_to(output: ir.Value | None) -> Linear:
    add = _producer(output, "Add")
    for value, bias in (add.inputs, reversed(add.inputs)):
        node = value.producer() if value is not None else None
        if node is not None and node.op_type == "MatMul" and bias is not None:
            return _linear(node, add, bias)
    raise _unexpected(add, "a MatMul")


def _linear_from(source: ir.Value) -> Linear:
    matmul = _consumer(source, "MatMul")
    return _linear_to(_consumer(matmul.outputs[0], "Add").outputs[0])


def _linear(matmul: ir.Node, add: ir.Node, bias: ir.Value) -> Linear:
    weight = _input(matmul, 1)
    if array_of(weight).ndim != 2 or array_of(bias).ndim != 1:
        raise _unexpected(matmul, "a constant matrix and bias")
    return Linear(matmul, add, weight, bias)


def _above(value: ir.Value, wanted: str) -> ir.Node:
    """The nearest ``wanted`` node above, past nodes that reorder the heads or scale."""
    moves = ("Transpose", "Gather", "Div", "Mul")
    node = _producer(value, wanted, *moves)
    while node.op_type != wanted:
        node = _producer(_input(node, 0), wanted, *moves)
    return node


def _joined_heads(context: ir.Value) -> ir.Node:
    """The Reshape that joins the heads, below a Transpose, a Gather or both."""
    node = _consumer(context, "Transpose", "Reshape")
    if node.op_type == "Reshape":  # drop_padding selects the heads of the real tokens
        return _consumer(_consumer(node.outputs[0], "Gather").outputs[0], "Reshape")
    node = _consumer(node.outputs[0], "Reshape", "Gather")  # the last layer selects its first token
    return node if node.op_type == "Reshape" else _consumer(node.outputs[0], "Reshape")


def _input(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    if value is None:
        raise _unexpected(node, f"input {index}")
    return value


def _producer(value: ir.Value | None, *op_types: str) -> ir.Node:
    node = value.producer() if value is not None else None
    if node is None or node.op_type not in op_types:
        name = value.name if value is not None else "a missing input"
        raise UserError(
            f"unsupported architecture: {name} should come from {' or '.join(op_types)}, "
            f"not from {node.op_type if node is not None else 'a graph input'}"
        )
    return node


def _consumers(value: ir.Value) -> list[ir.Node]:
    return [use.node for use in value.uses()]


def _consumer(value: ir.Value, *op_types: str) -> ir.Node:
    nodes = [node for node in _consumers(value) if node.op_type in op_types]
    if len(nodes) != 1:
        raise UserError(
            f"unsupported architecture: {value.name} should feed one {' or '.join(op_types)}, "
            f"but feeds {len(nodes)}"
        )
    return nodes[0]


def _unexpected(node: ir.Node, wanted: str) -> UserError:
    return UserError(f"unsupported architecture: {node.op_type} {node.name} lacks {wanted}")
