"""The word embedding table in int8."""

import numpy as np
import onnx_ir as ir
import pytest
from safetensors.numpy import load_file
from sentiment_export.graph.passes.int8 import quantize_word_embedding
from sentiment_export.output import ONNX_FILES
from sentiment_service.errors import UserError

from tests.support.checkpoints import Exported
from tests.support.model_export.graphs import random_encodings, run, session


def _fp32(made: Exported) -> ir.Model:
    return ir.load(made.bundle / ONNX_FILES["fp32"])


def _words(made: Exported) -> np.ndarray:
    weights = load_file(made.source / "model.safetensors")
    return next(array for name, array in weights.items() if "word_embeddings" in name)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_word_table_it_is_and_rows_are_off_by_half_a_step(
    made: Exported, elsewhere: bool
) -> None:
    """Each row comes back within half its own step; from elsewhere, the words' table is found."""
    if elsewhere:
        model = _fp32(made)
        quantize_word_embedding(model)
    else:
        model = ir.load(made.bundle / ONNX_FILES["int8"])
    words = _words(made)
    tensors = [v.const_value for v in model.graph.initializers.values() if v.const_value]
    (table,) = [t for t in tensors if t.dtype == ir.DataType.INT8 and t.shape == words.shape]
    (scale,) = [t for t in tensors if t.shape == (len(words), 1)]
    step = scale.numpy().astype(np.float64)
    assert (np.abs(table.numpy() * step - words) <= step * 0.5001).all()
    assert not [t for t in tensors if t.dtype == ir.DataType.FLOAT and t.shape == words.shape]


def test_answers_hardly_move(made: Exported) -> None:
    """Logits that vary by 1 from text to text move by less than 0.1."""
    encodings, model = random_encodings(3), _fp32(made)
    before = run(session(model), encodings)
    quantize_word_embedding(model)
    assert 0 < np.abs(before - run(session(model), encodings)).max() < 0.1


def test_a_graph_that_looks_nothing_up_is_refused(made: Exported) -> None:
    """The message says that the architecture is what is wrong."""
    model = _fp32(made)
    for node in model.graph:
        if node.op_type == "Gather":
            node.op_type = "GatherElements"
    with pytest.raises(UserError, match="unsupported architecture: the graph has no embedding"):
        quantize_word_embedding(model)
