"""Writes the graph of a classifier of BERT's family from its weights.

``Classifier`` computes in fp32 on CPUs, ``Int8Classifier`` with int8 weights, ``FlatClassifier``
(``flat.py``) in fp16 on GPUs. None does work that changes no logit:

- **No padding.** A batch is padded to its longest text, and padding costs as much as real tokens.
  But linear layers, norms and activations treat each token separately. So the hidden state is
  [tokens, hidden]: the real tokens of all texts, one after another. ByteDance's Effective
  Transformer (2020) does the same with its own kernels. Only attention must know which tokens share
  a text. A Gather puts the heads of query, key and value into their padded positions, [batch,
  heads, sequence, width], and another one takes the context of the real tokens back.
- **The last layer for the first token only.** The classifier reads the hidden state of ``<s>``
  (``[CLS]``) alone. So the last layer need not compute queries, attention output and feed-forward
  of the others. The queries of two tokens are kept: ONNX Runtime multiplies a single row with
  another kernel, and the last bit of its sums changes with the padding of the batch.

Everything is added and multiplied in the order in which PyTorch does it.
"""

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto

from sentiment_export.checkpoint.family import OF_CONFIG, Encoder
from sentiment_export.graph.builder import (
    ACTIVATIONS,
    EXACT_GELU,
    LARGEST_WEIGHT,
    Graph,
    Operator,
    Value,
    find_tokens,
    multiply,
    quantize_matrix,
    quantize_rows,
)

Weights = Mapping[str, np.ndarray]
AXES = ("batch_size", "sequence_length")
QUERIES_KEPT = 2
LOWEST = float(np.finfo(np.float32).min)


class Classifier:
    """The graph in fp32. Subclasses write linear layers, embeddings or attention in another way.

    ``weights`` are float32, under the names of ``encoder.weights``. They are read when they are
    written, and never all at once.
    """

    def __init__(self, encoder: Encoder, weights: Weights) -> None:
        self.encoder = encoder
        self.names = encoder.family.layer
        self.graph = Graph()
        self._weights = weights
        self._shapes = encoder.weights
        self._call = ""  # after the names of a layer that is called again (ALBERT)

    def write(self, target: Path) -> None:
        hidden, layers = self.embed(), self.encoder.layers
        for number, layer in enumerate(layers):
            again = layers[:number].count(layer)
            self._call = f".call_{again}" if again else ""
            if number < len(layers) - 1:
                context, residual = self.attend(layer, hidden), hidden
            else:
                context, residual = self.attend_from_first(layer, hidden)
            hidden = self.finish(layer, context, residual)
        self._call = ""
        self.graph.write(target, self.classify(hidden), self.encoder.labels)

    def embed(self) -> Value:
        """The first hidden state of the real tokens, [tokens, hidden]."""
        graph, encoder = self.graph, self.encoder
        ids = graph.input("input_ids", TensorProto.INT64, AXES)
        mask = graph.input("attention_mask", TensorProto.INT64, AXES)
        self._find_places(mask)
        embeddings = f"{encoder.family.prefix}.embeddings"
        op, flat = graph.at(embeddings), graph.integers([-1])
        total = self.look_up_words(op("Gather", op("Reshape", ids, flat), self._tokens))
        if encoder.has_types:
            types = graph.input("token_type_ids", TensorProto.INT64, AXES)
            types = op("Gather", op("Reshape", types, flat), self._tokens)
            table = self.parameter(f"{embeddings}.token_type_embeddings.weight")
            total = op("Add", total, op("Gather", table, types))
        elif encoder.types:
            total = op("Add", total, self.first_type())
        position = self._position
        if encoder.family.after_padding:  # RoBERTa counts no position for a padding id
            counted = op(
                "Cast",
                op("Not", op("Equal", ids, graph.integers(encoder.padding_id))),
                to=TensorProto.INT64,
            )
            count = op("Mul", op("CumSum", counted, graph.integers(1)), counted)
            count = op("Add", count, graph.integers(encoder.padding_id))
            position = op("Gather", op("Reshape", count, flat), self._tokens)
        table = self.parameter(f"{embeddings}.position_embeddings.weight")
        total = op("Add", total, op("Gather", table, position))
        return self.project(self.normalise(f"{embeddings}.LayerNorm", total))

    def project(self, embedded: Value) -> Value:
        """The embeddings, as wide as the hidden state."""
        if not (module := self.encoder.projection):
            return embedded
        op = self.at(module)
        return op("Add", op("MatMul", embedded, self.matrix(module)), self.vector(module))

    def look_up_words(self, ids: Value) -> Value:
        """The word embedding of each of the ids [tokens]."""
        module = f"{self.encoder.family.prefix}.embeddings.word_embeddings"
        return self.at(module)("Gather", self.parameter(f"{module}.weight"), ids)

    def first_type(self) -> Value:
        name = f"{self.encoder.family.prefix}.embeddings.token_type_embeddings.weight"
        return self.made(f"{name}.0", self._shapes[name][1:], lambda: self._weights[name][0])

    def attend(self, layer: str, hidden: Value) -> Value:
        """The context [tokens, hidden] of each token."""
        key = self._spread(layer, self.names.key, hidden)
        query = self._spread(layer, self.names.query, hidden)
        by_head = self._attention(layer, query, key, hidden)
        op = self.at(self._self_attention(layer))
        heads = op("Reshape", by_head, self.graph.integers([-1, self.encoder.width]))
        heads = op("Gather", heads, self._join)
        return op("Reshape", heads, self.graph.integers([-1, self.encoder.hidden_size]))

    def attend_from_first(self, layer: str, hidden: Value) -> tuple[Value, Value]:
        """Context and hidden state of the first tokens, both [batch, hidden]."""
        encoder, op = self.encoder, self.at(self._self_attention(layer))
        queries = op("Gather", hidden, self._kept)
        residual = op("Gather", hidden, self._first)
        key = self._spread(layer, self.names.key, hidden)
        query = self.linear(f"{layer}.{self.names.query}", queries)
        shape = [-1, QUERIES_KEPT, encoder.heads, encoder.width]
        query = op("Reshape", query, self.graph.integers(shape))
        query = op("Transpose", query, perm=[0, 2, 1, 3])
        by_head = self._attention(layer, query, key, hidden)
        first = op("Gather", by_head, self.graph.integers([0]), axis=2)
        return op("Reshape", first, self.graph.integers([-1, encoder.hidden_size])), residual

    def finish(self, layer: str, context: Value, residual: Value) -> Value:
        """The layer after attention, for the rows of ``context`` and ``residual``."""
        names = self.names
        attended = self.add_and_normalise(
            f"{layer}.{names.attention_output}",
            context,
            residual,
            f"{layer}.{names.attention_norm}",
        )
        activated = self.activate(
            f"{layer}.{names.intermediate}", attended, f"{layer}.{names.activation}"
        )
        return self.add_and_normalise(
            f"{layer}.{names.output}", activated, attended, f"{layer}.{names.output_norm}"
        )

    def add_and_normalise(self, module: str, x: Value, residual: Value, norm: str) -> Value:
        """The layer norm of a linear layer's result and what bypasses the layer."""
        result = self.linear(module, x)
        return self.normalise(norm, self.at(parent(module))("Add", result, residual))

    def activate(self, module: str, x: Value, activation: str) -> Value:
        kind = self.encoder.activation
        return ACTIVATIONS[kind](self.linear(module, x), self.at(activation), self.number)

    def linear(self, module: str, x: Value) -> Value:
        op = self.at(module)
        return op("Add", op("MatMul", x, self.matrix(module)), self.vector(module))

    def normalise(self, module: str, x: Value) -> Value:
        return self.at(module)(
            "LayerNormalization",
            x,
            self.parameter(f"{module}.weight"),
            self.vector(module),
            axis=-1,
            epsilon=self.encoder.epsilon,
        )

    def classify(self, hidden: Value) -> Value:
        """The logits [texts, labels] of the first tokens' hidden state."""
        for layer in self.encoder.family.head:
            hidden = self._head(layer.module, hidden)
            kind = self.encoder.activation if layer.activation == OF_CONFIG else layer.activation
            hidden = ACTIVATIONS[kind](hidden, self.at(layer.place), self.number)
        return self._head(self.encoder.family.logits, hidden)

    def _head(self, module: str, x: Value) -> Value:
        weight = self.parameter(f"{module}.weight")
        return self.at(module)("Gemm", x, weight, self.vector(module), transB=1)

    # Constants

    def at(self, module: str) -> Operator:
        """Adds operators to a module, whose name is another one for each call of its layer."""
        return self.graph.at(module + self._call)

    def parameter(self, name: str) -> Value:
        """A weight as the checkpoint has it."""
        return self.made(name, self._shapes[name], lambda: self._weights[name])

    def matrix(self, module: str) -> Value:
        """The weight of a linear layer as MatMul takes it, [inputs, outputs]."""
        name = f"{module}.weight"
        return self.made(f"{name}.T", self._shapes[name][::-1], lambda: self._weights[name].T)

    def vector(self, module: str) -> Value:
        return self.parameter(f"{module}.bias")

    def made(self, name: str, shape: Sequence[int], make: Callable[[], np.ndarray]) -> Value:
        """A constant made of weights when the graph is written."""
        return self.graph.weight(name, shape, np.float32, make)

    def number(self, value: float) -> Value:
        """A constant of the type in which the graph computes."""
        return self.graph.number(value)  # type: ignore[no-any-return]

    # Attention

    def _self_attention(self, layer: str) -> str:
        return parent(f"{layer}.{self.names.query}")

    def _attention(self, layer: str, query: Value, key: Value, hidden: Value) -> Value:
        """The context by head, [batch, heads, queries, width]."""
        op = self.at(self._self_attention(layer))
        products = op("MatMul", query, op("Transpose", key, perm=[0, 1, 3, 2]))
        scores = op("Div", products, self.number(sqrt(self.encoder.width)))
        weights = op("Softmax", op("Add", scores, self._mask), axis=-1)
        return op("MatMul", weights, self._spread(layer, self.names.value, hidden))

    def _spread(self, layer: str, name: str, hidden: Value) -> Value:
        """A linear layer's result in padded positions, [batch, heads, sequence, width]."""
        op = self.at(self._self_attention(layer))
        result = self.linear(f"{layer}.{name}", hidden)
        heads = op("Reshape", result, self.graph.integers([-1, self.encoder.width]))
        return op("Gather", heads, self._spread_rows)

    def _find_places(self, mask: Value) -> None:
        """Compute row numbers that map tokens to padded positions and back, once per batch."""
        op, integers, heads = self.graph.at("padding"), self.graph.integers, self.encoder.heads
        sequence, text, position, self._tokens, token = find_tokens(op, self.graph, mask)
        self._position = position
        head = op("Mul", op("Unsqueeze", text, integers([1])), integers(heads))
        head = op("Add", head, integers([list(range(heads))]))
        # [tokens, heads], rows of [batch * heads * sequence]
        join = op("Mul", head, sequence)
        self._join = op("Add", join, op("Unsqueeze", position, integers([1])))
        # [batch, heads, sequence], rows of [tokens * heads]
        spread = op("Mul", op("Unsqueeze", token, integers([1])), integers(heads))
        numbers = integers([[[number] for number in range(heads)]])
        self._spread_rows = op("Add", spread, numbers)
        # [batch * QUERIES_KEPT] and [batch], rows of [tokens]
        self._kept, self._first = (
            op("Reshape", op("Gather", token, integers(chosen), axis=1), integers([-1]))
            for chosen in (list(range(QUERIES_KEPT)), [0])
        )
        # [batch, 1, 1, sequence], added to the scores: 0 or the lowest number
        real = op("Cast", op("Unsqueeze", mask, integers([1, 2])), to=TensorProto.FLOAT)
        self._mask = op("Mul", op("Sub", self.number(1), real), self.number(LOWEST))


class Int8Classifier(Classifier):
    """The graph with int8 weights; every row of activations has a scale of its own.

    ``precisions.py`` says why, and has the formulas.

    The key's bias is left out: it adds the same number to all scores of a query, which softmax
    ignores. The value's bias passes through attention unchanged, because the attention weights sum
    to one, so it is added to the bias of the attention output.
    """

    def __init__(self, encoder: Encoder, weights: Weights) -> None:
        super().__init__(encoder, weights)
        self._quantized: dict[Value, Any] = {}  # see ``quantize_rows``

    def look_up_words(self, ids: Value) -> Value:
        """Rows of int8 times their scales."""
        module = f"{self.encoder.family.prefix}.embeddings.word_embeddings"
        table, scale = quantize_matrix(self._weights[f"{module}.weight"], axis=1)
        op, graph = self.at(module), self.graph
        values = op("Gather", graph.constant(f"{module}.weight_int8", table), ids)
        scales = graph.constant(f"{module}.weight_scale", scale[:, np.newaxis])
        values = op("Cast", values, to=TensorProto.FLOAT)
        return op("Mul", values, op("Gather", scales, ids))

    def linear(self, module: str, x: Value) -> Value:
        from_attention = module.endswith(self.names.attention_output)
        if x not in self._quantized:
            activated = module.endswith(self.names.output) and not from_attention
            gelu = activated and self.encoder.activation in EXACT_GELU
            op = self.at(f"{parent(module)}.quantize")
            self._quantized[x] = quantize_rows(op, self.graph, x, gelu=gelu)
        op, matrix = self.at(module), self._int8_matrix(module)
        result: Value = multiply(op, self.graph, self._quantized[x], *matrix)
        if module.endswith((self.names.key, self.names.value)):
            return result
        if from_attention:
            return op("Add", result, self._folded_bias(module))
        return op("Add", result, self.vector(module))

    def _int8_matrix(self, module: str) -> tuple[Value, Value]:
        """The weight [inputs, outputs], and the scale of each output."""
        names = f"{module}.weight_int8", f"{module}.weight_scale"
        if names[0] not in self.graph:
            weight, scale = quantize_matrix(self._weights[f"{module}.weight"], 1, LARGEST_WEIGHT)
            self.graph.constant(names[0], weight.T)
            self.graph.constant(names[1], scale)
        return names

    def _folded_bias(self, module: str) -> Value:
        value = module.removesuffix(self.names.attention_output) + self.names.value
        weight = np.ascontiguousarray(self._weights[f"{module}.weight"].T)
        bias = self._weights[f"{module}.bias"] + self._weights[f"{value}.bias"] @ weight
        return self.graph.constant(f"{module}.bias_folded", bias)


def parent(module: str) -> str:
    return module.rpartition(".")[0]
