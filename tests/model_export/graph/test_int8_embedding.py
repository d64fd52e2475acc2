"""The word embedding table in int8."""

import numpy as np
import onnx_ir as ir
import pytest
from safetensors.numpy import load_file
from sentiment_export.graph.passes.int8 import quantize_word_embedding
from sentiment_service.errors import UserError

from tests.support.checkpoints import Exported
from tests.support.model_export.graphs import random_encodings, run, session


def test_the_word_table_it_is_and_rows_are_off_by_half_a_step(made: Exported) -> None:
    """Of all tables the words' is taken; each row comes back within half its own step."""
    model = ir.load(made.plain)
    quantize_word_embedding(model)
    initializers = model.graph.initializers
    table = initializers["int8.word_embedding"].const_value
    scale = initializers["int8.word_embedding_scale"].const_value
    assert table is not None
    assert scale is not None
    assert table.dtype == ir.DataType.INT8
    weights = load_file(made.source / "model.safetensors")
    words = next(array for name, array in weights.items() if "word_embeddings" in name)
    step = scale.numpy().astype(np.float64)
    assert step.shape == (len(words), 1)
    assert (np.abs(table.numpy() * step - words) <= step * 0.5001).all()
    assert not [name for name in initializers if "word_embeddings" in name]


def test_answers_hardly_move(made: Exported) -> None:
    """Logits that vary by 1 from text to text move by less than 0.1."""
    encodings, model = random_encodings(3), ir.load(made.plain)
    before = run(session(model), encodings)
    quantize_word_embedding(model)
    assert 0 < np.abs(before - run(session(model), encodings)).max() < 0.1


def test_a_graph_that_looks_nothing_up_is_refused(made: Exported) -> None:
    """The message says that the architecture is what is wrong."""
    model = ir.load(made.plain)
    for node in model.graph:
        if node.op_type == "Gather":
            node.op_type = "GatherElements"
    with pytest.raises(UserError, match="unsupported architecture: the graph has no embedding"):
        quantize_word_embedding(model)
