"""Reduces the last layer to the first token, and drops padding everywhere except in attention.

The classifier of BERT's family reads only the hidden state of ``<s>`` (``[CLS]``). So the last
layer need not compute queries, attention output and feed-forward of the other tokens. The result is
exact: the same operations compute the first token's values from the same numbers. The queries of
two tokens are kept instead of one. ONNX Runtime multiplies a single row with another kernel, and
the last bit of its sums changes with the padding of the batch.

A batch is padded to its longest text, and padding costs as much as real tokens. But linear
layers, norms and activations treat each token separately and need no padding. So from the
embeddings to the last layer, the hidden state is [tokens, hidden]: the real tokens of all texts,
one after another. ByteDance's Effective Transformer (2020) does the same with its own kernels.

Only attention must know which tokens share a text. Every token is split into its heads. A Gather
then puts the heads of query, key and value into their padded positions, in the layout
[batch, heads, sequence, width] that a Transpose made before. Another Gather takes the context of
the real tokens back. Padded positions are masked as before. The results are the same to the last
bit.
"""

from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnx_ir.tape import Tape

from sentiment_export.graph.encoder_layers import EncoderLayer, find_layers
from sentiment_export.graph.linear import NotRecognised, producer, selects_first_token
from sentiment_export.graph.passes.editor import Editor, scope_of, text_rows

TO_HEADS, TO_KEYS = (0, 2, 1, 3), (0, 2, 3, 1)  # [batch, heads, sequence, width]; keys transposed
SCOPE = "/padding"
QUERIES_KEPT = 2


@dataclass(frozen=True, slots=True)
class _Places:
    """Row numbers that map tokens to padded positions and back; computed once per batch."""

    tokens: ir.Value  # [tokens], rows of [batch * sequence]
    spread: ir.Value  # [batch, heads, sequence], rows of [tokens * heads]
    join: ir.Value  # [tokens, heads], rows of [batch * heads * sequence]
    kept: ir.Value  # [batch * QUERIES_KEPT], rows of [tokens]
    first: ir.Value  # [batch], rows of [tokens]


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


def drop_padding(model: ir.Model) -> None:
    """Keep the hidden state as [tokens, hidden] without padding, in place.

    Run ``keep_first_token`` first.

    Raises:
        NotRecognised: the graph is not a post-norm encoder, or has no attention mask.
    """
    _PaddingPass(model.graph).run()
    RemoveUnusedNodesPass()(model)


class _PaddingPass:
    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._edit = Editor(graph, "padding")
        self._layers = find_layers(graph)
        self._heads = heads = self._layers[0].heads
        size = self._layers[0].hidden_size
        width = size // heads
        self._flat = self._edit.integers("flat", [-1, size])
        self._by_head = self._edit.integers("by_head", [-1, width])
        self._kept_by_head = self._edit.integers("kept", [-1, QUERIES_KEPT, heads, width])
        self._size = self._edit.integers("size", [size])

    def run(self) -> None:
        places = self._places()
        self._keep_shape()
        self._gather_tokens(self._layers[0].hidden, places)
        *inner, last = self._layers
        for layer in inner:
            for reshape in layer.head_reshapes:
                self._spread(reshape, places)
            self._join(layer, places)
        for reshape in last.head_reshapes[1:]:  # all but its few queries
            self._spread(reshape, places)
        self._keep_first_token(last, places)

    def _places(self) -> _Places:
        tape, number = Tape(), self._edit.integers
        rows = text_rows(self._graph, self._edit, tape)
        axis, vector, heads = (
            number("axis", [1]),
            number("shape", [-1]),
            number("heads", self._heads),
        )
        head = tape.op("Mul", [tape.op("Unsqueeze", [rows.text, axis]), heads])
        head = tape.op("Add", [head, number("head", [list(range(self._heads))])])
        position = tape.op("Unsqueeze", [rows.position, axis])
        join = tape.op("Add", [tape.op("Mul", [head, rows.sequence]), position])

        spread = tape.op("Mul", [tape.op("Unsqueeze", [rows.token, axis]), heads])
        spread = tape.op("Add", [spread, number("head_of", [[[h] for h in range(self._heads)]])])

        queries = number("queries", list(range(QUERIES_KEPT)))
        kept = tape.op("Gather", [rows.token, queries], {"axis": 1})
        first = tape.op("Gather", [rows.token, number("first", [0])], {"axis": 1})
        kept, first = (tape.op("Reshape", [chosen, vector]) for chosen in (kept, first))
        self._edit.insert_at_start(tape, SCOPE)
        return _Places(rows.tokens, spread, join, kept, first)

    def _keep_shape(self) -> None:
        """Give three axes to the nodes that read a hidden state's shape (DistilBERT's mask)."""
        readers = [
            use.node
            for layer in self._layers
            for use in layer.hidden.uses()
            if use.node.op_type == "Shape"
        ]
        tape = Tape()
        shape = tape.op("Shape", [self._graph.inputs[0]])
        shape = tape.op("Concat", [shape, self._size], {"axis": 0})
        self._edit.insert_at_start(tape, f"{SCOPE}/shape")
        for reader in readers:
            self._edit.replace(reader, shape)

    def _gather_tokens(self, hidden: ir.Value, places: _Places) -> None:
        """Give the readers of [batch, sequence, hidden] the form [tokens, hidden] instead."""
        readers = tuple(hidden.uses())
        tape = Tape()
        rows = tape.op("Gather", [tape.op("Reshape", [hidden, self._flat]), places.tokens])
        self._edit.insert_after(hidden, tape, f"{scope_of(hidden)}/by_token")
        for reader in readers:
            reader.node.replace_input_with(reader.idx, rows)

    def _spread(self, reshape: ir.Node, places: _Places) -> None:
        """Put the heads of every token into their padded positions, instead of a Transpose."""
        (use,) = reshape.outputs[0].uses()
        transpose = use.node
        permutation = tuple(transpose.attributes.get_ints("perm", ()))
        if transpose.op_type != "Transpose" or permutation not in (TO_HEADS, TO_KEYS):
            raise NotRecognised(f"{transpose.name} does not split heads")
        reshape.replace_input_with(1, self._by_head)
        tape = Tape()
        heads = tape.op("Gather", [reshape.outputs[0], places.spread])
        if permutation == TO_KEYS:  # ONNX Runtime fuses it with the MatMul
            heads = tape.op("Transpose", [heads], {"perm": [0, 1, 3, 2]})
        self._edit.insert_before(transpose, tape, f"{reshape.name}/spread")
        self._edit.replace(transpose, heads)

    def _join(self, layer: EncoderLayer, places: _Places) -> None:
        """Take the context of the real tokens and put their heads side by side again."""
        transpose = producer(layer.context_reshape.inputs[0])
        tape = Tape()
        heads = tape.op("Reshape", [transpose.inputs[0], self._by_head])
        rows = tape.op("Gather", [heads, places.join])
        self._edit.insert_before(transpose, tape, f"{layer.context_reshape.name}/join")
        self._edit.replace(transpose, rows)
        layer.context_reshape.replace_input_with(1, self._flat)

    def _keep_first_token(self, last: EncoderLayer, places: _Places) -> None:
        """Keep the last layer's few queries, and from its context on one row per text."""
        for kept, rows in ((last.query.input, places.kept), (last.residual, places.first)):
            gather = producer(kept)
            gather.replace_input_with(1, rows)
            gather.attributes["axis"] = ir.AttrInt64("axis", 0)
        last.head_reshapes[0].replace_input_with(1, self._kept_by_head)
        last.context_reshape.replace_input_with(1, self._flat)
        rows = last.output_norm.outputs[0]
        for use in tuple(rows.uses()):  # the classifier's Gather of the first token
            self._edit.replace(use.node, rows)
