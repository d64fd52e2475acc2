"""Tokenises the texts of a long request in steps, and finds their sentences."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from sentiment_service.engine.step_thread import Steps
from sentiment_service.engine.text.input_tokenizer import (
    EncodedSentence,
    EncodedText,
    InputTokenizer,
    encodings,
)
from sentiment_service.engine.text.options import TextOptions
from sentiment_service.engine.text.pairs import Text
from sentiment_service.engine.text.sentences import SentenceSpan, sentence_spans
from sentiment_service.errors import ServiceError

# Short texts are tokenised in steps of up to this many characters. A step takes about 10 ms.
STEP_CHARS = 10_000
CHARS_PER_TEXT = 30  # one more text takes as long as this many more characters


def encode_steps(
    tokenizer: InputTokenizer,
    texts: Sequence[Text | ServiceError],
    options: TextOptions,
    *,
    max_chars: int,
    check: Callable[[int], None] = lambda tokens: None,
) -> Steps[list[EncodedText | ServiceError]]:
    """Tokenise each text, or return the error that says why it cannot be classified.

    A text may be an error already, as in ``InputTokenizer.encode_texts``. A step is a few short
    texts, one long text, or one window of sentences.

    After each step, ``check`` is called with the number of tokens so far. If it raises an error,
    the work ends with this error.
    """
    encoded: list[EncodedText | ServiceError] = []
    tokens = 0
    for group in _groups(texts):
        if encoded:
            yield
        wholes = tokenizer.encode_texts(group, options, max_chars=max_chars)
        encoded += wholes
        tokens += _tokens_of(wholes)
        check(tokens)
    if options.split:
        for index, (text, whole) in enumerate(zip(texts, encoded, strict=True)):
            if isinstance(whole, ServiceError) or not isinstance(text, str):
                continue
            sentences: list[EncodedSentence] = []
            for spans in sentence_spans(text, options.language):
                yield
                latest = _sentences(tokenizer, text, spans, options)
                sentences += latest
                tokens += _tokens_of([sentence.text for sentence in latest])
                check(tokens)
            encoded[index] = replace(whole, sentences=sentences)
    return encoded


def _tokens_of(texts: Sequence[EncodedText | ServiceError]) -> int:
    return sum(map(len, encodings(texts)))


def chars_of(text: Text | ServiceError) -> int:
    """The characters of a text; none of one that could not be read."""
    return 0 if isinstance(text, ServiceError) else len(text)


def _groups(texts: Sequence[Text | ServiceError]) -> Iterator[Sequence[Text | ServiceError]]:
    """The texts in their order, in groups. A group fits in one step, or has one longer text."""
    first = chars = 0
    for index, text in enumerate(texts):
        if chars and chars + chars_of(text) > STEP_CHARS:
            yield texts[first:index]
            first, chars = index, 0
        chars += chars_of(text) + CHARS_PER_TEXT
    yield texts[first:]


def _sentences(
    tokenizer: InputTokenizer, whole: str, spans: Sequence[SentenceSpan], options: TextOptions
) -> list[EncodedSentence]:
    alone = replace(options, split=None)
    texts = tokenizer.encode_texts([whole[start:end] for start, end in spans], alone)
    return [EncodedSentence(*span, text) for span, text in zip(spans, texts, strict=True)]
