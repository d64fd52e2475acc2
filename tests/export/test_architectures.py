"""Every architecture of the table, as a tiny checkpoint with the files of a public one."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from model_export.checkpoint.architectures import ARCHITECTURES
from model_export.checkpoint.checkpoint import load_checkpoint
from tests.support.checkpoints import CORPUS
from tests.support.published import PUBLISHED, make_published


def test_each_architecture_has_the_example_that_it_names() -> None:
    """The tests below build every example of the table, of the right architecture."""
    examples = {known.example: model_type for model_type, known in ARCHITECTURES.items()}
    built = {name: layout.model_type for name, layout in PUBLISHED.items()}
    assert examples.items() <= built.items()


@pytest.mark.parametrize("name", PUBLISHED)
def test_ids_and_logits_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    """The loaded tokenizer gives the ids of transformers' slow tokenizer, where there is one, and
    the loaded model gives the logits of ``from_pretrained``."""
    path = make_published(tmp_path / name.split("/")[1], name)
    checkpoint = load_checkpoint(path)
    tokenizer = AutoTokenizer.from_pretrained(path, use_fast=False)
    model = AutoModelForSequenceClassification.from_pretrained(path).eval()
    seen = set()
    for text in CORPUS:
        expected = tokenizer(text, return_tensors="pt")
        ids = expected["input_ids"][0].tolist()
        assert checkpoint.tokenizer(text)["input_ids"] == ids
        with torch.inference_mode():
            logits = model(**expected).logits[0]
        torch.testing.assert_close(checkpoint.logits(ids), logits, rtol=0, atol=1e-5)
        seen.add(logits.argmax().item())
    assert checkpoint.labels
    assert len(seen) > 1
