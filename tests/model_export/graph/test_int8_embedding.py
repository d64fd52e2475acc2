"""The word embedding table in int8."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from safetensors.numpy import load_file

from app.errors import UserError
from model_export.graph.passes.int8_embedding import quantize_word_embedding
from tests.support.checkpoints import Exported
from tests.support.graphs import random_encodings, run, session


def _quantized(plain: Path) -> ir.Model:
    model = ir.load(plain)
    quantize_word_embedding(model)
    return model


def _words(made: Exported) -> np.ndarray:
    weights = load_file(made.source / "model.safetensors")
    return next(array for name, array in weights.items() if "word_embeddings" in name)


def test_the_word_table_it_is_and_rows_are_off_by_half_a_step(made: Exported) -> None:
    """Of all tables the words' is taken; each row comes back within half its own step."""
    initializers = _quantized(made.plain).graph.initializers
    table = initializers["int8.word_embedding"].const_value
    scale = initializers["int8.word_embedding_scale"].const_value
    assert table is not None
    assert scale is not None
    assert table.dtype == ir.DataType.INT8
    words = _words(made)
    step = scale.numpy().astype(np.float64)
    assert step.shape == (len(words), 1)
    assert (np.abs(table.numpy() * step - words) <= step * 0.5001).all()
    assert not [name for name in initializers if "word_embeddings" in name]


def test_the_file_shrinks_by_three_quarters_of_the_table(made: Exported, tmp_path: Path) -> None:
    """A float is four bytes, and a row costs one scale."""
    before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
    ir.save(ir.load(made.plain), before)
    ir.save(_quantized(made.plain), after)
    words = _words(made)
    saved = before.stat().st_size - after.stat().st_size
    assert saved == pytest.approx(3 * words.size - 4 * len(words), abs=1500)


def test_answers_hardly_move(made: Exported) -> None:
    """Logits that vary by 1 from text to text move by less than 0.1."""
    encodings = random_encodings(3)
    before = run(session(ir.load(made.plain)), encodings)
    after = run(session(_quantized(made.plain)), encodings)
    assert 0 < np.abs(before - after).max() < 0.1


def test_a_graph_that_looks_nothing_up_is_refused(made: Exported) -> None:
    """The message says that the architecture is what is wrong."""
    model = ir.load(made.plain)
    for node in model.graph:
        if node.op_type == "Gather":
            node.op_type = "GatherElements"
    with pytest.raises(UserError, match="unsupported architecture: the graph has no embedding"):
        quantize_word_embedding(model)
