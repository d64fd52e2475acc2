"""Reads and edits graphs that come from elsewhere: linear layers, neighbours, constants, nodes.

What a graph lacks raises ``NotRecognised``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.tape import Tape

from sentiment_export.checkpoint.architectures import NotRecognised
from sentiment_export.graph.builder import Constants


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


def array_of(value: ir.Value | None) -> np.ndarray:
    """The array of a constant (an initializer)."""
    if value is None or value.const_value is None:
        raise NotRecognised(f"{value} is not a constant")
    return value.const_value.numpy()


def input_of(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    if value is None:
        raise NotRecognised(f"{node.op_type} {node.name} lacks input {index}")
    return value


def producer(value: ir.Value | None, *op_types: str) -> ir.Node:
    node = value.producer() if value is not None else None
    if node is None or (op_types and node.op_type not in op_types):
        raise NotRecognised(f"{value} should come from {' or '.join(op_types) or 'a node'}")
    return node


def consumers(value: ir.Value) -> list[ir.Node]:
    """The nodes that read the value; one that reads it twice is listed twice."""
    return [use.node for use in value.uses()]


def is_gelu(value: ir.Value) -> bool:
    """Whether the value is a GELU, or ``0.5 u (1 + erf(u / √2))``, the factors in any order."""
    node, pair = value.producer(), _factors(value)
    if node is not None and node.op_type == "Gelu":
        return True  # approximate or not: both are above -0.1701
    factors = {*pair, *(factor for product in pair for factor in _factors(product))}
    return any(_argument_of_gelu(factor) in factors for factor in factors)


def put_gelu_in_order(graph: ir.Graph) -> None:
    """Write GELU, ``u (0.5 (1 + erf(u / √2)))``, as ``(0.5 u) (1 + erf(u / √2))``: the same bits.

    PyTorch's exporter writes the first, and ONNX Runtime fuses only the second (gelu_fusion.cc).
    """
    for node in graph:
        for product in _factors(node.outputs[0]):
            for one in _factors(product):
                u = _argument_of_gelu(one)
                if u is not None and u in node.inputs and len(consumers(product)) == 1:
                    node.replace_input_with(node.inputs.index(u), one)
                    inner = producer(product)
                    inner.replace_input_with(inner.inputs.index(one), u)


def _argument_of_gelu(value: ir.Value) -> ir.Value | None:
    """``u``, if the value is ``1 + erf(u / √2)``."""
    try:
        erf = producer(input_of(producer(value, "Add"), 0), "Erf")
        return input_of(producer(erf.inputs[0], "Div", "Mul"), 0)
    except NotRecognised:
        return None


def _factors(value: ir.Value) -> list[ir.Value]:
    node = value.producer()
    return [v for v in node.inputs if v is not None] if node and node.op_type == "Mul" else []


def _is_constant(value: ir.Value | None, axes: int) -> bool:
    tensor = value.const_value if value is not None else None
    return tensor is not None and tensor.dtype == ir.DataType.FLOAT and len(tensor.shape) == axes


def operator(tape: Tape) -> Callable[..., ir.Value]:
    """What adds operators to the tape in the form of ``builder.Operator``."""

    def op(op_type: str, *inputs: ir.Value, domain: str = "", **attributes: Any) -> ir.Value:
        return tape.op(op_type, inputs, attributes, domain=domain)

    return op


class Editor(Constants):
    """Edits one graph for one pass; the names of new constants begin with ``name``."""

    def __init__(self, graph: ir.Graph, name: str) -> None:
        self._graph = graph
        self._name = name
        self._node_names = {node.name for node in graph}

    def constant(self, name: str, array: np.ndarray | np.generic) -> ir.Value:
        name = f"{self._name}.{name}"
        if name not in self._graph.initializers:
            tensor = ir.tensor(np.asarray(array))
            self._graph.register_initializer(ir.Value(name=name, const_value=tensor))
        return self._graph.initializers[name]

    def insert_after(self, value: ir.Value, tape: Tape, scope: str) -> None:
        self._name_nodes(tape, scope)
        self._graph.insert_after(producer(value), tape.nodes)

    def insert_before(self, node: ir.Node, tape: Tape, scope: str) -> None:
        self._name_nodes(tape, scope)
        self._graph.insert_before(node, tape.nodes)

    def replace(self, node: ir.Node, value: ir.Value) -> None:
        """Let the readers of ``node``'s output read ``value`` instead, and remove the node."""
        for use in tuple(node.outputs[0].uses()):
            use.node.replace_input_with(use.idx, value)
        self._graph.remove(node, safe=True)

    def _name_nodes(self, tape: Tape, scope: str) -> None:
        """Name the unnamed nodes: scope, operator and, if that name is taken, a number."""
        for node in tape.nodes:
            if node.name is None:
                name = first = f"{scope}/{node.op_type}"
                number = 0
                while name in self._node_names:
                    number += 1
                    name = f"{first}_{number}"
                self._node_names.add(name)
                node.name = name
                node.outputs[0].name = f"{name}_output_0"


def scope_of(value: ir.Value) -> str:
    """The module that computes ``value``, in the exporter's form ``/encoder/layer.0/...``."""
    name = value.name or ""
    return name.rpartition("/")[0] or name
