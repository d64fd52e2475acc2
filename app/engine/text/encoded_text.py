"""Tokenise the texts of a request, each with its windows and sentences, as its options ask."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from app.engine.text.encoding import Encoding
from app.engine.text.input_tokenizer import InputTokenizer
from app.engine.text.pairs import Input, TextPair
from app.engine.text.sentences import SentenceSpan, sentence_spans
from app.engine.worker import Steps, finish
from app.errors import InvalidRequest, ServiceError, TextTooLong

# Short texts are tokenised in steps of up to this many characters. A step takes about 10 ms.
STEP_CHARS = 10_000
CHARS_PER_TEXT = 30  # one more text takes as long as this many more characters

Overflow = Literal["truncate", "error", "window"]
Split = Literal["sentences"]


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How to process a text.

    ``language`` is a BCP 47 tag. It decides which abbreviations end no sentence.
    """

    overflow: Overflow = "truncate"
    split: Split | None = None
    language: str = "en"


DEFAULTS = TextOptions()


@dataclass(frozen=True, slots=True)
class EncodedSentence:
    """A sentence of a text, from character ``start`` up to, but not including, ``end``."""

    start: int
    end: int
    text: "EncodedText | ServiceError"


@dataclass(slots=True)
class EncodedText:
    """A tokenised text: the whole text in ``windows``, and each of its sentences separately."""

    encoding: Encoding
    options: TextOptions
    sentences: Sequence[EncodedSentence] = ()

    @property
    def windows(self) -> list[Encoding]:
        """The encodings of the whole text that are classified."""
        return self.encoding.windows if self.options.overflow == "window" else [self.encoding]


def encode(
    tokenizer: InputTokenizer,
    texts: Sequence[Input],
    *,
    max_chars: int,
    options: TextOptions = DEFAULTS,
) -> list[EncodedText | ServiceError]:
    """Tokenise each text, or return the error that says why it cannot be classified."""
    if not options.split:
        return _encoded(tokenizer, texts, max_chars, options)
    return finish(encode_steps(tokenizer, texts, max_chars=max_chars, options=options))


def encode_steps(
    tokenizer: InputTokenizer,
    texts: Sequence[Input],
    *,
    max_chars: int,
    options: TextOptions,
    check: Callable[[Sequence[Encoding]], None] = lambda latest: None,
) -> Steps[list[EncodedText | ServiceError]]:
    """``encode`` in steps: a few short texts, one long text or one window of sentences at a time.

    After each step, ``check`` is called with the new encodings to infer. If it raises an error, the
    work ends with this error.
    """
    encoded: list[EncodedText | ServiceError] = []
    for group in _groups(texts):
        wholes = _encoded(tokenizer, group, max_chars, options)
        encoded += wholes
        check(encodings(wholes))
        yield
    if options.split:
        for index, (text, whole) in enumerate(zip(texts, encoded, strict=True)):
            if isinstance(whole, ServiceError) or isinstance(text, TextPair):
                continue
            sentences: list[EncodedSentence] = []
            for spans in sentence_spans(text, options.language):
                latest = _sentences(tokenizer, text, spans, options)
                sentences += latest
                check(encodings([sentence.text for sentence in latest]))
                yield
            encoded[index] = replace(whole, sentences=sentences)
    return encoded


def encodings(texts: Sequence[EncodedText | ServiceError]) -> list[Encoding]:
    """All encodings to infer, in the order in which ``outcomes_of`` expects their results."""
    to_infer: list[Encoding] = []
    for text in texts:
        if isinstance(text, EncodedText):
            to_infer += text.windows
            to_infer += encodings([sentence.text for sentence in text.sentences])
    return to_infer


def _groups(texts: Sequence[Input]) -> Iterator[Sequence[Input]]:
    """The texts in their order, in groups. A group fits in one step, or has one longer text."""
    first = chars = 0
    for index, text in enumerate(texts):
        if chars and chars + len(text) > STEP_CHARS:
            yield texts[first:index]
            first, chars = index, 0
        chars += len(text) + CHARS_PER_TEXT
    yield texts[first:]


def _encoded(
    tokenizer: InputTokenizer, texts: Sequence[Input], max_chars: int, options: TextOptions
) -> list[EncodedText | ServiceError]:
    fitting = iter(tokenizer.encode_batch([text for text in texts if len(text) <= max_chars]))
    return [
        _checked(text, next(fitting), tokenizer, options)
        if len(text) <= max_chars
        else TextTooLong(f"the text has {len(text)} characters; at most {max_chars} are accepted")
        for text in texts
    ]


def _checked(
    text: Input, encoding: Encoding | ServiceError, tokenizer: InputTokenizer, options: TextOptions
) -> EncodedText | ServiceError:
    if isinstance(encoding, ServiceError):
        return encoding
    if options.split and isinstance(text, TextPair):
        return InvalidRequest('a pair of texts is not split; leave out "split" or text_pair')
    if encoding.truncated and options.overflow != "truncate":
        too_long = f"the text has {encoding.tokens} tokens; the model takes at most "
        too_long += str(tokenizer.max_tokens)
        if options.overflow == "error":
            return TextTooLong(f'{too_long} and "overflow" is "error"')
        if isinstance(text, TextPair):
            return TextTooLong(f"{too_long}, and a pair of texts is not cut into windows")
    return EncodedText(encoding, options)


def _sentences(
    tokenizer: InputTokenizer, whole: str, spans: Sequence[SentenceSpan], options: TextOptions
) -> list[EncodedSentence]:
    alone = TextOptions(overflow=options.overflow)
    texts = _encoded(tokenizer, [whole[start:end] for start, end in spans], len(whole), alone)
    return [EncodedSentence(*span, text) for span, text in zip(spans, texts, strict=True)]
