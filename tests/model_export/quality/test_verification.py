"""Verification: exported variants are compared with the PyTorch checkpoint."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from sentiment_export.checkpoint.checkpoint import Checkpoint, load_checkpoint
from sentiment_export.quality.verification import (
    LABEL_AGREEMENT,
    LONGEST,
    Reference,
    _encodings,
    verify,
)
from sentiment_service.engine.loading import load_model
from sentiment_service.engine.model.bundle import Bundle, Parity, Precision
from sentiment_service.engine.model.model import Logits, Model
from sentiment_service.engine.model.parity import TOLERANCE
from sentiment_service.engine.text.pairs import PairTokenizer
from sentiment_service.engine.text.text_tokenizer import Encoding
from sentiment_service.errors import InferenceFailed, UserError

from tests.support.checkpoints import MAX_TOKENS, PRECISIONS, Exported, exported


def _verify(model: Model, checkpoint: Checkpoint) -> Parity:
    parity, _ = verify(model, Reference.of_pytorch(checkpoint, model))
    return parity


Infer = list[Logits | InferenceFailed]


@pytest.fixture(scope="module")
def checkpoint(roberta: Exported) -> Checkpoint:
    """The reference."""
    return load_checkpoint(roberta.source)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_faithful_variant_passes(
    roberta: Exported, checkpoint: Checkpoint, precision: Precision
) -> None:
    """The figures of the manifest are its real ones, within what is allowed."""
    parity = _verify(roberta.model(precision), checkpoint)
    assert 0 < parity.max_abs_logit_diff <= TOLERANCE[precision]
    assert LABEL_AGREEMENT[precision] <= parity.label_agreement <= 1
    assert parity.samples >= 40


def test_pairs_are_compared_where_the_model_takes_them(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Pairs add to the samples; a model that forgets their token types is refused."""
    bert = exported(tmp_path_factory.getbasetemp(), "bert")
    checkpoint = load_checkpoint(bert.source)
    bundle = Bundle.open(bert.bundle)
    bundle.manifest = bundle.manifest.model_copy(update={"text_pairs": True})
    model = load_model(bundle, device="cpu", precision="fp32", threads=1)
    assert _verify(model, checkpoint).samples > _verify(bert.model("fp32"), checkpoint).samples
    model.tokenizer.pairs = PairTokenizer(
        model.tokenizer.library, max_tokens=MAX_TOKENS, stride=0, has_types=False
    )
    with pytest.raises(UserError, match="differs too much"):
        _verify(model, checkpoint)


def test_texts_run_from_one_word_to_beyond_the_limit(
    roberta: Exported, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone and in padded batches, the shortest and the longest possible are among them."""
    seen: list[list[Encoding]] = []
    infer = Model.infer

    def watched(model: Model, encodings: Sequence[Encoding]) -> Infer:
        seen.append(list(encodings))
        return infer(model, encodings)

    monkeypatch.setattr(Model, "infer", watched)
    _verify(roberta.model("fp32"), checkpoint)
    encodings = [encoding for batch in seen for encoding in batch]
    assert min(map(len, encodings)) <= 5
    assert max(map(len, encodings)) == MAX_TOKENS
    assert any(encoding.truncated for encoding in encodings)
    assert {len(batch) for batch in seen} >= {1, 4}
    assert any(len({len(encoding) for encoding in batch}) > 1 for batch in seen)


def test_very_long_texts_are_cut_to_what_memory_allows() -> None:
    """A model of 8,192 tokens is compared on at most 1,024, and still on many lengths."""
    tokenizer = SimpleNamespace(encode=lambda text: Encoding.of(range(min(len(text) // 4, 8192))))
    model = SimpleNamespace(max_tokens=8192, tokenizer=tokenizer)
    lengths = {len(encoding) for encoding in _encodings(cast(Model, model))}
    assert max(lengths) == LONGEST == 1024
    assert lengths >= {3, 4, 8, 16, 32, 64, 128, 1023}


def _wrong(change: float, *, batched_only: bool = False) -> object:
    infer = Model.infer

    def wrong(model: Model, encodings: Sequence[Encoding]) -> Infer:
        results = infer(model, encodings)
        if batched_only and len(encodings) == 1:
            return results
        last = results[-1]
        assert not isinstance(last, InferenceFailed)
        return [*results[:-1], last + np.array([change, 0, 0], np.float32)]

    return wrong


@pytest.mark.parametrize("batched_only", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_variant_that_departs_is_refused_by_name(
    roberta: Exported,
    checkpoint: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
    precision: Precision,
    batched_only: bool,
) -> None:
    """Logits beyond the tolerance, alone or only in batches, end the export."""
    model = roberta.model(precision)
    monkeypatch.setattr(Model, "infer", _wrong(TOLERANCE[precision] * 2, batched_only=batched_only))
    with pytest.raises(UserError, match=f"the {precision} model differs too much .* by up"):
        _verify(model, checkpoint)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_large_logits_have_a_larger_tolerance(
    roberta: Exported, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, precision: Precision
) -> None:
    """A hundred times the logits may differ by a hundred times as much, if the labels agree."""
    logits, infer = Checkpoint.logits, Model.infer
    monkeypatch.setattr(Checkpoint, "logits", lambda self, ids: 100 * logits(self, ids))

    def larger(model: Model, encodings: Sequence[Encoding]) -> Infer:
        rows = infer(model, encodings)
        return [100 * row for row in rows if not isinstance(row, InferenceFailed)]

    monkeypatch.setattr(Model, "infer", larger)
    parity = _verify(roberta.model(precision), checkpoint)
    assert precision == "fp32" or parity.max_abs_logit_diff > TOLERANCE[precision]


@pytest.mark.parametrize("labels", [1, 3])
def test_each_label_of_a_multi_label_model_is_a_decision(
    roberta: Exported, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, labels: int
) -> None:
    """Each label counts, as being over 0.5 or not: the best one, any other, or the only one."""
    logits, infer = Checkpoint.logits, Model.infer
    monkeypatch.setattr(Checkpoint, "logits", lambda self, ids: logits(self, ids)[:labels])
    signs = np.ones(labels, np.float32)

    def first_labels(model: Model, encodings: Sequence[Encoding]) -> Infer:
        rows = infer(model, encodings)
        return [row[:labels] * signs for row in rows if not isinstance(row, InferenceFailed)]

    monkeypatch.setattr(Model, "infer", first_labels)
    model = roberta.model("fp32")
    model.multi_label = True
    assert _verify(model, checkpoint).label_agreement == 1.0
    monkeypatch.setitem(TOLERANCE, "fp32", 1e6)
    signs[0] = -1
    with pytest.raises(UserError, match=r"label agreement 0\.\d+"):
        _verify(model, checkpoint)


def test_labels_that_disagree_are_refused(
    roberta: Exported, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small differences do not excuse another label."""
    monkeypatch.setitem(TOLERANCE, "fp32", 1e6)
    model = roberta.model("fp32")
    monkeypatch.setattr(Model, "infer", _wrong(100.0))
    with pytest.raises(UserError, match=r"label agreement 0\.\d+ .*\(at least 1\.0 is required\)"):
        _verify(model, checkpoint)


def test_logits_that_are_no_numbers_are_refused(
    roberta: Exported, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text that the served model fails on is no parity."""
    failed = InferenceFailed("the model gave no finite logits for this text")
    model = roberta.model("fp32")
    monkeypatch.setattr(Model, "infer", lambda model, encodings: [failed] * len(encodings))
    with pytest.raises(UserError, match=r"exported model fails on a text: .*no finite logits"):
        _verify(model, checkpoint)
