"""Tokenises single texts. ``pairs.py`` does the same for pairs of texts."""

from collections.abc import Sequence

import tokenizers
from tokenizers import Tokenizer

from app.engine.text.encoding import Encoding
from app.engine.text.tokenizer_threads import MIN_TEXTS
from app.engine.text.word_cache import WordCache
from app.errors import EmptyText


class TextTokenizer:
    """Tokenises texts, from the ids of known words where that gives the same ids.

    The tokenizer must cut texts into windows of ``max_tokens`` tokens, of which ``stride`` are also
    in the window before.
    """

    def __init__(self, tokenizer: Tokenizer, *, max_tokens: int, stride: int) -> None:
        self.divides_lists = False  # whether several threads tokenise a list together
        self._tokenizer = tokenizer
        self._special: int = tokenizer.num_special_tokens_to_add(is_pair=False)
        self._repeated = self._special + stride  # tokens of a window that are not new
        known = map(tokenizer.token_to_id, ("[UNK]", "<unk>"))
        self._unknown_id = next((token for token in known if token is not None), None)
        self._words = WordCache(tokenizer, max_tokens=max_tokens)

    def encode(self, texts: Sequence[str]) -> list[Encoding | EmptyText]:
        """The encoding of each text after preprocessing, with special tokens.

        ``EmptyText`` takes the place of a text of which the model knows no character.
        """
        known: Sequence[list[int] | None]
        if self.divides_lists and len(texts) >= MIN_TEXTS:
            known = [None] * len(texts)
        else:
            known = self._words.encode(texts)
        others = [text for text, ids in zip(texts, known, strict=True) if ids is None]
        tokenised = iter(self._tokenizer.encode_batch_fast(others) if others else ())
        return [
            self._encoding(next(tokenised)) if ids is None else Encoding(ids, len(ids))
            for ids in known
        ]

    def _encoding(self, encoding: tokenizers.Encoding) -> Encoding | EmptyText:
        ids: list[int] = encoding.ids
        if len(ids) <= self._special:
            # The tokenizer drops unknown characters, and it knew none of this text's characters.
            if self._unknown_id is None:
                return EmptyText("the model knows none of the text's characters")
            ids = [*ids[:1], self._unknown_id, *ids[1:]]
        overflow = tuple(part.ids for part in encoding.overflowing)
        tokens = len(ids) + sum(len(part) - self._repeated for part in overflow)
        return Encoding(ids, tokens, overflow)
