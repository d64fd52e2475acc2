"""Adds constants and nodes to a graph, and tells which values have an axis of tokens."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass
from onnx_ir.tape import Tape

from sentiment_export.graph.linear import NotRecognised, producer


class Editor:
    """Edits one graph for one pass; the names of new constants begin with ``name``."""

    def __init__(self, graph: ir.Graph, name: str) -> None:
        self._graph = graph
        self._name = name
        self._node_names = {node.name for node in graph}

    def constant(self, name: str, array: np.ndarray | np.generic) -> ir.Value:
        """Add an initializer."""
        tensor = ir.tensor(np.asarray(array))
        value = ir.Value(name=f"{self._name}.{name}", const_value=tensor)
        self._graph.register_initializer(value)
        return value

    def integers(self, name: str, values: object) -> ir.Value:
        """Add an int64 initializer from a number or nested lists."""
        return self.constant(name, np.array(values, np.int64))

    def insert_at_start(self, tape: Tape, scope: str) -> None:
        """Insert the tape's nodes before all others."""
        self.insert_before(self._graph[0], tape, scope)

    def insert_after(self, value: ir.Value, tape: Tape, scope: str) -> None:
        """Insert the tape's nodes after the node that computes ``value``."""
        self._name_nodes(tape, scope)
        self._graph.insert_after(producer(value), tape.nodes)

    def insert_before(self, node: ir.Node, tape: Tape, scope: str) -> None:
        """Insert the tape's nodes before ``node``."""
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


def hidden_states(model: ir.Model) -> dict[ir.Value, int | None]:
    """The computed values [batch, sequence, features], with the number of features if known.

    The size of the batch is unknown before the graph runs. That distinguishes these values from
    tables with three axes, such as DeBERTa's relative positions [1, positions, features].
    """
    ShapeInferencePass()(model)
    states = {
        value: size if isinstance(size := value.shape[2], int) else None
        for node in model.graph
        for value in node.outputs
        if value.shape is not None and len(value.shape) == 3 and not isinstance(value.shape[0], int)
    }
    forget_shapes(model)
    return states


def forget_shapes(model: ir.Model) -> None:
    """Clear what was inferred, because a pass makes it wrong."""
    for node in model.graph:
        for value in node.outputs:
            if not value.is_graph_output():
                value.shape = value.type = None


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
