"""Tokenises what one prediction is made for: a text or a pair, after the bundle's preprocessing."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tokenizers import Tokenizer

from app.engine.text.encoding import Encoding
from app.engine.text.pairs import Input, PairTokenizer, TextPair
from app.engine.text.preprocessing import Preprocessing, fault, preprocess
from app.engine.text.text_tokenizer import TextTokenizer
from app.errors import EmptyText, InvalidRequest, ServiceError, UserError

# The share of a window's tokens that the next window repeats, so that each token has context.
WINDOW_OVERLAP = 0.25


class InputTokenizer:
    """The tokenizer of the bundle at ``path``. May be used from several threads.

    ``text_pairs`` says whether the model takes pairs, and ``has_types`` whether it reads token
    types. Errors name the ``model``. ``library`` is the tokenizer of the library tokenizers.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_tokens: int,
        preprocessing: Preprocessing,
        text_pairs: bool,
        has_types: bool,
        model: str,
    ) -> None:
        """Read ``tokenizer.json``.

        Raises:
            UserError: the library cannot read it.
        """
        self._model = model
        self.max_tokens = max_tokens
        self.normalise = partial(preprocess, preprocessing=preprocessing)
        self.library = _load(path / "tokenizer.json")
        special_tokens = self.library.num_special_tokens_to_add(is_pair=False)
        stride = int((max_tokens - special_tokens) * WINDOW_OVERLAP)
        side = (self.library.truncation or {}).get("direction", "right")
        self.library.enable_truncation(max_tokens, stride=stride, direction=side)
        self.texts = TextTokenizer(self.library, max_tokens=max_tokens, stride=stride)
        self.pairs: PairTokenizer | None = None
        if text_pairs:
            self.pairs = PairTokenizer(
                self.library, max_tokens=max_tokens, stride=stride, has_types=has_types
            )

    def encode(self, text: Input) -> Encoding:
        """Tokenise one text or pair, keeping at most ``max_tokens`` tokens of it.

        Raises:
            EmptyText: the text has nothing to classify.
            InvalidRequest: the text is not well-formed Unicode or contains a NUL character, or it
                is a pair and the model takes single texts.
        """
        (outcome,) = self.encode_batch([text])
        if isinstance(outcome, ServiceError):
            raise outcome
        return outcome

    def encode_batch(self, texts: Sequence[Input]) -> list[Encoding | EmptyText | InvalidRequest]:
        """Tokenise many texts. A text's error, which ``encode`` would raise, takes its place.

        Other threads can run meanwhile, because the library releases Python's global lock.
        """
        single = [text for text in texts if isinstance(text, str)]
        if len(single) == len(texts):
            return self._encode_single(single)
        encoded = iter(self._encode_single(single))
        return [
            next(encoded) if isinstance(text, str) else self._encode_pair(text) for text in texts
        ]

    def _encode_single(self, texts: Sequence[str]) -> list[Encoding | EmptyText | InvalidRequest]:
        faults = [*map(fault, texts)]
        sound = [
            self.normalise(text) for text, error in zip(texts, faults, strict=True) if error is None
        ]
        encodings = iter(self.texts.encode(sound))
        return [error or next(encodings) for error in faults]

    def _encode_pair(self, pair: TextPair) -> Encoding | EmptyText | InvalidRequest:
        if self.pairs is None:
            return InvalidRequest(
                f"the model {self._model} takes single texts, so leave out text_pair; a model that "
                "was trained on pairs must be exported with --text-pairs"
            )
        if error := fault(pair.text) or fault(pair.text_pair, "text_pair"):
            return error
        return self.pairs.encode(pair.map(self.normalise))


def _load(path: Path) -> Tokenizer:
    """Read ``tokenizer.json``, without its padding."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.encode("?")  # the token for unknown words may be missing
    except Exception as error:  # tokenizers raises plain Exception
        raise UserError(f"cannot load {path}: {error}") from error
    tokenizer.no_padding()
    return tokenizer
