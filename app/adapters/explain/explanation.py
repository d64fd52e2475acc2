"""Find what each word of a text contributes to its label, by classifying the text without it.

The method is leave-one-out: the occlusion of Zeiler and Fergus (arXiv:1311.2901), applied to words.
On a CPU, the other texts in a batch do not change the model's answer for a text, so the explanation
of a text is the same each time.
"""

import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

from app.engine.classifier import Classification, Classifier
from app.engine.predictions import Outcome, Prediction
from app.engine.text.encoding import DEFAULTS
from app.errors import EmptyText, ServiceError, TextTooLong, TooManyTexts

MAX_WORDS = 128
MAX_CHARS = 4_000
WORD = re.compile(r"\S+")


class Word(TypedDict):
    """A word of a text, and what it contributes to the text's label."""

    start: Annotated[int, Field(description="position of the first character, from 0")]
    end: Annotated[int, Field(description="position of the character after the last one")]
    word: Annotated[str, Field(description="the text between these positions")]
    contribution: Annotated[
        float, Field(description="how much lower the label's score is without this word")
    ]


async def explain_text(
    classifier: Classifier, text: str, *, deadline: float
) -> tuple[Classification, Prediction, list[Word]]:
    """Classify one text, and compute what each of its words contributes.

    Raises:
        TextTooLong: the text has too many characters or words, or its copies that each lack
            a word have too many tokens together.
        ServiceError: the text could not be classified, or ``Classifier.classify`` would raise it.
    """
    try:
        spans = word_spans(text)
        texts = [text, *without_each(text, spans)]
        try:
            done = await classifier.attempt(texts, DEFAULTS, deadline=deadline)
        except TooManyTexts as error:
            raise TextTooLong(
                f"the text and its {len(spans)} copies, each without one word, are too long: "
                f"{error}"
            ) from None
        whole, *without = done.outcomes
        if isinstance(whole, ServiceError):
            raise whole
        words = contributions(text, spans, whole, without, multi_label=done.model.multi_label)
    except BaseException as error:
        classifier.observer.failure(error, texts=1)
        raise
    classifier.observer.predictions([whole])
    return done, whole, words


def word_spans(text: str) -> list[tuple[int, int]]:
    """The start and end of each word, in characters. Words are separated by white space.

    Raises:
        TextTooLong: the text has too many characters or words. Their number is limited because
            each word is one more text to classify.
    """
    if len(text) > MAX_CHARS:
        raise TextTooLong(f"the text has {len(text)} characters; at most {MAX_CHARS} are explained")
    spans = [match.span() for match in WORD.finditer(text)]
    if len(spans) > MAX_WORDS:
        raise TextTooLong(f"the text has {len(spans)} words; at most {MAX_WORDS} are explained")
    return spans


def without_each(text: str, spans: Sequence[tuple[int, int]]) -> list[str]:
    """One copy of the text per word, without that word and the space before or after it."""
    return [_without(text, *span) for span in spans]


def contributions(
    text: str,
    spans: Sequence[tuple[int, int]],
    whole: Prediction,
    without: Sequence[Outcome],
    *,
    multi_label: bool,
) -> list[Word]:
    """For each word: how much lower the score of the whole text's label is without it.

    Raises:
        ServiceError: a text could not be classified.
    """
    # Without its only word, a text is empty and has no score. This score is used instead: the one
    # of a model that has no information.
    unknown = 0.5 if multi_label else 1 / len(whole["scores"])
    words: list[Word] = []
    for (start, end), outcome in zip(spans, without, strict=True):
        if isinstance(outcome, EmptyText):
            score = unknown
        elif isinstance(outcome, ServiceError):
            raise outcome
        else:
            score = outcome["scores"][whole["label"]]
        contribution = whole["score"] - score
        word = text[start:end]
        words.append({"start": start, "end": end, "word": word, "contribution": contribution})
    return words


def _without(text: str, start: int, end: int) -> str:
    before, after = text[:start], text[end:]
    if before[-1:].isspace():
        return before[:-1] + after
    return before + after[1:]
