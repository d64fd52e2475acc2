"""Leaves padding out on a GPU, with ONNX Runtime's operators for packed texts.

    RemovePadding(input [batch, sequence, hidden], sequence_token_count [batch])
        → rows [tokens, hidden], token_offset [batch, sequence],
          cumulative_sequence_length [batch + 1], longest [1]
    PackedAttention(input [tokens, hidden], weights [hidden, 3 * hidden], bias [3 * hidden],
                    token_offset, cumulative_sequence_length) → [tokens, hidden]

The rows are the real tokens of all texts, one text after another, as in ``padding.py``. Here no
head is moved to a padded position: the attention kernels read where each text begins. Padding must
be behind the tokens. The classifier reads only the first token of each text, which is the row where
the text begins, so RestorePadding is not needed. All queries of the last layer are computed,
because the operator takes no others, and from its context on there is one row for each text.

The operators are from ONNX Runtime's pull requests 13701 and 14858; 16925 converts models to them.
They exist for CUDA only. RemovePadding waits once per batch until the GPU has counted the tokens,
because the size of its result depends on them (``cudaStreamSynchronize`` in ``remove_padding.cc``).
It stands right behind the embeddings, so little work is waited for, but the CPU cannot prepare the
layers meanwhile. Whether that is worth the padding must be measured.
"""

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnx_ir.tape import Tape

from model_export.graph.encoder_layers import EncoderLayer, find_layers
from model_export.graph.linear import NotRecognised, input_of, producer
from model_export.graph.passes.contrib import DOMAIN, MergedProjections, contrib, text_lengths
from model_export.graph.passes.editor import Editor, scope_of
from model_export.graph.passes.fused_attention import checked_heads

FLOAT, INT32 = ir.TensorType(ir.DataType.FLOAT), ir.TensorType(ir.DataType.INT32)


def pack_attention(model: ir.Model) -> None:
    """Compute the layers on the rows of real tokens, in place.

    Run ``keep_first_token`` first.

    Raises:
        NotRecognised: the graph is not a post-norm encoder whose classifier reads the first token,
            has no attention mask, or scales scores by something other than one over the root of
            the head width.
    """
    layers = find_layers(model.graph)
    heads = [checked_heads(layer) for layer in layers]
    if layers[-1].query.input is layers[-1].hidden:
        raise NotRecognised("the classifier reads more than the first token")
    packing = _Packing(model.graph, layers[0].hidden)
    model.opset_imports[DOMAIN] = 1
    for layer, number in zip(layers, heads, strict=True):
        packing.replace_attention(layer, number)
    packing.keep_first_rows(layers[-1])
    RemoveUnusedNodesPass()(model)
    packing.pass_rows_on()


class _Packing:
    def __init__(self, graph: ir.Graph, padded: ir.Value) -> None:
        self._padded = padded  # the embeddings
        self._edit = Editor(graph, "packing")
        self._projections = MergedProjections(self._edit)
        tape, number = Tape(), self._edit.integers
        inputs = [padded, text_lengths(graph, self._edit, tape)]
        removed = tape.op_multi_out("RemovePadding", inputs, num_outputs=4, domain=DOMAIN)
        for value, type_ in zip(removed, (FLOAT, INT32, INT32, INT32), strict=True):
            value.type = type_
        self._rows, self._offset, self._ends, _ = removed
        bounds = [number("start", [0]), number("end", [-1]), number("axis", [0])]
        self._starts = tape.op("Slice", [self._ends, *bounds])  # [batch], each text's first row
        self._edit.insert_after(padded, tape, "/packing")

    def replace_attention(self, layer: EncoderLayer, heads: int) -> None:
        hidden = self._rows if layer.hidden is self._padded else layer.hidden
        inputs = [hidden, *self._projections.of(layer), self._offset, self._ends]
        tape = Tape()
        context = contrib(tape, "PackedAttention", inputs, num_heads=heads)
        selection = producer(layer.context_reshape.inputs[0])
        self._edit.insert_before(selection, tape, scope_of(layer.context))
        if selection.op_type == "Gather":  # the first token
            self._select_starts(selection, context)
            context = selection.outputs[0]
        self._edit.replace(layer.context_reshape, context)

    def keep_first_rows(self, last: EncoderLayer) -> None:
        """Select the last residual's first tokens by their rows; behind it, there are no others."""
        selection = producer(last.residual, "Gather")
        self._select_starts(selection, input_of(selection, 0))
        first_tokens = last.output_norm.outputs[0]
        for use in tuple(first_tokens.uses()):  # the classifier's Gather of the first token
            self._edit.replace(use.node, first_tokens)

    def pass_rows_on(self) -> None:
        """Give the rows to the residual that still reads the padded embeddings."""
        for use in tuple(self._padded.uses()):
            if use.node.op_type == "Shape":
                raise NotRecognised(f"{use.node.name} needs the shape of padded embeddings")
            if use.node is not self._rows.producer():
                use.node.replace_input_with(use.idx, self._rows)

    def _select_starts(self, selection: ir.Node, rows: ir.Value) -> None:
        selection.replace_input_with(0, rows)
        selection.replace_input_with(1, self._starts)
        selection.attributes["axis"] = ir.AttrInt64("axis", 0)
