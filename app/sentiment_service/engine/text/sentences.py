"""Find where the sentences of a text begin and end."""

import re
from collections.abc import Iterator

import sentencex

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

    A text of at most ``WINDOW_CHARS`` characters is cut exactly as sentencex cuts it. So is a
    longer text of ordinary paragraphs. In longer paragraphs there are two differences. Sentences
    also end inside a quotation or bracket of more than half a window. And sentencex sees a sentence
    of more than half a window in parts.
    """
    language = language.partition("-")[0].lower()
    titles = TITLES.get(language, ())
    last: SentenceSpan | None = None  # the latest sentence, which may continue
    goes_on = False
    for pieces, is_cut in _windows(text, language):
        done = []
        for start, end in pieces:
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
