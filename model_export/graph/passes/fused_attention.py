"""Replaces the attention of each layer by one operator, with the texts' lengths as its mask.

    Attention(input [batch, sequence, hidden], weights [hidden, 3 * hidden], bias [3 * hidden],
              mask_index [batch]) → [batch, sequence, hidden]

It multiplies query, key and value by one matrix. The last layer computes few queries, so it has
    MultiHeadAttention(query [batch, queries, hidden], key and value [batch, sequence, hidden],
                       key_padding_mask [batch]) → [batch, queries, hidden]

The masks are numbers of tokens, so padding must be behind the tokens, as the service puts it. With
such masks, ONNX Runtime's CUDA provider can choose kernels that never store the scores; which one
depends on the GPU, the head width and the length (``multihead_attention.cc``). Up to compute
capability 8.9, these are TensorRT's, where queries and keys are equally many. From 9.0 on, only
cuDNN's takes lengths; ``ORT_ENABLE_CUDNN_FLASH_ATTENTION`` switches it. Otherwise, the operator has
a kernel for each step, as the graph had before. In which precision the kernels sum the softmax is
not documented, so parity has to be measured on each kind of GPU.
"""

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnx_ir.tape import Tape

from model_export.graph.encoder_layers import EncoderLayer, find_layers
from model_export.graph.linear import NotRecognised, array_of, consumer, input_of, producer
from model_export.graph.passes.contrib import DOMAIN, MergedProjections, contrib, text_lengths
from model_export.graph.passes.editor import Editor, scope_of


def fuse_attention(model: ir.Model) -> None:
    """Fuse the attention of every layer, in place.

    Raises:
        NotRecognised: the graph is not a post-norm encoder, has no attention mask, or scales
            scores by something other than one over the root of the head width.
    """
    graph = model.graph
    layers = find_layers(graph)
    heads = [checked_heads(layer) for layer in layers]
    edit, start = Editor(graph, "attention"), Tape()
    lengths = text_lengths(graph, edit, start)
    edit.insert_at_start(start, "/lengths")
    model.opset_imports[DOMAIN] = 1
    projections = MergedProjections(edit)
    for layer, number in zip(layers, heads, strict=True):
        tape = Tape()
        if layer.query.input is layer.hidden:
            merged = [layer.hidden, *projections.of(layer), lengths]
            context = contrib(tape, "Attention", merged, num_heads=number)
        else:
            parts = [linear.output for linear in (layer.query, layer.key, layer.value)]
            separate = [*parts, None, lengths]
            context = contrib(tape, "MultiHeadAttention", separate, num_heads=number)
        selection = producer(layer.context_reshape.inputs[0])
        edit.insert_before(selection, tape, scope_of(layer.context))
        if selection.op_type == "Gather":  # the first token
            selection.replace_input_with(0, context)
            context = selection.outputs[0]
        edit.replace(layer.context_reshape, context)
    RemoveUnusedNodesPass()(model)


def checked_heads(layer: EncoderLayer) -> int:
    """Number of heads of a layer that scales its scores as the fused operators do.

    Raises:
        NotRecognised: it scales otherwise.
    """
    queries, keys, _ = layer.head_reshapes
    consumer(consumer(keys.outputs[0], "Transpose").outputs[0], "MatMul")  # keys are not scaled
    scale: np.ndarray = np.ones(())
    node = queries
    while node.op_type not in ("Add", "Where"):  # the mask
        node = consumer(node.outputs[0], "Div", "Mul", "MatMul", "Transpose", "Add", "Where")
        if node.op_type in ("Div", "Mul"):
            factor = array_of(input_of(node, 1))
            scale = scale * factor if node.op_type == "Mul" else scale / factor
    width = layer.hidden_size // layer.heads
    if not np.allclose(scale, 1 / np.sqrt(width), rtol=1e-6):
        raise NotRecognised(f"attention scales scores by {scale}, not by 1/√{width}")
    return layer.heads
