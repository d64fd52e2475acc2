"""ONNX Runtime's fused operators in numpy, for ONNX's reference evaluator.

They follow ONNX Runtime's ContribOperators.md, not its kernels, so they also say what the operators
compute that only CUDA has. As the CUDA kernels, they compute in fp32 and round the result.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import erf
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from app.engine.text.encoding import Encoding
from tests.support.graphs import feeds_of

Array = np.ndarray


def evaluate(model: ir.Model, encodings: Sequence[Encoding], output: str = "logits") -> Array:
    """One output for a batch, padded to its longest text, by ONNX's reference evaluator."""
    model = model.clone()
    values = {value.name: value for node in model.graph for value in node.outputs}
    if not values[output].is_graph_output():
        values[output].type = ir.TensorType(ir.DataType.FLOAT)
        model.graph.outputs.append(values[output])
    evaluator = ReferenceEvaluator(ir.to_proto(model), new_ops=OPERATORS)
    # In fp16, a score plus the mask's -65504 may be minus infinity, which softmax turns into 0.
    with np.errstate(over="ignore"):
        (array,) = evaluator.run([output], feeds_of(encodings, evaluator.input_names))
    assert isinstance(array, np.ndarray)
    return array


class _Contrib(OpRun):
    op_domain = "com.microsoft"
    op_schema = None  # or the base class takes that of ONNX's own operator called Attention


class RemovePadding(_Contrib):
    """Real tokens first, text after text; then the offsets of padding."""

    def _run(self, padded: Array, lengths: Array) -> tuple[Array, ...]:
        batch, sequence, hidden = padded.shape
        real = np.arange(sequence) < lengths[:, None]
        rows = np.arange(batch * sequence).reshape(batch, sequence)
        offset = np.concatenate([rows[real], rows[~real]]).reshape(batch, sequence)
        ends = np.concatenate([[0], lengths.cumsum()])
        longest = np.array([lengths.max()])
        integers = [array.astype(np.int32) for array in (offset, ends, longest)]
        return (padded.reshape(-1, hidden)[rows[real]], *integers)


class PackedAttention(_Contrib):
    """Each text attends to itself only; the rows between two ends are one text."""

    def _run(
        self, rows: Array, weight: Array, bias: Array, offset: Array, ends: Array, num_heads: int
    ) -> tuple[Array]:
        assert offset.size >= len(rows) == ends[-1]
        query, key, value = np.split(_project(rows, weight, bias)[None], 3, axis=-1)
        context = [
            _attend(*(part[:, start:end] for part in (query, key, value)), heads=num_heads)[0]
            for start, end in pairwise(ends)
        ]
        return (np.concatenate(context).astype(rows.dtype),)


class Attention(_Contrib):
    """Self-attention of padded texts; keys behind a text's length are not seen."""

    def _run(
        self, hidden: Array, weight: Array, bias: Array, lengths: Array, num_heads: int
    ) -> tuple[Array]:
        query, key, value = np.split(_project(hidden, weight, bias), 3, axis=-1)
        context = _attend(query, key, value, heads=num_heads, lengths=lengths)
        return (context.astype(hidden.dtype),)


class MultiHeadAttention(_Contrib):
    """The same from query, key and value that are projected already."""

    def _run(
        self, query: Array, key: Array, value: Array, bias: None, lengths: Array, num_heads: int
    ) -> tuple[Array]:
        assert bias is None
        parts = (part.astype(np.float32) for part in (query, key, value))
        return (_attend(*parts, heads=num_heads, lengths=lengths).astype(query.dtype),)


class SkipLayerNormalization(_Contrib):
    """The layer norm of input + bias + skip."""

    def _run(
        self, x: Array, skip: Array, gamma: Array, beta: Array, bias: Array, epsilon: float
    ) -> tuple[Array]:
        assert x.shape == skip.shape
        total = x.astype(np.float32) + bias.astype(np.float32) + skip.astype(np.float32)
        return (_norm(total, gamma, beta, epsilon).astype(x.dtype),)


class EmbedLayerNormalization(_Contrib):
    """The layer norm of the sum of embeddings; the second result is not used."""

    def _run(
        self,
        ids: Array,
        segment_ids: Array | None,
        words: Array,
        positions: Array,
        segments: Array | None,
        gamma: Array,
        beta: Array,
        mask: None,
        position_ids: Array,
        epsilon: float,
    ) -> tuple[Array, Array]:
        assert mask is None
        assert {array.dtype for array in (ids, position_ids)} == {np.dtype(np.int32)}
        total = words[ids].astype(np.float32) + positions[position_ids]
        if segments is not None:
            total += segments[segment_ids]
        return _norm(total, gamma, beta, epsilon).astype(words.dtype), np.zeros(len(ids), np.int32)


class BiasGelu(_Contrib):
    """The exact GELU of a sum."""

    def _run(self, a: Array, b: Array) -> tuple[Array]:
        u = a.astype(np.float32) + b
        return ((0.5 * u * (1 + _erf(u / np.sqrt(2)))).astype(a.dtype),)


OPERATORS: list[type[OpRun]] = [
    RemovePadding,
    PackedAttention,
    Attention,
    MultiHeadAttention,
    SkipLayerNormalization,
    EmbedLayerNormalization,
    BiasGelu,
]
_erf: Any = np.vectorize(erf, otypes=[np.float32])


def _project(rows: Array, weight: Array, bias: Array) -> Array:
    projected: Array = rows.astype(np.float32) @ weight.astype(np.float32) + bias
    return projected


def _attend(*parts: Array, heads: int, lengths: Array | None = None) -> Array:
    """Attention of query [batch, queries, hidden] to key and value [batch, sequence, hidden]."""
    batch, queries, hidden = parts[0].shape
    query, key, value = (
        part.reshape(batch, -1, heads, hidden // heads).transpose(0, 2, 1, 3) for part in parts
    )
    scores: Array = query @ key.transpose(0, 1, 3, 2) / np.sqrt(hidden // heads)
    if lengths is not None:
        seen = np.arange(key.shape[2]) < lengths[:, None]
        scores = np.where(seen[:, None, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    context: Array = weights / weights.sum(-1, keepdims=True) @ value
    return context.transpose(0, 2, 1, 3).reshape(batch, queries, hidden)


def _norm(total: Array, gamma: Array, beta: Array, epsilon: float) -> Array:
    centred = total - total.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    normed: Array = centred / deviation * gamma + beta
    return normed
