"""Writes the graph of a classifier of BERT's family for GPUs: no padding, in fp16.

On CUDA, ONNX Runtime fuses nothing of an exported attention (docs/measurements/gpu.md). So the
layers are written with what it has kernels for: PackedMultiHeadAttention, which takes the tokens of
all texts one after another, SkipLayerNormalization and BiasGelu. Query, key and value are one
product. The service says where each text begins (``engine/model/sessions.py``). So nothing has to
be counted in the graph, and the CPU never waits for the GPU before the end of a batch.

Values are [tokens, features], and [texts, features] after the last attention, because the
classifier reads the first token of each text. CUDA's kernels add up products, softmax and layer
norms in float32.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto
from sentiment_service.engine.model.sessions import ATTENTION, POSITION_PADDING, REFERENCE

from sentiment_export.graph.builder import CONTRIB, EXACT_GELU, GELU_BY_TANH, Value, halved
from sentiment_export.graph.classifier import Classifier

# Activations whose operator adds the bias, too.
FUSED = dict.fromkeys(EXACT_GELU, "BiasGelu") | dict.fromkeys(GELU_BY_TANH, "FastGelu")


class FlatClassifier(Classifier):
    """The graph in fp16, with float32 logits."""

    def embed(self) -> Value:
        """The first hidden state of all tokens, [tokens, hidden]."""
        encoder, embeddings = self.encoder, f"{self.encoder.family.prefix}.embeddings"
        for name in ("input_ids", *["token_type_ids"] * encoder.has_types, "positions"):
            self.graph.input(name, TensorProto.INT32, ["tokens"])
        self.graph.input("token_offset", TensorProto.INT32, ["texts", "longest"])
        self.graph.input("cumulative_lengths", TensorProto.INT32, ["ends"])
        self.graph.input("first_token", TensorProto.INT32, ["texts"])
        if encoder.family.after_padding:
            padding = str(encoder.padding_id)
            self.graph.model.metadata_props.add(key=POSITION_PADDING, value=padding)
        op, total = self.graph.at(embeddings), self.look_up_words("input_ids")
        if encoder.has_types:
            types = self.parameter(f"{embeddings}.token_type_embeddings.weight")
            total = op("Add", total, op("Gather", types, "token_type_ids"))
        elif encoder.types:
            total = op("Add", total, self.first_type())
        table = self.parameter(f"{embeddings}.position_embeddings.weight")
        position = op("Gather", table, "positions")
        return self.project(self._skip_norm(f"{embeddings}.LayerNorm", total, position, None))

    def attend(self, layer: str, hidden: Value) -> Value:
        """The context [tokens, hidden], by one product for query, key and value."""
        encoder, op = self.encoder, self.graph.at(f"flat.{layer}{self._call}")
        weight, bias = self._packed(layer)
        shape = self.graph.integers([-1, encoder.heads, 3, encoder.width])
        return op(
            ATTENTION.decode(),
            op("Reshape", op("MatMul", hidden, weight), shape),
            None,
            None,
            bias,
            "token_offset",
            "cumulative_lengths",
            domain=CONTRIB,
            num_heads=encoder.heads,
        )

    def attend_from_first(self, layer: str, hidden: Value) -> tuple[Value, Value]:
        """Context and hidden state of the first tokens, both [texts, hidden]."""
        context, op = self.attend(layer, hidden), self.graph.at("flat.first_token")
        return op("Gather", context, "first_token"), op("Gather", hidden, "first_token")

    def add_and_normalise(self, module: str, x: Value, residual: Value, norm: str) -> Value:
        """The linear layer's bias is added by the operator that adds what bypasses the layer."""
        return self._skip_norm(norm, self._product(module, x), residual, self.vector(module))

    def activate(self, module: str, x: Value, activation: str) -> Value:
        """The linear layer's bias is added by the operator of GELU, if that is the activation."""
        fused = FUSED.get(self.encoder.activation)
        if fused is None:
            return super().activate(module, x, activation)
        product, bias = self._product(module, x), self.vector(module)
        return self.at(activation)(fused, product, bias, domain=CONTRIB)

    def classify(self, hidden: Value) -> Value:
        logits = super().classify(hidden)
        return self.graph.at("logits")("Cast", logits, to=TensorProto.FLOAT)

    def write(self, target: Path) -> None:
        """Write the graph, with the function that takes attention's place on CPUs."""
        self.graph.model.functions.append(onnx.parser.parse_function(FUNCTION))
        super().write(target)

    def made(self, name: str, shape: Sequence[int], make: Callable[[], np.ndarray]) -> Value:
        return self.graph.weight(name, shape, np.float16, lambda: halved(make()))

    def number(self, value: float) -> Value:
        return self.made(f"number {value:.9g}", (), lambda: np.array(value, np.float32))

    def _product(self, module: str, x: Value) -> Value:
        """Without the bias, it is not what the module in PyTorch computes, nor named after it."""
        return self.graph.at(f"flat.{module}{self._call}")("MatMul", x, self.matrix(module))

    def _skip_norm(self, norm: str, x: Value, skip: Value, bias: Value | None) -> Value:
        return self.at(norm)(
            "SkipLayerNormalization",
            *(x, skip, self.parameter(f"{norm}.weight"), self.vector(norm)),
            *([bias] if bias is not None else []),
            domain=CONTRIB,
            epsilon=self.encoder.epsilon,
        )

    def _packed(self, layer: str) -> tuple[Value, Value]:
        """Weight [inputs, heads * 3 * width], and bias [3 * heads * width], as the kernel reads."""
        names, heads, size = self.names, self.encoder.heads, self.encoder.hidden_size
        modules = [f"{layer}.{name}" for name in (names.query, names.key, names.value)]

        def weight() -> np.ndarray:
            matrices = [self._weights[f"{module}.weight"].T for module in modules]
            by_head = [matrix.reshape(size, heads, -1) for matrix in matrices]
            return np.stack(by_head, axis=2).reshape(size, -1)

        def bias() -> np.ndarray:
            return np.concatenate([self._weights[f"{module}.bias"] for module in modules])

        return (
            self.made(f"{layer}.qkv.weight", (size, 3 * size), weight),
            self.made(f"{layer}.qkv.bias", (3 * size,), bias),
        )


# What PackedMultiHeadAttention computes, as a function of ONNX's own operators. ONNX Runtime has
# that operator on CUDA only. On the CPU, this function takes its place, so a graph for GPUs can be
# compared with PyTorch on every machine. ``packed`` is [tokens, heads, 3, width] and ``bias``
# [3 * heads * width]. Scores and softmax are float32. Padding gets the values of another token, and
# is masked.
FUNCTION = f"""
<opset_import: ["" : 18], domain: "{CONTRIB}">
{REFERENCE.decode()} <num_heads>
(packed, key, value, bias, token_offset, cumulative_lengths) => (context) {{
  zero = Constant <value_ints = [0]> ()
  one = Constant <value_ints = [1]> ()
  three = Constant <value_ints = [3]> ()
  last = Constant <value_ints = [-1]> ()
  after_texts = Constant <value_ints = [1, 2, 3]> ()
  heads = Shape <start = 1, end = 2> (packed)
  width = Shape <start = 3> (packed)
  kinds_heads_width = Concat <axis = 0> (three, heads, width)
  bias_by_kind = Reshape (bias, kinds_heads_width)
  bias_by_head = Transpose <perm = [1, 0, 2]> (bias_by_kind)
  biased = Add (packed, bias_by_head)
  lengths_so_far = Cast <to = 7> (cumulative_lengths)
  texts_and_one = Shape (lengths_so_far)
  starts = Slice (lengths_so_far, zero, last)
  ends = Slice (lengths_so_far, one, texts_and_one)
  lengths = Sub (ends, starts)
  longest = Shape <start = 1> (token_offset)
  end = Squeeze (longest)
  begin = Constant <value_int = 0> ()
  step = Constant <value_int = 1> ()
  places = Range (begin, end, step)
  start_of_text = Unsqueeze (starts, one)
  row_or_later = Add (start_of_text, places)
  tokens = Shape <end = 1> (packed)
  last_row = Sub (tokens, one)
  rows = Min (row_or_later, last_row)
  padded = Gather (biased, rows)
  by_kind = Transpose <perm = [3, 0, 2, 1, 4]> (padded)
  q, k, v = Split <num_outputs = 3> (by_kind)
  k_across = Transpose <perm = [0, 1, 2, 4, 3]> (k)
  products = MatMul (q, k_across)
  exact_products = Cast <to = 1> (products)
  exact_width = Cast <to = 1> (width)
  divisor = Sqrt (exact_width)
  scores = Div (exact_products, divisor)
  length_of_text = Unsqueeze (lengths, after_texts)
  is_token = Less (places, length_of_text)
  lowest = Constant <value_float = -3.4e38> ()
  masked = Where (is_token, scores, lowest)
  exact_weights = Softmax <axis = -1> (masked)
  weights = CastLike (exact_weights, v)
  by_head = MatMul (weights, v)
  by_token = Transpose <perm = [0, 1, 3, 2, 4]> (by_head)
  hidden = Mul (heads, width)
  row_of_hidden = Concat <axis = 0> (last, hidden)
  all_rows = Reshape (by_token, row_of_hidden)
  all_places = Reshape (token_offset, last)
  real_places = Slice (all_places, zero, tokens)
  context = Gather (all_rows, real_places)
}}
"""
