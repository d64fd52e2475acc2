"""Tokenises the texts of a long request in steps, and finds their sentences."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from unicodedata import category

import sentencex

from sentiment_service.engine.options import TextOptions
from sentiment_service.engine.step_thread import Steps
from sentiment_service.engine.text.input_tokenizer import (
    EncodedSentence,
    EncodedText,
    InputTokenizer,
    encodings,
)
from sentiment_service.engine.text.text_tokenizer import Input
from sentiment_service.errors import ServiceError

# Titles before a name. In these languages, sentencex takes them for the end of a sentence.
TITLES = {"fr": ("M.", "MM.", "Dr.", "Pr.", "Me."), "hi": ("डॉ.",)}

# The number of characters that sentencex gets at a time. With texts that are made to slow it down,
# its time grows with the square of this number: up to 7 ms for this one. Meanwhile it holds
# Python's global lock.
WINDOW_CHARS = 2_000

# sentencex processes each paragraph separately, so cutting a text here does not change the result.
PARAGRAPH_END = re.compile(r"\n\r*\n")

SentenceSpan = tuple[int, int]  # the first character, and the character after the last


def sentence_spans(text: str, language: str) -> Iterator[list[SentenceSpan]]:
    """The start and end of each sentence, in characters, without the space around it.

    Yields one list per window of the text, so that the caller can stop between two windows. The
    work is linear in the length of the text. ``language`` is a BCP 47 tag; it decides which
    abbreviations end no sentence. An unknown language is treated as English.

    There are differences to sentencex: the sign that ends a sentence keeps its marks, and in
    paragraphs longer than a window, sentences also end inside a quotation or bracket of more than
    half a window, and longer ones are seen in parts.
    """
    language = language.partition("-")[0].lower()
    titles = TITLES.get(language, ())
    last: SentenceSpan | None = None  # the latest sentence, which may continue
    goes_on = False
    for pieces, is_cut in _windows(text, language):
        done = []
        for start, end in pieces:
            while last and last[1] == start < end and category(text[start])[0] == "M":
                start += 1  # the sign that ends a sentence may have marks, such as that of "‼️"
                last = last[0], start
            if not (bare := text[start:end].strip()):
                continue
            start = text.index(bare, start)
            span = start, start + len(bare)
            if last and goes_on:
                span = last[0], span[1]
            elif last:
                done.append(last)
            last = span
            goes_on = is_cut or bare.split()[-1] in titles
        yield done
    if last:
        yield [last]


def _windows(text: str, language: str) -> Iterator[tuple[list[SentenceSpan], bool]]:
    """For each window: its pieces, as sentencex finds them, and whether the last one continues.

    A window has whole paragraphs if at least one fits. If none fits, sentencex cannot see the text
    that follows the window, so pieces near its end may be wrong. Then only the pieces in its first
    half are kept, and the next window begins after them.
    """
    start = 0
    while start < len(text):
        window = text[start : start + WINDOW_CHARS]
        is_whole = start + len(window) == len(text)
        if not is_whole and (ends := [match.end() for match in PARAGRAPH_END.finditer(window)]):
            window, is_whole = window[: ends[-1]], True
        pieces = [
            (start + piece["start_index"], start + piece["end_index"])
            for piece in sentencex.get_sentence_boundaries(language, window)
        ]
        if is_whole:
            yield pieces, False
            start += len(window)
        else:
            half = start + WINDOW_CHARS // 2
            kept = [piece for piece in pieces if piece[1] <= half]
            end = kept[-1][1] if kept else _word_end(text, half)
            yield kept or [(start, end)], not kept
            start = end


def _word_end(text: str, before: int) -> int:
    """The place after the last space in the quarter window before ``before``, else ``before``."""
    return text.rfind(" ", before - WINDOW_CHARS // 4, before) + 1 or before


# Short texts are tokenised in steps of up to this many characters. A step takes about 10 ms.
STEP_CHARS = 10_000
CHARS_PER_TEXT = 30  # one more text takes as long as this many more characters


def encode_steps(
    tokenizer: InputTokenizer,
    texts: Sequence[Input | ServiceError],
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
            for spans in sentence_spans(text, options.language or "en"):
                yield
                latest = _sentences(tokenizer, text, spans, options)
                sentences += latest
                tokens += _tokens_of([sentence.text for sentence in latest])
                check(tokens)
            encoded[index] = replace(whole, sentences=sentences)
    return encoded


def _tokens_of(texts: Sequence[EncodedText | ServiceError]) -> int:
    return sum(map(len, encodings(texts)))


def chars_of(text: Input | ServiceError) -> int:
    """The characters of a text; none of one that could not be read."""
    return 0 if isinstance(text, ServiceError) else len(text)


def _groups(texts: Sequence[Input | ServiceError]) -> Iterator[Sequence[Input | ServiceError]]:
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
