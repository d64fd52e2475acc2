"""Compares an exported variant with its reference on real texts: PyTorch, fp32 or the source."""

from dataclasses import dataclass
from itertools import pairwise, starmap
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from sentiment_service.engine.model.bundle import Parity, Precision, ReferenceKind
from sentiment_service.engine.model.model import (
    DECIDED_BY,
    TEXTS,
    Logits,
    Model,
    decided,
    tolerance,
)
from sentiment_service.engine.model.sessions import loading_error
from sentiment_service.engine.text.text_tokenizer import Encoding, TextPair
from sentiment_service.errors import InferenceFailed, UserError

from sentiment_export.checkpoint.checkpoint import Checkpoint
from sentiment_export.quality.evaluation import batches

# The share of decisions that must agree. Decisions count only where the reference is decided.
LABEL_AGREEMENT: dict[Precision, float] = {"fp32": 1.0, "fp16": 1.0, "int8": 0.95}
# ModernBERT takes 8,192 tokens. PyTorch needs memory for the square of that, several times over.
LONGEST = 1024
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

    ``kind`` says whose logits they are: PyTorch's, those of the bundle's own fp32 graph, or those
    of the ONNX graph that is the source.
    """

    kind: ReferenceKind
    encodings: list[Encoding]
    logits: NDArray[np.float32]

    @classmethod
    def of_pytorch(cls, checkpoint: Checkpoint, model: Model) -> "Reference":
        """The checkpoint's logits in PyTorch. ``model`` is any variant; its tokenizer is used."""
        encodings, pairs = _encodings(model), _pairs(model)
        logits = [checkpoint.logits(encoding.ids) for encoding in encodings]
        logits += [checkpoint.pair_logits(pair) for pair in pairs]
        encodings += [model.tokenizer.encode(pair) for pair in pairs]
        return cls("pytorch", encodings, np.stack(logits))

    @classmethod
    def of_graph(cls, model: Model) -> "Reference":
        """The logits of the fp32 variant, which is compared with nothing.

        Raises:
            UserError: it fails on a text.
        """
        encodings = [*_encodings(model), *map(model.tokenizer.encode, _pairs(model))]
        logits = [_logits(result) for one in encodings for result in model.infer([one])]
        return cls("fp32", encodings, np.stack(logits))

    @classmethod
    def of_source(cls, session: ort.InferenceSession, model: Model) -> "Reference":
        """The logits of a source's own graph, a text at a time. ``model`` is any variant of it.

        Raises:
            UserError: the graph fails on a text.
        """
        encodings = [*_encodings(model), *map(model.tokenizer.encode, _pairs(model))]
        rows = []
        for encoding in encodings:
            try:
                (logits,) = session.run(None, model.feeds([encoding]))
            except Exception as error:  # onnxruntime's exceptions share no base class
                failure = f"the source's graph fails on a text of {len(encoding)} tokens"
                raise loading_error(error, failure) from error
            rows += [*np.asarray(logits, np.float32)]
        return cls("onnx", encodings, np.stack(rows))


def verify(model: Model, reference: Reference, *, coarse: bool = False) -> tuple[Parity, bool]:
    """Check a loaded variant against a reference, with each text alone and in padded batches.

    The texts have from one token to more than ``max_tokens``. If the model takes pairs of texts,
    pairs are compared as well. A ``coarse`` variant may differ in batches as its own source does.

    Returns:
        The parity, and whether each text had the same bits alone and in its batch.

    Raises:
        DiffersTooMuch: the variant differs from the reference by more than its tolerance.
        UserError: it fails on a text.
    """
    encodings = reference.encodings
    alone = [_logits(result) for one in encodings for result in model.infer([one])]
    batched = [_logits(result) for batch in batches(encodings, 4) for result in model.infer(batch)]
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
    """Real texts, and one long text cut to 3, 4, 8, ... 128 and at most ``LONGEST`` tokens."""
    paragraph = " ".join(TEXTS)
    repeated = " ".join([paragraph] * (model.max_tokens // 100 + 1))
    encodings = [model.tokenizer.encode(text) for text in (*TEXTS, paragraph[:400], paragraph)]
    ids = model.tokenizer.encode(repeated).ids  # longer than max_tokens, so cut to exactly that
    longest = min(len(ids), LONGEST)
    sizes = [3, *(2**power for power in range(2, 8) if 2**power < longest), longest - 1, longest]
    return encodings + [Encoding.of([*ids[: size - 1], ids[-1]]) for size in sizes]


def _pairs(model: Model) -> list[TextPair]:
    """Real pairs and a long one, if the model takes pairs."""
    if not model.text_pairs:
        return []
    return [*starmap(TextPair, pairwise(TEXTS)), TextPair(" ".join(TEXTS * 30), TEXTS[-1])]


def _logits(result: Logits | InferenceFailed) -> Logits:
    if isinstance(result, InferenceFailed):
        raise UserError(f"the exported model fails on a text: {result.detail}")
    return result
