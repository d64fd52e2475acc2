"""Makes texts of given token lengths."""

import random
from collections.abc import Sequence

from sentiment_service.cli.load_generator import WORDS
from tokenizers import Tokenizer


def texts_of(tokenizer: Tokenizer, lengths: Sequence[int], *, seed: int = 0) -> list[str]:
    """A text of common words for each length in tokens, special tokens included."""
    generator = random.Random(seed)
    special = tokenizer.num_special_tokens_to_add(is_pair=False)
    return [_text(tokenizer, length, special, generator) for length in lengths]


def _text(tokenizer: Tokenizer, length: int, special: int, generator: random.Random) -> str:
    for _ in range(100):
        words = " ".join(generator.choices(WORDS.split(), k=length))
        encoding = tokenizer.encode(words, add_special_tokens=False)
        _, end = encoding.offsets[length - special - 1]
        text = words[:end].rstrip()
        if len(tokenizer.encode(text)) == length:
            return text
    raise ValueError(f"no text of {length} tokens was found in a hundred attempts")
