"""A tokenised text, and several of them as the arrays that the model gets."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Of a token id. Ids are kept as the bytes of int32: they are small, they are quickly put together,
# and the garbage collector does not visit them.
ID_BYTES = 4

# An input of a model: token ids, their mask or their types, [texts, tokens].
Ids = NDArray[np.int64] | NDArray[np.int32]


def packed(ids: Sequence[int]) -> bytes:
    """The token ids as the bytes of int32."""
    return array("i", ids).tobytes()


# What is made for each text is not frozen: that takes several times as long.
@dataclass(slots=True)
class Encoding:
    """The token ids of a text, as the model gets them. Do not change it.

    ``packed_ids`` has them as the bytes of int32. ``tokens`` is the number of tokens before
    truncation. ``overflow`` has the ids of the following windows, packed as well. Each window
    overlaps the one before. The last ``typed`` ids have the token type 1, the others 0. A pair of
    texts has no ``overflow``, and a single text has no ``typed`` ids.
    """

    packed_ids: bytes
    tokens: int
    overflow: tuple[bytes, ...] = ()
    typed: int = 0

    @classmethod
    def of(cls, ids: Sequence[int]) -> "Encoding":
        """The encoding of a text that has these ids, and none that was cut off."""
        return cls(packed(ids), len(ids))

    def __len__(self) -> int:
        return len(self.packed_ids) // ID_BYTES

    @property
    def ids(self) -> list[int]:
        """The token ids."""
        return memoryview(self.packed_ids).cast("i").tolist()

    @property
    def truncated(self) -> bool:
        """Whether the text was cut: its end, or its start if tokenizer.json says so."""
        return self.tokens > len(self)

    @property
    def key(self) -> bytes:
        """The ids and their types as bytes. Encodings with equal keys have equal logits."""
        if self.typed:  # negative, so that it differs from every id
            return self.packed_ids + packed([-self.typed])
        return self.packed_ids

    @property
    def windows(self) -> list["Encoding"]:
        """The whole text, cut into overlapping parts that are short enough for the model."""
        if not self.overflow:
            return [self]
        return [Encoding(ids, len(ids) // ID_BYTES) for ids in (self.packed_ids, *self.overflow)]


def batch_shape(encodings: Sequence[Encoding]) -> tuple[int, int]:
    """The number of texts, and the tokens of the longest."""
    return len(encodings), max(len(encoding) for encoding in encodings)


def fill(
    encodings: Sequence[Encoding],
    inputs: Mapping[str, Ids],
    *,
    pad_token_id: int,
    typed: bool,
) -> None:
    """Write the encodings into ``inputs``, and overwrite what these arrays of ``batch_shape`` held.

    ``typed`` says whether encodings can have the token type 1.
    """
    # All ids at once: one text after the other would take ten times as long.
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    joined = b"".join([encoding.packed_ids for encoding in encodings])
    lengths = np.array([len(encoding) for encoding in encodings])[:, np.newaxis]
    columns = np.arange(ids.shape[1])
    mask[...] = real = columns < lengths
    ids.fill(pad_token_id)
    ids[real] = np.frombuffer(joined, dtype=np.int32)
    if (types := inputs.get("token_type_ids")) is not None:
        types.fill(0)
        if typed:
            firsts = lengths - np.array([encoding.typed for encoding in encodings])[:, np.newaxis]
            types[real & (columns >= firsts)] = 1
