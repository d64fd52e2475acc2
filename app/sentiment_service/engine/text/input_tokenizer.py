"""Tokenises what one prediction is made for: a text or a pair, checked and normalised."""

import json
import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from tokenizers import Tokenizer
from tokenizers.models import BPE

from sentiment_service.engine.options import DEFAULTS, Preprocessing, TextOptions, wider
from sentiment_service.engine.text.text_tokenizer import (
    Encoding,
    Input,
    PairTokenizer,
    Text,
    TextPair,
    TextTokenizer,
)
from sentiment_service.errors import EmptyText, InvalidRequest, ServiceError, TextTooLong, UserError
from sentiment_service.results import TextWarning

# The share of a window's tokens that the next window repeats, so that each token has context.
WINDOW_OVERLAP = 0.25

# Above this share of tokens that the model does not know, a text has a warning.
MOST_UNKNOWN = 0.2

# Frequent words of English, and those of German, Dutch, Swedish, Romance languages, Turkish,
# Polish, Hindi and Indonesian, without those that are frequent in both or in names.
_WORDS = json.loads(Path(__file__).with_name("frequent_words.json").read_text(encoding="utf-8"))
ENGLISH, OTHER = frozenset(_WORDS["english"]), frozenset(_WORDS["other"])
READ_CHARS = 1_000  # of a text: they tell its language, and a long text costs no more
_LETTER = re.compile(r"[^\W\d_]")
_LATIN = re.compile(r"[A-Za-z\u00aa-\u024f\u1e00-\u1eff]")

# A visible character: neither white space nor a control or format character (Unicode's categories
# Cc, and Cf of the basic plane).
VISIBLE = re.compile(
    r"[^\s\x00-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e"
    r"\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)

# A token begins at the start of the text or after a space, and ends before the next space.
_USER_OR_LINK = re.compile(r"(?<![^ ])(?:@[^ ]+|http[^ ]*)")


@dataclass(frozen=True, slots=True)
class EncodedSentence:
    """A sentence of a text, from character ``start`` up to, but not including, ``end``."""

    start: int
    end: int
    text: "EncodedText | ServiceError"


@dataclass(slots=True)
class EncodedText:
    """A tokenised text: the whole text in ``windows``, and each of its sentences separately.

    ``windows`` are the encodings that are classified: the text's own, or those of its parts.
    ``warnings`` say why the model may be wrong about it, which does not know ``unknown`` tokens.
    """

    encoding: Encoding
    options: TextOptions
    windows: Sequence[Encoding]
    sentences: Sequence[EncodedSentence] = ()
    warnings: Sequence[TextWarning] = ()
    unknown: int = 0


def encodings(texts: Sequence[EncodedText | ServiceError]) -> list[Encoding]:
    """All encodings to infer, in the order in which ``outcomes_of`` expects their results."""
    to_infer: list[Encoding] = []
    for text in texts:
        if isinstance(text, EncodedText):
            to_infer += text.windows
            to_infer += encodings([sentence.text for sentence in text.sentences])
    return to_infer


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
        languages: Collection[str],
    ) -> None:
        """Read ``tokenizer.json``. ``languages`` are the model's, as BCP 47 tags, if known."""
        self._model = model
        self._languages = {tag for language in languages for tag in wider(language)}
        # Of a text in another language, nothing can be said cheaply.
        self._is_english = {wider(language)[-1] for language in languages} == {"en"}
        self.max_tokens = max_tokens
        self.normalise = normaliser(preprocessing)
        self.library = _load(path / "tokenizer.json")
        self._special = self.library.num_special_tokens_to_add(is_pair=False)
        stride = int((max_tokens - self._special) * WINDOW_OVERLAP)
        side = (self.library.truncation or {}).get("direction", "right")
        self.library.enable_truncation(max_tokens, stride=stride, direction=side)
        self.texts = TextTokenizer(self.library, max_tokens=max_tokens, stride=stride)
        self.pairs: PairTokenizer | None = None
        if text_pairs:
            self.pairs = PairTokenizer(
                self.library, max_tokens=max_tokens, stride=stride, has_types=has_types
            )

    def reads(self, language: str) -> bool:
        """Whether the model may read the language: it is one of its own, or these are not known."""
        return not self._languages or not self._languages.isdisjoint(wider(language))

    def encode(self, text: Text) -> Encoding:
        """Tokenise one text or pair, or raise the error that says why it cannot be."""
        (outcome,) = self.encode_batch([text])
        if isinstance(outcome, ServiceError):
            raise outcome
        return outcome

    def encode_texts(
        self,
        texts: Sequence[Input | ServiceError],
        options: TextOptions = DEFAULTS,
        *,
        max_chars: float = math.inf,
    ) -> list[EncodedText | ServiceError]:
        """Tokenise each text as a whole, or return the error that says why it is not classified.

        A text may be such an error already: one that could not be read. It stays in its place, and
        so do token ids.

        ``steps.encode_steps`` finds their sentences, too.
        """
        encoded = self.encode_batch(texts, max_chars=max_chars)
        return [
            self._with_options(text, encoding, options)
            for text, encoding in zip(texts, encoded, strict=True)
        ]

    def encode_batch(
        self, texts: Sequence[Input | ServiceError], *, max_chars: float = math.inf
    ) -> list[Encoding | ServiceError]:
        """Tokenise many texts, keeping at most ``max_tokens`` tokens of each.

        If a text cannot be tokenised, the error takes its place. Other threads can run meanwhile,
        because the library releases Python's global lock.
        """
        faults = [
            text if isinstance(text, ServiceError) else self._fault(text, max_chars)
            for text in texts
        ]
        sound = [text for text, error in zip(texts, faults, strict=True) if error is None]
        encodings = iter(self._encode_sound(cast(list[Input], sound)))
        return [error or next(encodings) for error in faults]

    def _fault(self, text: Input, max_chars: float) -> ServiceError | None:
        """The reason why a text or pair cannot be tokenised, or None if it can."""
        if len(text) > max_chars:
            return TextTooLong(
                f"the text has {len(text)} characters; at most {max_chars} are accepted"
            )
        if isinstance(text, str):
            return _fault(text, "the text")
        if isinstance(text, Encoding):
            return None
        if self.pairs is None:
            return InvalidRequest(
                f"the model {self._model} takes single texts, so leave out text_pair; a model that "
                "was trained on pairs must be exported with --text-pairs"
            )
        return _fault(text.text, "the text") or _fault(text.text_pair, "text_pair")

    def _encode_sound(self, texts: Sequence[Input]) -> Sequence[Encoding | EmptyText]:
        single = [self.normalise(text) for text in texts if isinstance(text, str)]
        encoded = self.texts.encode(single)
        if len(encoded) == len(texts):
            return encoded
        remaining = iter(encoded)
        return [
            next(remaining) if isinstance(text, str) else self._encode_other(text) for text in texts
        ]

    def _encode_other(self, text: TextPair | Encoding) -> Encoding:
        if isinstance(text, Encoding):
            return text
        pairs = cast(PairTokenizer, self.pairs)  # without it, a pair is not sound
        return pairs.encode(text.map(self.normalise))

    def _with_options(
        self, text: Input | ServiceError, encoding: Encoding | ServiceError, options: TextOptions
    ) -> EncodedText | ServiceError:
        if isinstance(text, ServiceError):
            return text
        if isinstance(encoding, ServiceError):
            return encoding
        if options.split and isinstance(text, TextPair):
            return InvalidRequest('a pair of texts is not split; leave out "split" or text_pair')
        if options.overflow != "truncate" and encoding.truncated:
            most = f"the model takes at most {self.max_tokens}"
            too_long = f"the text has {encoding.tokens} tokens; {most}"
            if options.overflow == "error":
                return TextTooLong(f'{too_long} and "overflow" is "error"')
            if isinstance(text, TextPair):
                return TextTooLong(f"{too_long}, and a pair of texts is not cut into windows")
        windows = encoding.windows if options.overflow == "window" else [encoding]
        warnings: tuple[TextWarning, ...] = ()
        read = text.text if isinstance(text, TextPair) else text
        foreign = self._is_english and isinstance(read, str) and looks_foreign(read)
        if foreign or (options.language and not self.reads(options.language)):
            warnings = ("other_language",)
        unknown = 0
        # Quickly found, and nearly never true.
        if any(self.texts.unknown in window.packed_ids for window in windows):
            unknown = self.texts.unknown_tokens(windows, encoding.tokens)
        if unknown > MOST_UNKNOWN * max(1, encoding.tokens - self._special):
            warnings += ("unknown_tokens",)
        return EncodedText(encoding, options, windows, (), warnings, unknown)


def normalise_tweet(text: str) -> str:
    """Replace user names by ``@user`` and links by ``http``.

    This is the rule of the ``preprocess`` function on the cardiffnlp model cards
    (Barbieri et al. 2020, TweetEval). The text is split on single spaces only, so
    newlines, tabs and runs of spaces stay. A token is replaced only if it begins with
    ``@`` or ``http``: ``(http://…`` and ``HTTP://…`` stay as they are.
    """
    if "@" not in text and "http" not in text:  # most texts; the search below takes longer
        return text
    return _USER_OR_LINK.sub(lambda token: "@user" if token[0][0] == "@" else "http", text)


def looks_foreign(text: str) -> bool:
    """Whether most letters are not Latin, or other languages' words outnumber the English ones.

    It takes 1.3 to 1.5 µs for a tweet. A text without any of these words counts as English.
    """
    text = text[:READ_CHARS]
    if not text.isascii():
        letters = _LETTER.findall(text)
        if 2 * sum(map(bool, map(_LATIN.match, letters))) < len(letters):
            return True
    words = text.lower().split()
    if OTHER.isdisjoint(words):  # most texts
        return False
    return len(OTHER.intersection(words)) > len(ENGLISH.intersection(words))


def normaliser(preprocessing: Preprocessing) -> Callable[[str], str]:
    if preprocessing == "tweet":
        return normalise_tweet
    if preprocessing == "none":
        return str
    # Its patterns and tables take longer to load than all of this package.
    from sentiment_service.engine.text.tweets import NORMALISERS

    return NORMALISERS[preprocessing]


def _fault(text: str, name: str) -> EmptyText | InvalidRequest | None:
    """The reason why a text cannot be tokenised, or None if it can. Errors call it ``name``."""
    if "\0" in text:
        return InvalidRequest(f"{name} holds a NUL character (U+0000); remove it")
    if not VISIBLE.search(text):
        return EmptyText(f"{name} is empty or blank; send at least one visible character")
    try:
        text.encode()  # before the normalisation, which may drop the ill-formed part
    except UnicodeEncodeError:
        return InvalidRequest(
            f"{name} holds half of a surrogate pair, so it is not well-formed Unicode"
        )
    return None


def without_training(tokenizer: Tokenizer) -> Tokenizer:
    """Switch off padding, and dropout, with which each call cuts a text in another way."""
    tokenizer.no_padding()
    if isinstance(tokenizer.model, BPE):
        tokenizer.model.dropout = None
    return tokenizer


def _load(path: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.encode("?")  # the token for unknown words may be missing
    except Exception as error:  # tokenizers raises plain Exception
        raise UserError(f"cannot load {path}: {error}") from error
    return without_training(tokenizer)
