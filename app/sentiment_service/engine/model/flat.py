"""Graphs for GPUs, which take the tokens of all texts of a batch one after another.

They have no padding, so texts of any lengths fit together. ``sentiment_export/graph/flat.py``
makes them.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int32]

# The operator of attention, for which ONNX Runtime has a kernel on CUDA only; and the function in
# the same file that computes the same in operators for every device. The names are equally long.
ATTENTION, REFERENCE = b"PackedMultiHeadAttention", b"PackedMultiHeadReference"
# Bytes at the start of a file that has its nodes before its weights.
NODES = 2**20
# In the graph's metadata: the padding id, which has no position where a text contains it
# (RoBERTa). Its own row in the table of positions has the same number.
POSITION_PADDING = "position_padding"


def for_cpu(path: Path) -> Path | bytes:
    """What a session on the CPU opens: the file, or a flat graph with the function in it."""
    with path.open("rb") as file:
        if ATTENTION not in file.read(NODES):
            return path
    return path.read_bytes().replace(ATTENTION, REFERENCE)


def flat_feeds(
    ids: Integers, lengths: Integers, typed: Integers, metadata: Mapping[str, str]
) -> dict[str, Integers]:
    """All inputs that a flat graph can have.

    ``ids`` [tokens] are those of all texts, which have ``lengths`` [texts] tokens. The last
    ``typed`` [texts] tokens of each have the type 1. ``metadata`` is that of the graph.
    """
    lengths_so_far = np.cumsum(lengths, dtype=np.int32)
    starts = lengths_so_far - lengths
    # BERT counts all tokens before one, from 0.
    padding, counted = -1, np.ones_like(ids)
    if POSITION_PADDING in metadata:
        padding = int(metadata[POSITION_PADDING])
        counted = (ids != padding).astype(np.int32)
    count = np.cumsum(counted, dtype=np.int32)
    before = np.repeat(count[starts] - counted[starts], lengths)
    # Where attention cannot do without padding: the padded place of each token, then the others.
    real = np.arange(lengths.max()) < lengths[:, np.newaxis]
    places = np.arange(real.size, dtype=np.int32).reshape(real.shape)
    return {
        "input_ids": ids,
        "token_type_ids": (
            np.arange(len(ids)) >= np.repeat(lengths_so_far - typed, lengths)
        ).astype(np.int32),
        "positions": (count - before) * counted + np.int32(padding),
        "token_offset": np.concatenate([places[real], places[~real]]).reshape(real.shape),
        "cumulative_lengths": np.concatenate([starts[:1], lengths_so_far]),
        "first_token": starts,
    }
