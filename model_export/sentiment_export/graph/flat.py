"""The graph for GPUs of BERT's family: no padding, and what ONNX Runtime has CUDA kernels for.

On CUDA, ONNX Runtime fuses nothing of the exported attention (docs/measurements/gpu.md). So the
layers are rewritten with its own operators: PackedMultiHeadAttention, which takes the tokens of
all texts one after another, SkipLayerNormalization and BiasGelu. Query, key and value are one
product. The service says where each text begins (``engine/model/flat.py``). So nothing has to
be counted in the graph, and the CPU never waits for the GPU before the end of a batch.

Values are [tokens, features], and [texts, features] after the last attention, because the
classifier reads the first token of each text. Embeddings and classifier stay as exported.
"""

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnx_ir.tape import Tape
from sentiment_service.engine.model.flat import ATTENTION, POSITION_PADDING

from sentiment_export.graph.encoder_layers import EncoderLayer, find_layers
from sentiment_export.graph.linear import (
    Linear,
    NotRecognised,
    array_of,
    input_of,
    is_exact_gelu,
    linear_to,
    producer,
    selects_first_token,
)
from sentiment_export.graph.passes.editor import Editor, forget_shapes, scope_of
from sentiment_export.graph.passes.half_precision import halved
from sentiment_export.graph.reference_attention import DOMAIN, reference_attention

# The inputs, all int32, with the names of their axes.
INPUTS = {
    "input_ids": ["tokens"],
    "token_type_ids": ["tokens"],
    "positions": ["tokens"],
    "token_offset": ["texts", "longest"],
    "cumulative_lengths": ["ends"],
    "first_token": ["texts"],
}


def flatten(model: ir.Model) -> None:
    """Rewrite an exported classifier for CUDA in place, in its own precision.

    Raises:
        NotRecognised: it is not a post-norm encoder, or the classifier reads more than the first
            token.
    """
    _FlatPass(model).run()
    RemoveUnusedNodesPass()(model)
    forget_shapes(model)


def halve(model: ir.Model) -> None:
    """Give float16 weights to a flat graph, in place. Its logits are float32, as before.

    CUDA's kernels add up products, softmax and layer norms in float32.
    """
    graph = model.graph
    for value in graph.initializers.values():
        if (tensor := value.const_value) is not None and tensor.dtype == ir.DataType.FLOAT:
            value.const_value = ir.tensor(halved(tensor), name=value.name)
            value.type = ir.TensorType(ir.DataType.FLOAT16)
    logits, tape = graph.outputs[0], Tape()
    exact = tape.op("Cast", [logits], {"to": ir.DataType.FLOAT})
    exact.name, exact.type, exact.shape = logits.name, logits.type, logits.shape
    logits.name, logits.type, logits.shape = f"{logits.name}_fp16", None, None
    graph.extend(tape.nodes)
    graph.outputs[0] = exact


class _FlatPass:
    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._graph = model.graph
        self._edit = Editor(model.graph, "flat")
        self._layers = find_layers(model.graph)
        self._heads = self._layers[0].heads
        width = self._layers[0].hidden_size // self._heads
        self._by_head = self._edit.integers("by_head", [-1, self._heads, 3, width])
        self._packed: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}  # by the query's weight
        int32 = ir.TensorType(ir.DataType.INT32)
        self._inputs = {
            name: ir.Value(name=name, type=int32, shape=ir.Shape(axes))
            for name, axes in INPUTS.items()
        }

    def run(self) -> None:
        self._embed()
        *inner, last = self._layers
        for layer in inner:
            self._finish(layer, self._attend(layer), layer.hidden)
        context, tape = self._attend(last), Tape()
        first = [
            tape.op("Gather", [v, self._inputs["first_token"]]) for v in (context, last.hidden)
        ]
        self._edit.insert_after(context, tape, "/flat/first_token")
        for use in tuple((rows := self._finish(last, *first)).uses()):
            if not selects_first_token(use.node):
                raise NotRecognised(f"{use.node.name} reads more than the first token")
            self._edit.replace(use.node, rows)
        function = reference_attention()
        self._model.functions[function.identifier()] = function
        self._model.opset_imports[DOMAIN] = 1
        self._graph.inputs[:] = [value for value in self._inputs.values() if value.uses()]

    def _embed(self) -> None:
        """Read one row of each table for each token."""
        norm = producer(self._layers[0].hidden)
        if norm.op_type == "Add":  # a linear layer widens the embeddings (ELECTRA, ALBERT)
            norm = producer(linear_to(self._layers[0].hidden).input)
        total = producer(input_of(norm, 0), "Add")
        waiting = [total]
        while waiting:
            node = waiting.pop()
            if node.op_type == "Add":
                waiting += [producer(value, "Add", "Gather") for value in node.inputs]
            else:
                self._look_up(node)
        self._add_and_normalise(norm, input_of(total, 0), input_of(total, 1), None)

    def _look_up(self, gather: ir.Node) -> None:
        index = input_of(gather, 1)
        if index.is_graph_input():
            gather.replace_input_with(1, self._inputs[str(index.name)])
            return
        rule = producer(index, "Slice", "Add", "Expand")
        if rule.op_type == "Expand":  # all tokens have the type 0
            row = self._edit.constant("type", array_of(gather.inputs[0])[0])
            self._edit.replace(gather, row)
            return
        if rule.op_type == "Add":  # RoBERTa's rule
            padding = array_of(rule.inputs[1]).item()
            self._model.metadata_props[POSITION_PADDING] = str(padding)
        gather.replace_input_with(1, self._inputs["positions"])

    def _attend(self, layer: EncoderLayer) -> ir.Value:
        """The context [tokens, hidden] of attention, before its output's linear layer."""
        weight, bias = self._packed_qkv(layer)
        tape = Tape()
        packed = tape.op("Reshape", [tape.op("MatMul", [layer.hidden, weight]), self._by_head])
        places = [self._inputs[name] for name in ("token_offset", "cumulative_lengths")]
        context = tape.op(
            ATTENTION.decode(),
            [packed, None, None, bias, *places],
            {"num_heads": self._heads},
            domain=DOMAIN,
        )
        matmul = layer.attention_output.matmul
        self._edit.insert_before(matmul, tape, f"/flat{scope_of(matmul.outputs[0])}/context")
        return context

    def _packed_qkv(self, layer: EncoderLayer) -> tuple[ir.Value, ir.Value]:
        """Weight [inputs, heads * 3 * width], and bias [3 * heads * width], as the kernel reads."""
        linears = (layer.query, layer.key, layer.value)
        if layer.query.weight not in self._packed:  # layers may share it (ALBERT)
            name = f"qkv.{len(self._packed)}"
            weights = [array_of(linear.weight) for linear in linears]
            by_head = [weight.reshape(len(weight), self._heads, -1) for weight in weights]
            self._packed[layer.query.weight] = (
                self._edit.constant(
                    f"{name}.weight", np.stack(by_head, axis=2).reshape(len(weights[0]), -1)
                ),
                self._edit.constant(
                    f"{name}.bias", np.concatenate([array_of(linear.bias) for linear in linears])
                ),
            )
        return self._packed[layer.query.weight]

    def _finish(self, layer: EncoderLayer, context: ir.Value, residual: ir.Value) -> ir.Value:
        """The rest of the layer, for the rows of ``context`` and ``residual``."""
        layer.attention_output.matmul.replace_input_with(0, context)
        product = self._without_bias(layer.attention_output)
        attended = self._add_and_normalise(
            layer.attention_norm, product, residual, layer.attention_output.bias
        )
        activated = layer.output.input
        if is_exact_gelu(activated):
            tape = Tape()
            inputs = [self._without_bias(layer.intermediate), layer.intermediate.bias]
            gelu = tape.op("BiasGelu", inputs, domain=DOMAIN)
            self._edit.insert_before(layer.output.matmul, tape, scope_of(activated))
            self._edit.replace(producer(activated), gelu)
        product = self._without_bias(layer.output)
        return self._add_and_normalise(layer.output_norm, product, attended, layer.output.bias)

    def _add_and_normalise(
        self, norm: ir.Node, x: ir.Value, skip: ir.Value, bias: ir.Value | None
    ) -> ir.Value:
        tape = Tape()
        result = tape.op(
            "SkipLayerNormalization",
            [x, skip, norm.inputs[1], norm.inputs[2], *([bias] if bias is not None else [])],
            {"epsilon": norm.attributes.get_float("epsilon", 1e-5)},
            domain=DOMAIN,
        )
        self._edit.insert_before(norm, tape, scope_of(norm.outputs[0]))
        self._edit.replace(norm, result)
        return result

    @staticmethod
    def _without_bias(linear: Linear) -> ir.Value:
        """The product. It is not what the module in PyTorch computes, and not named after it."""
        linear.matmul.name = f"/flat{linear.matmul.name}"
        return linear.matmul.outputs[0]
