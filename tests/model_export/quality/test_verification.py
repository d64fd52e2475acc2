"""Verification: exported variants are compared with the PyTorch checkpoint."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from sentiment_export.checkpoint.checkpoint import load_checkpoint
from sentiment_export.quality.verification import (
    LABEL_AGREEMENT,
    LONGEST,
    Reference,
    _encodings,
    verify,
)
from sentiment_service.engine.loading import load_model
from sentiment_service.engine.model.bundle import Bundle, Parity, Precision
from sentiment_service.engine.model.model import TOLERANCE, Logits, Model
from sentiment_service.engine.text.text_tokenizer import Encoding, PairTokenizer
from sentiment_service.errors import InferenceFailed, UserError

from tests.support.checkpoints import MAX_TOKENS, PRECISIONS, Exported, exported


def _verify(model: Model, reference: Reference) -> Parity:
    parity, _ = verify(model, reference)
    return parity


Results = list[Logits | InferenceFailed]
Change = Callable[[Sequence[Encoding], Results], Results]


class _Changed:
    """A model whose results are changed before they are returned."""

    def __init__(self, model: Model, change: Change) -> None:
        self._model, self._change = model, change

    def infer(self, encodings: Sequence[Encoding]) -> Results:
        """The changed results."""
        return self._change(encodings, self._model.infer(encodings))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def _changed(model: Model, change: Change) -> Model:
    return cast(Model, _Changed(model, change))


@pytest.fixture(scope="module")
def reference(roberta: Exported) -> Reference:
    """The checkpoint's logits in PyTorch."""
    return Reference.of_pytorch(load_checkpoint(roberta.source), roberta.model("fp32"))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_faithful_variant_passes(
    roberta: Exported, reference: Reference, precision: Precision
) -> None:
    """The figures of the manifest are its real ones, within what is allowed."""
    parity = _verify(roberta.model(precision), reference)
    assert 0 < parity.max_abs_logit_diff <= TOLERANCE[precision]
    assert LABEL_AGREEMENT[precision] <= parity.label_agreement <= 1
    assert parity.samples >= 40


def test_pairs_are_compared_where_the_model_takes_them(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Pairs add to the samples; a model that forgets their token types is refused."""
    bert = exported(tmp_path_factory.getbasetemp(), "bert")
    checkpoint = load_checkpoint(bert.source)
    alone = Reference.of_pytorch(checkpoint, bert.model("fp32"))
    bundle = Bundle.open(bert.bundle)
    bundle.manifest = bundle.manifest.model_copy(update={"text_pairs": True})
    model = load_model(bundle, device="cpu", precision="fp32", threads=1)
    pairs = Reference.of_pytorch(checkpoint, model)
    assert _verify(model, pairs).samples > _verify(bert.model("fp32"), alone).samples
    model.tokenizer.pairs = PairTokenizer(
        model.tokenizer.library, max_tokens=MAX_TOKENS, stride=0, has_types=False
    )
    with pytest.raises(UserError, match="differs too much"):
        _verify(model, Reference.of_pytorch(checkpoint, model))


def test_texts_run_from_one_word_to_beyond_the_limit(
    roberta: Exported, reference: Reference
) -> None:
    """Alone and in padded batches, the shortest and the longest possible are among them."""
    seen: list[list[Encoding]] = []

    def watched(encodings: Sequence[Encoding], results: Results) -> Results:
        seen.append(list(encodings))
        return results

    _verify(_changed(roberta.model("fp32"), watched), reference)
    encodings = [encoding for batch in seen for encoding in batch]
    assert min(map(len, encodings)) <= 5
    assert max(map(len, encodings)) == MAX_TOKENS
    assert any(encoding.truncated for encoding in encodings)
    assert {len(batch) for batch in seen} >= {1, 4}
    assert any(len({len(encoding) for encoding in batch}) > 1 for batch in seen)


def test_very_long_texts_are_cut_to_what_memory_allows() -> None:
    """A model of 8,192 tokens is compared on at most 1,024, and still on many lengths."""
    tokenizer = SimpleNamespace(encode=lambda text: Encoding.of(range(min(len(text) // 4, 8192))))
    model = SimpleNamespace(max_tokens=8192, tokenizer=tokenizer, text_pairs=False)
    lengths = {len(encoding) for encoding in _encodings(cast(Model, model))}
    assert max(lengths) == LONGEST == 1024
    assert lengths >= {3, 4, 8, 16, 32, 64, 128}


def _wrong(change: float, *, batched_only: bool = False) -> Change:
    def wrong(encodings: Sequence[Encoding], results: Results) -> Results:
        if batched_only and len(encodings) == 1:
            return results
        last = results[-1]
        assert not isinstance(last, InferenceFailed)
        return [*results[:-1], last + np.array([change, 0, 0], np.float32)]

    return wrong


@pytest.mark.parametrize("batched_only", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_variant_that_departs_is_refused_by_name(
    roberta: Exported, reference: Reference, precision: Precision, batched_only: bool
) -> None:
    """Logits beyond the tolerance, alone or only in batches, end the export."""
    wrong = _wrong(TOLERANCE[precision] * 2, batched_only=batched_only)
    with pytest.raises(UserError, match=f"the {precision} model differs too much .* by up"):
        _verify(_changed(roberta.model(precision), wrong), reference)


def _of_rows(change: Callable[[Logits], Logits]) -> Change:
    return lambda _, results: [
        change(row) for row in results if not isinstance(row, InferenceFailed)
    ]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_large_logits_have_a_larger_tolerance(
    roberta: Exported, reference: Reference, precision: Precision
) -> None:
    """A hundred times the logits may differ by a hundred times as much, if the labels agree."""
    larger = _changed(roberta.model(precision), _of_rows(lambda row: 100 * row))
    parity = _verify(larger, replace(reference, logits=100 * reference.logits))
    assert precision == "fp32" or parity.max_abs_logit_diff > TOLERANCE[precision]


@pytest.mark.parametrize("labels", [1, 3])
def test_each_label_of_a_multi_label_model_is_a_decision(
    roberta: Exported, reference: Reference, monkeypatch: pytest.MonkeyPatch, labels: int
) -> None:
    """Each label counts, as being over 0.5 or not: the best one, any other, or the only one."""
    signs = np.ones(labels, np.float32)
    fewer = replace(reference, logits=reference.logits[:, :labels])
    model = roberta.model("fp32")
    model.multi_label = True
    first_labels = _changed(model, _of_rows(lambda row: row[:labels] * signs))
    assert _verify(first_labels, fewer).label_agreement == 1.0
    monkeypatch.setitem(TOLERANCE, "fp32", 1e6)
    signs[0] = -1
    with pytest.raises(UserError, match=r"label agreement 0\.\d+"):
        _verify(first_labels, fewer)


def test_labels_that_disagree_are_refused(
    roberta: Exported, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small differences do not excuse another label."""
    monkeypatch.setitem(TOLERANCE, "fp32", 1e6)
    with pytest.raises(UserError, match=r"label agreement 0\.\d+ .*\(at least 1\.0 is required\)"):
        _verify(_changed(roberta.model("fp32"), _wrong(100.0)), reference)


def test_logits_that_are_no_numbers_are_refused(roberta: Exported, reference: Reference) -> None:
    """A text that the served model fails on is no parity."""
    failed = InferenceFailed("the model gave no finite logits for this text")
    model = _changed(roberta.model("fp32"), lambda _, results: [failed] * len(results))
    with pytest.raises(UserError, match=r"exported model fails on a text: .*no finite logits"):
        _verify(model, reference)
