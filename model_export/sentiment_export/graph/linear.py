"""Linear layers in an ONNX graph, and the steps from a value to its neighbours."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from sentiment_service.errors import UserError


class NotRecognised(UserError):
    """The graph does not have the form that a pass needs; ``reason`` says what differs."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"unsupported architecture: {reason}")


@dataclass(frozen=True, slots=True)
class Linear:
    """``x @ weight + bias``; weight [inputs, outputs], bias [outputs] or None."""

    matmul: ir.Node
    add: ir.Node | None
    weight: ir.Value
    bias: ir.Value | None

    @property
    def input(self) -> ir.Value:
        """``x``, [..., inputs]."""
        return input_of(self.matmul, 0)

    @property
    def output(self) -> ir.Value:
        """The result, [..., outputs]."""
        return (self.add or self.matmul).outputs[0]


def as_linear(matmul: ir.Node) -> Linear | None:
    """The linear layer that multiplies in this node; None if the node is no such product."""
    if matmul.op_type != "MatMul" or not _is_constant(matmul.inputs[1], axes=2):
        return None
    weight = input_of(matmul, 1)
    readers = consumers(matmul.outputs[0])
    if len(readers) == 1 and readers[0].op_type == "Add":
        bias = next(v for v in readers[0].inputs if v is not matmul.outputs[0])
        if _is_constant(bias, axes=1):
            return Linear(matmul, readers[0], weight, bias)
    return Linear(matmul, None, weight, None)


def linear_to(output: ir.Value | None) -> Linear:
    """The linear layer with a bias whose result is this value.

    Raises:
        NotRecognised: the value is something else.
    """
    add = producer(output, "Add")
    for value in add.inputs:
        node = value.producer() if value is not None else None
        linear = as_linear(node) if node is not None else None
        if linear is not None and linear.add is add:
            return linear
    raise NotRecognised(f"Add {add.name} is not the bias of a linear layer")


def array_of(value: ir.Value | None) -> np.ndarray:
    """The array of a constant (an initializer).

    Raises:
        NotRecognised: the value is computed, or there is none.
    """
    if value is None or value.const_value is None:
        raise NotRecognised(f"{value} is not a constant")
    return value.const_value.numpy()


def input_of(node: ir.Node, index: int) -> ir.Value:
    """The node's input of this number.

    Raises:
        NotRecognised: the node has no such input.
    """
    value = node.inputs[index]
    if value is None:
        raise NotRecognised(f"{node.op_type} {node.name} lacks input {index}")
    return value


def producer(value: ir.Value | None, *op_types: str) -> ir.Node:
    """The node that computes the value.

    Raises:
        NotRecognised: it is a constant or an input of the graph, or not one of ``op_types``.
    """
    node = value.producer() if value is not None else None
    if node is None or (op_types and node.op_type not in op_types):
        raise NotRecognised(f"{value} should come from {' or '.join(op_types) or 'a node'}")
    return node


def consumers(value: ir.Value) -> list[ir.Node]:
    """The nodes that read the value; one that reads it twice is listed twice."""
    return [use.node for use in value.uses()]


def consumer(value: ir.Value, *op_types: str) -> ir.Node:
    """The one node of these types that reads the value.

    Raises:
        NotRecognised: none does, or several do.
    """
    nodes = [node for node in consumers(value) if node.op_type in op_types]
    if len(nodes) != 1:
        raise NotRecognised(f"{value} should feed one {' or '.join(op_types)}, not {len(nodes)}")
    return nodes[0]


def is_exact_gelu(value: ir.Value) -> bool:
    """Whether the value is ``0.5 u (1 + erf(u / √2))``, as the exporter writes it."""
    try:
        half = producer(value, "Mul")
        product = producer(half.inputs[0], "Mul")
        u = product.inputs[0]
        erf = producer(input_of(producer(product.inputs[1], "Add"), 0), "Erf")
        scaled = producer(erf.inputs[0], "Div")
    except NotRecognised:
        return False
    return scaled.inputs[0] is u


def selects_first_token(node: ir.Node) -> bool:
    """Whether the node takes the first token of [batch, sequence, hidden]."""
    if node.op_type != "Gather" or node.attributes.get_int("axis", 0) != 1:
        return False
    index = node.inputs[1].const_value if node.inputs[1] is not None else None
    return index is not None and not index.numpy().any()


def _is_constant(value: ir.Value | None, axes: int) -> bool:
    tensor = value.const_value if value is not None else None
    return tensor is not None and tensor.dtype == ir.DataType.FLOAT and len(tensor.shape) == axes
