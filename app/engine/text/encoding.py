"""A tokenised text, and several of them as the arrays that the model gets."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


# What is made for each text is not frozen: that takes several times as long.
@dataclass(slots=True)
class Encoding:
    """The token ids of a text, as the model gets them. Do not change it.

    ``tokens`` is the number of tokens before truncation. ``overflow`` has the ids of the following
    windows. Each window overlaps the one before. The last ``typed`` ids have the token type 1, the
    others 0. A pair of texts has no ``overflow``, and a single text has no ``typed`` ids.
    """

    ids: list[int]
    tokens: int
    overflow: tuple[list[int], ...] = ()
    typed: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def truncated(self) -> bool:
        """Whether the text was cut: its end, or its start if tokenizer.json says so."""
        return self.tokens > len(self.ids)

    @property
    def key(self) -> bytes:
        """The ids and their types as bytes. Encodings with equal keys have equal logits."""
        # Bytes, because Python computes their hash once, and for a tuple again at each use.
        if self.typed:  # negative, so that it differs from every id
            return struct.pack(f"{len(self.ids) + 1}i", *self.ids, -self.typed)
        return struct.pack(f"{len(self.ids)}i", *self.ids)

    @property
    def windows(self) -> list["Encoding"]:
        """The whole text, cut into overlapping parts that are short enough for the model."""
        if not self.overflow:
            return [self]
        return [Encoding(ids, len(ids)) for ids in (self.ids, *self.overflow)]


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
