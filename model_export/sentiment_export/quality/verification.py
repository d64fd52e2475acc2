"""Compares an exported variant with its reference on real texts: PyTorch, fp32 or the source.

``layer_parity`` names the first module that differs from PyTorch's, on one text. Each node is named
after its module (``/encoder/layer.0/output/dense/Add``), whose output the last of them has.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise, starmap
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from sentiment_service.engine.model.bundle import Parity, Precision, ReferenceKind
from sentiment_service.engine.model.device import CPU
from sentiment_service.engine.model.model import (
    DECIDED_BY,
    TEXTS,
    Logits,
    Model,
    decided,
    tolerance,
)
from sentiment_service.engine.model.sessions import flat_feeds, for_cpu, loading_error
from sentiment_service.engine.text.text_tokenizer import Encoding, TextPair
from sentiment_service.errors import InferenceFailed, UserError

from sentiment_export.checkpoint.checkpoint import Checkpoint
from sentiment_export.quality.evaluation import batches

# The share of decisions that must agree. Decisions count only where the reference is decided.
LABEL_AGREEMENT: dict[Precision, float] = {"fp32": 1.0, "fp16": 1.0, "int8": 0.95}
# ModernBERT takes 8,192 tokens. PyTorch needs memory for the square of that, several times over.
LONGEST = 1024
# How far a score may be over 1. Logits are below 0, too: training leaves their sum where it was.
ROUNDED = 1e-4
NAMES: dict[ReferenceKind, str] = {
    "pytorch": "PyTorch",
    "fp32": "its fp32 graph",
    "onnx": "the source's graph",
}


class DiffersTooMuch(UserError):
    """A variant differs from the reference by more than its tolerance."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What the variants of a checkpoint are compared with: texts of all lengths and their logits.

    They have from one token to more than ``max_tokens``. ``model`` is any variant, whose tokenizer
    is used.
    """

    kind: ReferenceKind
    encodings: list[Encoding]
    logits: NDArray[np.float32]

    @classmethod
    def of_pytorch(cls, checkpoint: Checkpoint, model: Model) -> "Reference":
        encodings, pairs = _encodings(model), _pairs(model)
        single = encodings[: len(encodings) - len(pairs)]
        logits = [checkpoint.logits(encoding.ids) for encoding in single]
        logits += map(checkpoint.pair_logits, pairs)
        return cls("pytorch", encodings, np.stack(logits))

    @classmethod
    def of_graph(cls, model: Model) -> "Reference":
        """The logits of the fp32 variant, which is compared with nothing."""
        encodings = _encodings(model)
        logits = [logits for one in encodings for logits in _computed(model, [one])]
        return cls("fp32", encodings, np.stack(logits))

    @classmethod
    def of_source(cls, session: ort.InferenceSession, model: Model) -> "Reference":
        """The logits of a source's own graph, a text at a time."""
        encodings = _encodings(model)
        rows = []
        for encoding in encodings:
            try:
                (logits,) = session.run(None, model.feeds([encoding]))
            except Exception as error:  # onnxruntime's exceptions share no base class
                failure = (
                    f"the source's graph fails on a text of {len(encoding)} tokens (if it has "
                    "positions for fewer, give their number to --max-tokens)"
                )
                raise loading_error(error, failure) from error
            rows += [*np.asarray(logits, np.float32)]
        if all(((row >= 0) & (row <= 1 + ROUNDED)).all() for row in rows):
            raise UserError(
                "the source's graph gives scores, not logits: all are from 0 to 1, and the service "
                "would compute them a second time; export it again without Softmax or Sigmoid"
            )
        return cls("onnx", encodings, np.stack(rows))


def verify(model: Model, reference: Reference, *, coarse: bool = False) -> tuple[Parity, bool]:
    """Check a loaded variant against a reference, with each text alone and in padded batches.

    Says also whether each text had the same bits alone and in its batch. A ``coarse`` variant may
    differ in batches as its own source does.
    """
    encodings = reference.encodings
    alone = [logits for one in encodings for logits in _computed(model, [one])]
    batched = [logits for batch in batches(encodings, 4) for logits in _computed(model, batch)]
    found = np.stack([*alone, *batched]).astype(np.float32)
    expected = np.concatenate([reference.logits, reference.logits])
    agrees = _decisions(found, model) == _decisions(expected, model)
    name = NAMES[reference.kind]
    parity = Parity(
        samples=len(found),
        max_abs_logit_diff=float(np.abs(found - expected).max()),
        label_agreement=float(agrees.mean()),
    )
    certain = np.abs(expected) > DECIDED_BY if model.multi_label else decided(expected)
    agreement = float(agrees[certain].mean()) if certain.any() else 1.0
    largest = float(np.abs(expected).max())
    allowed = tolerance(model.precision, expected)
    least = LABEL_AGREEMENT[model.precision]
    same = bool(np.array_equal(alone, batched))
    if not coarse and (not parity.max_abs_logit_diff <= allowed or agreement < least):
        raise DiffersTooMuch(
            f"the {model.precision} model differs too much from {name}: logits by "
            f"up to {parity.max_abs_logit_diff:.2g} (allowed: {allowed:.2g} for logits of up to "
            f"{largest:.2g}), label agreement {agreement:.3f} on texts where {name} is "
            f"decided (at least {least} is required)"
        )
    return parity, same


def _decisions(logits: NDArray[np.float32], model: Model) -> NDArray[Any]:
    """What logits [texts, labels] decide: the best label, or which labels have a score over 0.5."""
    return logits > 0 if model.multi_label else logits.argmax(1)


def _encodings(model: Model) -> list[Encoding]:
    """Real texts, a long one cut to 3, 4, 8, ... 128 and at most ``LONGEST`` tokens, and pairs."""
    paragraph = " ".join(TEXTS)
    encodings = [model.tokenizer.encode(text) for text in (*TEXTS, paragraph[:400])]
    # Longer than max_tokens, so cut to exactly that.
    whole = model.tokenizer.encode(" ".join([paragraph] * (model.max_tokens // 100 + 1)))
    sizes = [3, *(2**power for power in range(2, 8)), LONGEST]
    cut = [size for size in sizes if size < len(whole)]
    encodings += [Encoding.of([*whole.ids[: size - 1], whole.ids[-1]]) for size in cut]
    encodings += [whole] * (len(whole) <= LONGEST)
    return [*encodings, *map(model.tokenizer.encode, _pairs(model))]


def _pairs(model: Model) -> list[TextPair]:
    if not model.text_pairs:
        return []
    return [*starmap(TextPair, pairwise(TEXTS)), TextPair(" ".join(TEXTS * 30), TEXTS[-1])]


def _computed(model: Model, batch: Sequence[Encoding]) -> Iterator[Logits]:
    try:
        results = model.infer(batch)
    except Exception as error:  # onnxruntime's exceptions share no base class
        failure = (
            f"the exported model fails on a batch of {len(batch)} (if the source's graph does, "
            "export it again with dynamic axes for batch and sequence, or at another opset)"
        )
        raise loading_error(error, failure) from error
    for result in results:
        if isinstance(result, InferenceFailed):
            raise UserError(f"the exported model fails on a text: {result.detail}")
        yield result


# The difference allowed, relative to the largest value in the module's output. The largest
# measured on random models of 2 and 12 layers: fp32 7e-6, fp16 0.006, int8 0.11 (its logits 0.2).
LAYER_TOLERANCE: dict[Precision, float] = {"fp32": 1e-4, "fp16": 0.02, "int8": 0.25}
# Logits near 0 are no more exact than others, so their largest value counts as at least this.
SMALLEST_LOGIT = 2.0
# The int8 pass drops the key's bias and moves the value's bias to the attention output. The
# result is right, but these two modules differ from PyTorch's.
NOT_IN_INT8 = (".key", ".value", ".k_lin", ".v_lin")  # the last two: DistilBERT
TINY = float(np.finfo(np.float32).tiny)  # avoids dividing by an output of zeros


Differences = dict[str, tuple[float, float]]  # of a module's output: largest, and relative


def first_wrong(precision: Precision, differences: Differences) -> str | None:
    """The first module beyond the tolerance; later ones compute from its wrong output."""
    # "not <=" instead of ">", so that a NaN counts as beyond.
    allowed = LAYER_TOLERANCE[precision]
    return next((name for name, (_, size) in differences.items() if not size <= allowed), None)


def layer_table(precision: Precision, differences: Differences) -> str:
    width = max(map(len, differences))
    lines = [f"{precision + ' module':{width}}  max abs diff  relative"]
    lines += [
        f"{module:{width}}  {largest:12.3g}  {relative:8.2g}"
        for module, (largest, relative) in differences.items()
    ]
    wrong = first_wrong(precision, differences) or "none"
    return "\n".join([*lines, f"first module beyond the tolerance: {wrong}"])


def layer_parity(
    checkpoint: Checkpoint, onnx_path: Path, precision: Precision, ids: list[int]
) -> Differences:
    """Compare every module that both have on one text's ids, in the order of PyTorch's calls."""
    import onnx_ir as ir

    expected = _module_outputs(checkpoint, ids)
    if precision == "int8":
        expected = {m: array for m, array in expected.items() if not m.endswith(NOT_IN_INT8)}
    model = ir.load(onnx_path)
    # The last value that each module computes. Modules that the graph does not have, such as
    # dropout, are not compared.
    scopes = (((node.name or "").rpartition("/")[0], node.outputs[0]) for node in model.graph)
    named = {scope.strip("/").replace("/", "."): value for scope, value in scopes}
    values = {module: named[module] for module in expected if module in named}
    if not values:
        raise UserError(f"no value in {onnx_path} is named after a module of the checkpoint")
    logits = next(reversed(expected))
    found = _run(model, list(values.values()), ids)
    return {
        module: _difference(expected[module], array, SMALLEST_LOGIT if module == logits else TINY)
        for module, array in zip(values, found, strict=True)
    }


def _module_outputs(checkpoint: Checkpoint, ids: list[int]) -> dict[str, np.ndarray]:
    """Output of each module without submodules, in the order of the calls."""
    import torch

    outputs: dict[str, np.ndarray] = {}
    with ExitStack() as hooks:
        for name, module in checkpoint.model.named_modules():
            if not any(module.children()):

                def record(_: Any, __: Any, output: Any, name: str = name) -> None:
                    # ModernBERT's rotary embeddings are a pair. ALBERT calls its one layer many
                    # times; in the graph, the first call has its name.
                    if isinstance(output, torch.Tensor):
                        outputs.setdefault(name, output.numpy().copy())

                hooks.callback(module.register_forward_hook(record).remove)
        checkpoint.logits(ids)
    return outputs


def _run(model: Any, values: list[Any], ids: list[int]) -> list[np.ndarray]:
    """The values for one text, computed without graph optimisations."""
    import onnx_ir as ir

    graph = model.graph
    graph.outputs.extend(value for value in values if not value.is_graph_output())
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    feeds: dict[str, np.ndarray] = {
        "input_ids": np.array([ids], np.int64),
        "attention_mask": np.ones((1, len(ids)), np.int64),
        "token_type_ids": np.zeros((1, len(ids)), np.int64),
    }
    if any(value.name == "token_offset" for value in graph.inputs):
        flat_ids, length, typed = (np.array(n, np.int32) for n in (ids, [len(ids)], [0]))
        feeds |= flat_feeds(flat_ids, length, typed, model.metadata_props)
    with tempfile.TemporaryDirectory(prefix="layer-parity-") as directory:
        path = Path(directory) / "model.onnx"
        # The weights go into a separate file, which a graph of over 2 GB needs.
        ir.save(model, path, external_data="model.onnx.data")
        folder = "session.model_external_initializers_file_folder_path"
        options.add_session_config_entry(folder, directory)
        session = ort.InferenceSession(for_cpu(path), options, providers=[CPU])
        wanted = {node.name: feeds[node.name] for node in session.get_inputs()}
        return [np.asarray(array) for array in session.run([v.name for v in values], wanted)]


def _difference(expected: np.ndarray, found: np.ndarray, least: float) -> tuple[float, float]:
    """Compare token by token; the last layer may have only its first one or two tokens.

    ``least`` is the smallest divisor of the relative difference.
    """
    width = expected.shape[-1]
    rows = found.reshape(-1, width).astype(np.float64)
    reference = expected.reshape(-1, width)[: len(rows)].astype(np.float64)
    largest = float(np.abs(rows[: len(reference)] - reference).max())
    return largest, largest / max(float(np.abs(reference).max()), least)
