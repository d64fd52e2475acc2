"""Dropping padding outside attention: the same logits from fewer rows."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from model_export.graph.encoder_layers import find_layers
from model_export.graph.linear import NotRecognised
from model_export.graph.passes.first_token import keep_first_token
from model_export.graph.passes.padding import drop_padding
from tests.support.model_export.graphs import random_encodings, run, session


def _shortened(plain: Path, *, padded: bool) -> ir.Model:
    model = ir.load(plain)
    keep_first_token(model)
    if not padded:
        drop_padding(model)
    return model


@pytest.mark.parametrize("optimised", [False, True])
def test_logits_are_the_same_to_the_last_bit(plain: Path, optimised: bool) -> None:
    """The pass moves numbers and computes none anew, however ONNX Runtime fuses the graph."""
    before = session(_shortened(plain, padded=True), optimised=optimised)
    after = session(_shortened(plain, padded=False), optimised=optimised)
    for seed in range(10):
        encodings = random_encodings(seed)
        assert run(before, encodings).tobytes() == run(after, encodings).tobytes()


@pytest.mark.parametrize(
    "mask", [[[1, 1, 0, 1, 0, 1], [1, 1, 1, 1, 1, 1]], [[1, 1, 1, 0, 0, 0], [1, 0, 1, 1, 1, 0]]]
)
def test_padding_may_stand_anywhere_behind_the_first_token(
    plain: Path, mask: list[list[int]]
) -> None:
    """Not only at the end: whatever the mask hides is left out, and the answer is the same."""
    feeds = {
        "input_ids": np.array([[5, 17, 9, 30, 22, 6], [5, 41, 8, 19, 33, 6]]),
        "attention_mask": np.array(mask),
        "token_type_ids": np.zeros((2, 6), np.int64),
    }
    answers = []
    for padded in (True, False):
        opened = session(_shortened(plain, padded=padded))
        wanted = {node.name: feeds[node.name] for node in opened.get_inputs()}
        answers.append(np.asarray(opened.run(None, wanted)[0]))
    np.testing.assert_allclose(answers[0], answers[1], rtol=1e-5, atol=1e-6)


def test_a_graph_without_a_mask_is_refused(plain: Path) -> None:
    """What is padding cannot be told from it."""
    model = _shortened(plain, padded=True)
    next(i for i in model.graph.inputs if i.name == "attention_mask").name = "mask"
    with pytest.raises(NotRecognised, match="no attention_mask"):
        drop_padding(model)


def test_heads_that_are_split_otherwise_are_refused(plain: Path) -> None:
    """A Transpose of another order is not replaced by a Gather that would be wrong."""
    model = _shortened(plain, padded=True)
    (use,) = find_layers(model.graph)[0].head_reshapes[2].outputs[0].uses()
    use.node.attributes["perm"] = ir.AttrInt64s("perm", [0, 2, 1, 3][::-1])
    with pytest.raises(NotRecognised, match="does not split heads"):
        drop_padding(model)
