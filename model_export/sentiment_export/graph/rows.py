"""Leaves padding out of a graph from elsewhere, whatever its attention looks like.

Attention stays as it is. The layers between, whose operators treat each token separately, compute
on rows [tokens, features] without padding. One Gather makes the rows where a linear layer reads a
padded value [batch, sequence, features]. Another Gather puts rows back into padded positions for
every other reader. The positions of padding then hold another token's values, which attention
masks.

If the classifier reads the first token only, then the layers after the last attention compute one
row per text.
"""

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass, ShapeInferencePass
from onnx_ir.tape import Tape

from sentiment_export.checkpoint.architectures import NotRecognised
from sentiment_export.graph.builder import find_tokens
from sentiment_export.graph.editor import (
    Editor,
    Linear,
    array_of,
    as_linear,
    consumers,
    input_of,
    operator,
    scope_of,
)

ELEMENTWISE = {"Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Neg"}
ELEMENTWISE |= {"Erf", "Gelu", "Tanh", "Sigmoid", "Relu"}


def compute_on_rows(model: ir.Model) -> tuple[list[Linear], bool]:
    """Leave padding out between the attentions, in place.

    The linear layers that compute on rows, in the order of the graph; and whether those after the
    last attention compute the first token only.
    """
    rows = _RowsPass(model)
    for node in tuple(model.graph):
        rows.visit(node)
    first_token_only = rows.keep_first_token()
    RemoveUnusedNodesPass()(model)
    return rows.linears, first_token_only


class _RowsPass:
    def __init__(self, model: ir.Model) -> None:
        self._graph = graph = model.graph
        self._hidden = _hidden_states(model)
        self._edit = Editor(graph, "rows")
        self._number_tokens()
        self.linears: list[Linear] = []
        self._nodes: set[ir.Node] = set()  # that compute on rows
        self._rows: set[ir.Value] = set()  # of the form [tokens, features]
        self._without_padding: dict[ir.Value, ir.Value] = {}  # rows by padded value
        self._with_padding: dict[ir.Value, ir.Value] = {}  # padded value by rows
        self._poolings: list[ir.Node] = []  # that read the first token of rows

    def _number_tokens(self) -> None:
        """Compute row numbers from the attention mask [batch, sequence], before all else."""
        mask = next((v for v in self._graph.inputs if v.name == "attention_mask"), None)
        if mask is None:
            raise NotRecognised("the graph has no attention_mask")
        tape = Tape()
        *_, self._tokens, self._token = find_tokens(operator(tape), self._edit, mask)
        self._shape = tape.op("Shape", [self._graph.inputs[0]])
        self._first = tape.op("Gather", [self._token, self._edit.integers(0)], {"axis": 1})
        self._edit.insert_before(self._graph[0], tape, "/rows")

    def visit(self, node: ir.Node) -> None:
        """Let the node compute on rows if it can, else give it padded values."""
        linear = as_linear(node)
        if linear is not None and linear.input in self._hidden:
            self._remove_padding(linear)
        operands = self._operands(node)
        rows = [self._without_padding.get(operand, operand) for operand in operands]
        if rows and self._rows.issuperset(rows) and not self._feeds_a_branch(node):
            for operand, row in zip(operands, rows, strict=True):
                node.replace_input_with(tuple(node.inputs).index(operand), row)
            self._nodes.add(node)
            self._rows.update(node.outputs)
            if linear is not None:
                self.linears.append(linear)
            return
        for index, value in enumerate(node.inputs):
            if value in self._rows:
                self._read_elsewhere(node, index, value)

    def _feeds_a_branch(self, node: ir.Node) -> bool:
        """Whether a branch of an If reads the node; ``visit`` does not see branches."""
        readers = (reader for output in node.outputs for reader in consumers(output))
        return any(reader.graph is not self._graph for reader in readers)

    def _operands(self, node: ir.Node) -> list[ir.Value]:
        """The computed inputs of a node that treats every token separately, else nothing."""
        if as_linear(node) is not None or _works_on_last_axis(node):
            return [input_of(node, 0)]
        if node.op_type in ELEMENTWISE:
            constants = [v.const_value for v in node.inputs if v is not None and v.const_value]
            if all(len(constant.shape) <= 1 for constant in constants):
                return [v for v in node.inputs if v is not None and v.const_value is None]
        return []

    def _remove_padding(self, linear: Linear) -> None:
        padded = linear.input
        if padded in self._rows or padded in self._without_padding:
            return
        width = array_of(linear.weight).shape[0]
        tape = Tape()
        flat = tape.op("Reshape", [padded, self._edit.integers([-1, width])])
        rows = tape.op("Gather", [flat, self._tokens])
        self._edit.insert_after(padded, tape, f"{scope_of(padded)}/rows")
        self._without_padding[padded] = rows
        self._rows.add(rows)

    def _read_elsewhere(self, node: ir.Node, index: int, rows: ir.Value) -> None:
        """Give a node that does not compute on rows what it read before."""
        if _selects_first_token(node):
            self._poolings.append(node)
            node.replace_input_with(1, self._first)
            node.attributes["axis"] = ir.AttrInt64("axis", 0)
        elif not (node.op_type == "Shape" and self._shape_is_known(node)):
            padded = self._gathered(rows, self._token, self._with_padding, "padded")
            node.replace_input_with(index, padded)

    def _shape_is_known(self, shape: ir.Node) -> bool:
        """Read the sizes of batch and sequence elsewhere; whether no reader needs them from here.

        The readers take single sizes by a Gather. The last one, that of the features, is right.
        """
        known = True
        for reader in consumers(shape.outputs[0]):
            index = input_of(reader, 1).const_value if reader.op_type == "Gather" else None
            axis = index.numpy().tolist() if index is not None else None
            if axis in (0, 1):
                reader.replace_input_with(0, self._shape)
            elif axis not in (-1, [-1]):
                known = False
        return known

    def _gathered(
        self, rows: ir.Value, which: ir.Value, known: dict[ir.Value, ir.Value], scope: str
    ) -> ir.Value:
        """``which`` of the rows, gathered once; ``known`` has what was gathered before."""
        if rows not in known:
            tape = Tape()
            known[rows] = tape.op("Gather", [rows, which])
            self._edit.insert_after(rows, tape, f"{scope_of(rows)}/{scope}")
        return known[rows]

    def keep_first_token(self) -> bool:
        """Reduce the layers that feed only the classifier to each text's first row, if any do."""
        reduced = dict.fromkeys(self._poolings)  # a dict, so that equal graphs give equal files
        for node in reversed(tuple(self._graph)):
            readers = {reader for output in node.outputs for reader in consumers(output)}
            readers = {reader for reader in readers if reader.op_type != "Shape"}
            if node in self._nodes and readers and readers <= reduced.keys():
                reduced[node] = None
        first_rows: dict[ir.Value, ir.Value] = {}
        for node in [node for node in reduced if node in self._nodes]:
            for index, rows in enumerate(node.inputs):
                if rows in self._rows and rows.producer() not in reduced:
                    first = self._gathered(rows, self._first, first_rows, "first")
                    node.replace_input_with(index, first)
        for pooling in self._poolings:
            rows = input_of(pooling, 0)
            if rows.producer() in reduced:
                self._edit.replace(pooling, rows)
        return len(reduced) > len(self._poolings)


def _hidden_states(model: ir.Model) -> dict[ir.Value, int | None]:
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
    # The pass makes what was inferred wrong.
    for node in model.graph:
        for value in node.outputs:
            if not value.is_graph_output():
                value.shape = value.type = None
    return states


def _selects_first_token(node: ir.Node) -> bool:
    """Whether the node takes the first token of [batch, sequence, hidden]."""
    if node.op_type != "Gather" or node.attributes.get_int("axis", 0) != 1:
        return False
    index = node.inputs[1].const_value if node.inputs[1] is not None else None
    return index is not None and not index.numpy().any()


def _works_on_last_axis(node: ir.Node) -> bool:
    """Whether a node with one computed operand treats every vector of features separately."""
    if node.op_type == "LayerNormalization":
        return node.attributes.get_int("axis", -1) == -1
    if node.op_type == "Slice" and len(node.inputs) > 3 and node.inputs[3] is not None:
        axes = node.inputs[3].const_value
        return axes is not None and axes.numpy().tolist() == [-1]
    return False


def sum_tokens_in_order(model: ir.Model) -> None:
    """Replace every masked sum over the tokens by a product with the mask, in place (ModernBERT).

    ONNX Runtime adds a ReduceSum in an order that depends on the padded length, so the last bits of
    a text's mean depend on the other texts of its batch. A product of two equal rows with the
    mask's values adds one token after another; ``classifier.py`` says why there are two rows.
    """
    hidden = _hidden_states(model)
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
            total = tape.op("Gather", [sums, edit.integers(0)], {"axis": 1})
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
