"""Write encodings into the inputs of a session, padded to the longest."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from app.engine.text.encoding import Encoding


def batch_shape(encodings: Sequence[Encoding]) -> tuple[int, int]:
    """The number of texts, and the tokens of the longest."""
    return len(encodings), max(len(encoding) for encoding in encodings)


def fill(
    encodings: Sequence[Encoding],
    inputs: Mapping[str, NDArray[np.int64]],
    *,
    pad_token_id: int,
    typed: bool,
) -> None:
    """Write the encodings into ``inputs``, and overwrite what these arrays of ``batch_shape`` held.

    ``typed`` says whether encodings can have the token type 1.
    """
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    ids.fill(pad_token_id)
    mask.fill(0)
    for row, encoding in enumerate(encodings):
        ids[row, : len(encoding)] = encoding.ids
        mask[row, : len(encoding)] = 1
    if (types := inputs.get("token_type_ids")) is not None:
        types.fill(0)
        if typed:
            for row, encoding in enumerate(encodings):
                types[row, len(encoding) - encoding.typed : len(encoding)] = 1
