"""Where the sentences of a text begin and end."""

import re
from collections.abc import Iterator

import sentencex

# Titles before a name that sentencex takes for ends in these languages.
TITLES = {"fr": ("M.", "MM.", "Dr.", "Pr.", "Me."), "hi": ("डॉ.",)}

# Characters that sentencex is given at a time. Its time grows with their square where they are made
# for it, up to 7 ms for these, in which it holds Python's lock.
WINDOW_CHARS = 2_000

# sentencex takes a paragraph at a time, so that a text may be cut here without any difference.
PARAGRAPH_END = re.compile(r"\n\r*\n")

Span = tuple[int, int]  # from this character to before that one


def sentence_spans(text: str, language: str) -> Iterator[list[Span]]:
    """Start and end of each sentence, in characters, without the space around it.

    A list for each window of the text, so that one may stop between two; the work is linear in
    the text. ``language`` is a BCP 47 tag; it decides which abbreviations end no sentence. An
    unknown one is treated as English.

    A text of at most ``WINDOW_CHARS`` characters is cut as sentencex cuts it, and so is a longer
    one of ordinary paragraphs. In longer paragraphs a quotation or bracket of more than half a
    window hides no ends of sentences, and of a sentence of more than half a window, sentencex sees
    the words one part at a time.
    """
    language = language.partition("-")[0].lower()
    titles = TITLES.get(language, ())
    last: Span | None = None  # the sentence that may go on
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


def _windows(text: str, language: str) -> Iterator[tuple[list[Span], bool]]:
    """The pieces that sentencex finds in each window, and whether the last one goes on after it.

    A window has whole paragraphs where one fits. Where none does, what is near its end lacks what
    comes after: only the pieces in its first half are kept, and the next window begins behind them.
    """
    start = 0
    while start < len(text):
        window = text[start : start + WINDOW_CHARS]
        is_whole = start + len(window) == len(text)
        if not is_whole and (ends := [found.end() for found in PARAGRAPH_END.finditer(window)]):
            window, is_whole = window[: ends[-1]], True
        pieces = [
            (start + found["start_index"], start + found["end_index"])
            for found in sentencex.get_sentence_boundaries(language, window)
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
    """The place after the last space in the quarter window before a place, if it has one."""
    return text.rfind(" ", before - WINDOW_CHARS // 4, before) + 1 or before
