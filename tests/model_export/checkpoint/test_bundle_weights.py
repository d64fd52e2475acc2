"""Weights read back from a bundle: those of its checkpoint, or what its int8 stands for."""

import json
from pathlib import Path

import numpy as np
import pytest
from sentiment_export.checkpoint.checkpoint import load_checkpoint
from sentiment_export.checkpoint.graph_file import options_of, write_checkpoint
from sentiment_export.export import export
from sentiment_service.engine.model.bundle import (
    EMBEDDED_BUNDLE,
    MANIFEST,
    Bundle,
    Precision,
    Variant,
)
from sentiment_service.errors import UserError

from tests.support.checkpoints import CORPUS, Exported
from tests.support.tiny_bundle import load, make_bundle


def _only(precision: Precision, bundle: Path) -> Bundle:
    opened = Bundle.open(bundle)
    variants: dict[Precision, Variant] = {precision: opened.manifest.variants["int8"]}
    manifest = opened.manifest.model_copy(update={"variants": variants})
    return Bundle(bundle, manifest, json.loads((bundle / "config.json").read_text()))


def test_fp32_gives_the_checkpoints_own_weights(made: Exported, tmp_path: Path) -> None:
    """To the last bit; of token types, only the row that is read."""
    bundle = Bundle.open(made.bundle)
    write_checkpoint(bundle, tmp_path)
    source, again = load_checkpoint(made.source), load_checkpoint(tmp_path, options_of(bundle))
    assert again.weights.keys() == source.weights.keys()
    for name, values in source.weights.items():
        rows = (
            slice(0, 1)
            if "token_type" in name and made.source.parent.name != "exported-bert"
            else slice(None)
        )
        np.testing.assert_array_equal(again.weights[name][rows], values[rows])
    assert (again.labels, again.max_tokens, again.preprocessing) == (
        source.labels,
        source.max_tokens,
        source.preprocessing,
    )


@pytest.mark.parametrize("which", ["exported", "embedded"])
def test_int8_gives_the_same_int8_again(roberta: Exported, tmp_path: Path, which: str) -> None:
    """Logits of an export of what was read back are the bundle's, to the last bit.

    The embedded bundle has the names of an earlier exporter.
    """
    bundle = _only("int8", roberta.bundle) if which == "exported" else Bundle.open(EMBEDDED_BUNDLE)
    (tmp_path / "checkpoint").mkdir()
    write_checkpoint(bundle, tmp_path / "checkpoint")
    checkpoint = load_checkpoint(tmp_path / "checkpoint", options_of(bundle))
    export(checkpoint, tmp_path / "again", precisions=["int8"], reference="fp32")
    before, after = load(bundle.path, "int8"), load(tmp_path / "again", "int8")
    encodings = [before.tokenizer.encode(text) for text in CORPUS]
    for found, expected in zip(after.infer(encodings), before.infer(encodings), strict=True):
        np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


def test_a_graph_of_another_maker_is_refused(tmp_path: Path) -> None:
    """One line names what is missing, and the checkpoint to give instead."""
    path = make_bundle(tmp_path / "tiny", model_type="bert", vocab_size=7)
    with pytest.raises(UserError, match=r"cannot be read back .* give the checkpoint, made by a"):
        write_checkpoint(Bundle.open(path), tmp_path)
    assert not (tmp_path / "model.safetensors").exists()
    assert (path / MANIFEST).exists()


def test_a_bundle_of_fp16_alone_is_refused(roberta: Exported, tmp_path: Path) -> None:
    """One line says what it holds, and the checkpoint to give instead."""
    says = r"bundle holds only fp16, .*: give the checkpoint, .*source"
    with pytest.raises(UserError, match=says):
        write_checkpoint(_only("fp16", roberta.bundle), tmp_path)
