"""Where the sentences of a text begin and end."""

import sentencex

# Titles before a name that sentencex takes for ends in these languages.
TITLES = {"fr": ("M.", "MM.", "Dr.", "Pr.", "Me."), "hi": ("डॉ.",)}


def sentence_spans(text: str, language: str) -> list[tuple[int, int]]:
    """Start and end of each sentence, in characters, without the space around it.

    ``language`` is a BCP 47 tag; it decides which abbreviations end no sentence. An unknown one is
    treated as English.
    """
    language = language.partition("-")[0].lower()
    titles = TITLES.get(language, ())
    spans: list[tuple[int, int]] = []
    goes_on = False
    for found in sentencex.get_sentence_boundaries(language, text):
        start, end = found["start_index"], found["end_index"]
        sentence = text[start:end]
        if bare := sentence.strip():
            start += len(sentence) - len(sentence.lstrip())
            first = spans.pop()[0] if goes_on else start
            spans.append((first, start + len(bare)))
            goes_on = bare.split()[-1] in titles
    return spans
