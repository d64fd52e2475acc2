"""The inputs of a graph without padding: where each text begins, and each token's place in it."""

import numpy as np
import pytest
from sentiment_service.engine.model.sessions import POSITION_PADDING, flat_feeds


def _feeds(
    texts: list[list[int]], typed: list[int], metadata: dict[str, str]
) -> dict[str, list[int]]:
    ids = np.array([token for text in texts for token in text], np.int32)
    lengths = np.array([*map(len, texts)], np.int32)
    feeds = flat_feeds(ids, lengths, np.array(typed, np.int32), metadata)
    assert {array.dtype for array in feeds.values()} == {np.dtype(np.int32)}
    return {name: array.tolist() for name, array in feeds.items()}


def test_tokens_stand_one_after_another() -> None:
    """Three texts of 3, 1 and 4 tokens; the last two tokens of the third are a second text."""
    feeds = _feeds([[5, 6, 7], [8], [9, 9, 5, 6]], [0, 0, 2], {})
    assert feeds == {
        "input_ids": [5, 6, 7, 8, 9, 9, 5, 6],
        "token_type_ids": [0, 0, 0, 0, 0, 0, 1, 1],
        "positions": [0, 1, 2, 0, 0, 1, 2, 3],
        # The places of the tokens in [texts, longest], then those of padding.
        "token_offset": [[0, 1, 2, 4], [8, 9, 10, 11], [3, 5, 6, 7]],
        "cumulative_lengths": [0, 3, 4, 8],
        "first_token": [0, 3, 4],
    }


@pytest.mark.parametrize("padding", [1, 0])
def test_the_padding_id_in_a_text_has_no_position(padding: int) -> None:
    """RoBERTa counts from the padding id + 1, and skips that id; the next text begins anew."""
    texts = [[5, padding, 7, 8], [padding, 5]]
    positions = _feeds(texts, [0, 0], {POSITION_PADDING: str(padding)})["positions"]
    assert positions == [padding + n for n in (1, 0, 2, 3, 0, 1)]
