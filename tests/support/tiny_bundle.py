"""A bundle small enough to make in a test, and a model whose answers can be foretold.

Each word has a vector of logits, and a text's logits are the sum over its words: ``love``
is positive, ``worst`` negative, ``nan`` not a number; all else leans to neutral.
"""

import json
from collections.abc import Sequence
from itertools import islice, product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sentiment_service.engine.loading import load_model
from sentiment_service.engine.model.bundle import (
    FORMAT_VERSION,
    MANIFEST,
    SIDE_FILES,
    Bundle,
    Precision,
    sha256,
)
from sentiment_service.engine.model.model import Model
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing

LABELS = ["negative", "neutral", "positive"]
MAX_TOKENS = 16  # with <s> and </s>: 14 words
WORDS: dict[str, list[float]] = {
    "<pad>": [0, 0, 0],
    "<s>": [0, 0, 0],
    "</s>": [0, 0, 0],
    "<unk>": [0, 0.5, 0],
    "love": [-1, 0, 4],
    "worst": [4, 0, -1],
    "nan": [float("nan"), 0, 0],
}


def different_texts(count: int) -> list[str]:
    """Texts of six words, each of which is computed: their token ids differ. At most 729."""
    words = product(("love", "worst", "it"), repeat=6)
    return [" ".join(text) for text in islice(words, count)]


def make_bundle(
    path: Path,
    *,
    name: str = "tiny",
    outputs: int = 3,
    labels: Sequence[str] = LABELS,
    additions: int = 0,
    **config: Any,
) -> Path:
    """Write a bundle; ``config`` adds entries to config.json.

    ``additions`` of zero to the logits make the model slow to load: 60,000 take about a second.

    The manifest fits the files if there are as many ``labels`` as ``outputs``.
    """
    (path / "onnx").mkdir(parents=True)
    _write_model(path / "onnx/model.onnx", outputs, additions)
    _tokenizer().save(str(path / "tokenizer.json"))
    _write_json(path / "tokenizer_config.json", {"model_max_length": MAX_TOKENS})
    described = {"id2label": dict(enumerate(labels)), "pad_token_id": 0}
    _write_json(path / "config.json", described | config)
    write_manifest(path, name=name, labels=list(labels))
    return path


def write_manifest(path: Path, **changes: Any) -> None:
    """Write the manifest that fits the files as they are, but for ``changes``."""
    model = path / "onnx/model.onnx"
    manifest = {
        "format_version": FORMAT_VERSION,
        "name": "tiny",
        "source": {"path": "made by a test", "revision": "0123abc", "files": {}},
        "architecture": "SumOfWords",
        "labels": LABELS,
        "max_tokens": MAX_TOKENS,
        "preprocessing": "tweet",
        "variants": {
            "fp32": {
                "file": "onnx/model.onnx",
                "sha256": sha256(model),
                "bytes": model.stat().st_size,
                "parity": {"samples": 1, "max_abs_logit_diff": 0.0, "label_agreement": 1.0},
            }
        },
        "files": {name: sha256(path / name) for name in SIDE_FILES},
        "created_with": {},
    }
    _write_json(path / MANIFEST, manifest | changes)


def evaluate(path: Path, confusion: Sequence[Sequence[int]], **record: Any) -> Path:
    """Give the bundle's fp32 variant the record of an evaluation with this confusion matrix."""
    labels = json.loads((path / MANIFEST).read_text(encoding="utf-8"))["labels"]
    return _note(path, accuracy={"labels": labels, "confusion": confusion, **record})


def _note(path: Path, **records: Any) -> Path:
    """Add records to the bundle's fp32 variant."""
    manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    manifest["variants"]["fp32"] |= records
    _write_json(path / MANIFEST, manifest)
    return path


def load(path: Path, precision: Precision | Literal["auto"] = "fp32", *, threads: int = 1) -> Model:
    """Load a bundle, of the tiny model or another one, as a CPU serves it."""
    return load_model(Bundle.open(path), device="cpu", precision=precision, threads=threads)


def calibrate(path: Path, **changes: Any) -> Path:
    """Give the bundle's fp32 variant a record of a calibration, with these changes."""
    figures = {"before": 0.2, "after": 0.1}
    record = {
        "method": "temperature",
        "temperature": 1.0,
        "loss": "log",
        "texts": 100,
        "sha256": "0123abc",
        "folds": 5,
        "ece": figures,
        "log_loss": figures,
    }
    return _note(path, calibration=record | changes)


def _write_json(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document), encoding="utf-8")


def _tokenizer() -> Tokenizer:
    vocabulary = {word: index for index, word in enumerate(WORDS)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))  # noqa: S106
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> $B </s>",
        special_tokens=[("<s>", 1), ("</s>", 2)],
    )
    return tokenizer


def _write_model(path: Path, outputs: int, additions: int) -> None:
    rows = [np.resize([*logits, 0.0], outputs) for logits in WORDS.values()]
    table = np.array(rows, dtype=np.float32)
    constants: dict[str, np.ndarray[Any, np.dtype[Any]]] = {
        "table": table,
        "zero": np.zeros(1, dtype=np.float32),
        "words": np.array([1], dtype=np.int64),
        "vector": np.array([2], dtype=np.int64),
    }
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["vectors"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.BOOL),
        helper.make_node("Unsqueeze", ["mask", "vector"], ["is_word"]),
        helper.make_node("Where", ["is_word", "vectors", "zero"], ["seen"]),
        helper.make_node("ReduceSum", ["seen", "words"], ["sum0"], keepdims=0),
        *(helper.make_node("Add", [f"sum{n}", "zero"], [f"sum{n + 1}"]) for n in range(additions)),
    ]
    nodes[-1].output[0] = "logits"
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
        for name in ("input_ids", "attention_mask")
    ]
    output = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", outputs])
    graph = helper.make_graph(
        nodes,
        "sum_of_words",
        inputs,
        [output],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, str(path))
