"""ONNX repositories as others publish them: a BERT classifier in plain operators, padding and all.

It is written here node by node, so that neither the exporter under test nor PyTorch's has a part.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from sentiment_export.checkpoint.checkpoint import load_checkpoint

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
SIDE_FILES = ("config.json", "tokenizer_config.json", "vocab.txt")
LOWEST = -1e9  # where attention is masked


def make_repository(path: Path, checkpoint: Path, *graphs: str) -> Path:
    """A directory without weights: the side files of a BERT checkpoint, and its fp32 graph.

    The graph is written under each of the names ``graphs``.
    """
    path.mkdir(parents=True)
    for name in SIDE_FILES:
        if (checkpoint / name).exists():
            shutil.copyfile(checkpoint / name, path / name)
    model = plain_bert(checkpoint)
    for name in graphs:
        save(model, path / name)
    return path


def save(model: ModelProto, target: Path) -> Path:
    """Write a graph; returns its path."""
    target.parent.mkdir(exist_ok=True)
    onnx.save_model(model, target)
    return target


def weights_outside(graph: Path) -> None:
    """Move the weights of a graph to a file beside it, as large graphs have them."""
    data = f"{graph.name}_data"
    model = onnx.load_model(graph)
    onnx.save_model(model, graph, save_as_external_data=True, location=data, size_threshold=100)


def quantize(source: Path, target: Path) -> Path:
    """Write ONNX Runtime's dynamic int8 of a graph, which has one scale for all of a batch."""
    quantize_dynamic(source, target, weight_type=QuantType.QInt8)
    return target


def halve(model: ModelProto) -> ModelProto:
    """The graph with its weights in fp16, each of which becomes fp32 where it is read."""
    casts = []
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT and len(tensor.dims) == 2:
            half = numpy_helper.to_array(tensor).astype(np.float16)
            casts.append(helper.make_node("Cast", [f"{tensor.name}.half"], [tensor.name], to=1))
            tensor.CopyFrom(numpy_helper.from_array(half, f"{tensor.name}.half"))
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def plain_bert(path: Path, opset: int = 14) -> ModelProto:
    """The graph of the BERT checkpoint in ``path``, at an opset from 13 to 17."""
    checkpoint = load_checkpoint(path)
    assert checkpoint.encoder is not None
    return _Bert(checkpoint.weights, checkpoint.encoder).model(opset)


class _Bert:
    def __init__(self, weights: Mapping[str, Any], encoder: Any) -> None:
        self._weights, self._encoder = weights, encoder
        self._nodes: list[NodeProto] = []
        self._constants: dict[str, np.ndarray] = {}

    def model(self, opset: int) -> ModelProto:
        encoder = self._encoder
        hidden = self._embeddings()
        mask = self._op("Cast", "attention_mask", to=TensorProto.FLOAT)
        mask = self._op("Unsqueeze", mask, self._integers([1, 2]))
        mask = self._op("Mul", self._op("Sub", mask, self._number(1)), self._number(-LOWEST))
        for layer in encoder.layers:
            attended = self._linear(
                self._attention(hidden, mask, layer), f"{layer}.attention.output.dense"
            )
            hidden = self._norm(
                self._op("Add", attended, hidden), f"{layer}.attention.output.LayerNorm"
            )
            wide = self._gelu(self._linear(hidden, f"{layer}.intermediate.dense"))
            out = self._linear(wide, f"{layer}.output.dense")
            hidden = self._norm(self._op("Add", out, hidden), f"{layer}.output.LayerNorm")
        first = self._op("Gather", hidden, self._integers(0), axis=1)
        pooled = self._op("Tanh", self._linear(first, "bert.pooler.dense"))
        last = self._linear(pooled, "classifier")
        self._nodes[-1].output[0] = "logits"
        assert last
        two = ["batch", "sequence"]
        inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, two) for n in INPUTS]
        output = helper.make_tensor_value_info(
            "logits", TensorProto.FLOAT, ["batch", encoder.labels]
        )
        constants = [numpy_helper.from_array(a, name) for name, a in self._constants.items()]
        graph = helper.make_graph(self._nodes, "bert", inputs, [output], constants)
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8
        )

    def _embeddings(self) -> str:
        def table(kind: str) -> str:
            return self._weight(f"bert.embeddings.{kind}_embeddings.weight")

        words = self._op("Gather", table("word"), "input_ids")
        types = self._op("Gather", table("token_type"), "token_type_ids")
        length = self._op("Gather", self._op("Shape", "input_ids"), self._integers(1))
        places = self._op("Range", self._integers(0), length, self._integers(1))
        positions = self._op("Gather", table("position"), places)
        total = self._op("Add", self._op("Add", words, types), positions)
        return self._norm(total, "bert.embeddings.LayerNorm")

    def _attention(self, hidden: str, mask: str, layer: str) -> str:
        heads, width = self._encoder.heads, self._encoder.width

        def projected(name: str, order: list[int]) -> str:
            flat = self._linear(hidden, f"{layer}.attention.self.{name}")
            split = self._op("Reshape", flat, self._integers([0, 0, heads, width]))
            return self._op("Transpose", split, perm=order)

        query, value = projected("query", [0, 2, 1, 3]), projected("value", [0, 2, 1, 3])
        scores = self._op("MatMul", query, projected("key", [0, 2, 3, 1]))
        scores = self._op("Div", scores, self._number(width**0.5))
        shares = self._op("Softmax", self._op("Add", scores, mask), axis=-1)
        mixed = self._op("Transpose", self._op("MatMul", shares, value), perm=[0, 2, 1, 3])
        return self._op("Reshape", mixed, self._integers([0, 0, heads * width]))

    def _linear(self, x: str, module: str) -> str:
        name = f"{module}.transposed"
        self._constants[name] = np.ascontiguousarray(self._weights[f"{module}.weight"].T)
        return self._op("Add", self._op("MatMul", x, name), self._weight(f"{module}.bias"))

    def _norm(self, x: str, module: str) -> str:
        apart = self._op("Sub", x, self._op("ReduceMean", x, axes=[-1]))
        squares = self._op("Pow", apart, self._number(2))
        spread = self._op("ReduceMean", squares, axes=[-1])
        spread = self._op("Sqrt", self._op("Add", spread, self._number(self._encoder.epsilon)))
        scaled = self._op("Mul", self._op("Div", apart, spread), self._weight(f"{module}.weight"))
        return self._op("Add", scaled, self._weight(f"{module}.bias"))

    def _gelu(self, x: str) -> str:
        erf = self._op("Erf", self._op("Div", x, self._number(2**0.5)))
        product = self._op("Mul", x, self._op("Add", erf, self._number(1)))
        return self._op("Mul", product, self._number(0.5))

    def _op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"/{kind}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, inputs, [f"{name}_output"], name, **attributes))
        return f"{name}_output"

    def _weight(self, name: str) -> str:
        self._constants[name] = np.asarray(self._weights[name])
        return name

    def _number(self, value: float) -> str:
        return self._constant(f"number {value}", np.float32(value))

    def _integers(self, values: int | list[int]) -> str:
        return self._constant(f"integers {values}", np.array(values, np.int64))

    def _constant(self, name: str, value: Any) -> str:
        self._constants[name] = np.asarray(value)
        return name
