"""The exact passes: the last layer for the first token only, and no padding outside attention."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx_ir.tape import Tape
from sentiment_export.graph.encoder_layers import find_layers
from sentiment_export.graph.linear import NotRecognised
from sentiment_export.graph.passes.padding import drop_padding, keep_first_token
from sentiment_service.engine.text.text_tokenizer import Encoding

from tests.support.checkpoints import HIDDEN_SIZE
from tests.support.model_export.graphs import random_encodings, run, session


def _shortened(plain: Path, *, padded: bool = True) -> ir.Model:
    model = ir.load(plain)
    keep_first_token(model)
    if not padded:
        drop_padding(model)
    return model


@pytest.mark.parametrize("optimised", [False, True])
def test_logits_are_the_same_to_the_last_bit(plain: Path, optimised: bool) -> None:
    """Both passes are exact, whether or not ONNX Runtime rewrites the graph afterwards."""
    before = session(ir.load(plain), optimised=optimised)
    passed = [session(_shortened(plain, padded=p), optimised=optimised) for p in (True, False)]
    for seed in range(10):
        encodings = random_encodings(seed)
        expected = run(before, encodings).tobytes()
        assert [run(after, encodings).tobytes() for after in passed] == [expected] * 2


def test_the_last_feed_forward_sees_one_row_a_text(plain: Path) -> None:
    """Layers before the last keep every token; the last one's output is [batch, 1, hidden]."""
    encodings = [Encoding.of(range(5, 5 + length)) for length in (4, 9, 7)]
    assert _feed_forward_shapes(ir.load(plain), encodings) == [(3, 9, 2 * HIDDEN_SIZE)] * 2
    assert _feed_forward_shapes(_shortened(plain), encodings) == [
        (3, 9, 2 * HIDDEN_SIZE),
        (3, 1, 2 * HIDDEN_SIZE),
    ]


def _feed_forward_shapes(model: ir.Model, encodings: list[Encoding]) -> list[tuple[int, ...]]:
    watched = [layer.intermediate.output for layer in find_layers(model.graph)]
    model.graph.outputs.extend(watched)
    return [array.shape for array in _all_outputs(session(model), encodings)[1:]]


def _all_outputs(opened: ort.InferenceSession, encodings: list[Encoding]) -> list[np.ndarray]:
    return [run(opened, encodings, output=output.name) for output in opened.get_outputs()]


def test_a_classifier_that_averages_all_tokens_is_refused(plain: Path) -> None:
    """Mean pooling reads every token of the last layer, so nothing of it may be left out."""
    model = ir.load(plain)
    last = find_layers(model.graph)[-1].output_norm
    tape = Tape()
    pooled = tape.op("ReduceMean", [last.outputs[0]])
    pooled.name = "pooled"
    model.graph.insert_after(last, tape.nodes)
    model.graph.outputs.append(pooled)
    with pytest.raises(NotRecognised, match=r"ReduceMean .*reads more of the last layer"):
        keep_first_token(model)


def test_a_classifier_that_reads_another_token_is_refused(plain: Path) -> None:
    """A Gather of token 1 is not a Gather of the first."""
    model = ir.load(plain)
    (use,) = find_layers(model.graph)[-1].output_norm.outputs[0].uses()
    second = ir.Value(name="second", const_value=ir.tensor(np.array(1, np.int64), name="second"))
    model.graph.register_initializer(second)
    use.node.replace_input_with(1, second)
    with pytest.raises(NotRecognised, match="reads more of the last layer"):
        keep_first_token(model)


# Padding


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
