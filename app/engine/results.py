"""The results of the engine, as plain dicts. ``app/api/openapi/results.py`` describes them."""

from typing import NotRequired, TypeVar

from typing_extensions import TypedDict

from app.errors import ServiceError

Result = TypeVar("Result")


class ItemError(TypedDict):
    """Why one text of a list has no prediction."""

    code: str
    message: str


class FailedItem(TypedDict):
    """Takes the place of a prediction that could not be made."""

    error: ItemError


class LabelScores(TypedDict):
    """The model's result for one text, or for a part of it."""

    label: str
    score: float
    scores: dict[str, float]
    logits: dict[str, float]  # never calibrated
    tokens: int  # special ones included, before truncation
    truncated: bool
    windows: NotRequired[int]


class Span(TypedDict):
    """A part of a text. Positions count characters (Unicode code points)."""

    start: int
    end: int  # the position after the last character


class Sentence(Span, LabelScores):
    """The model's result for one sentence."""


class FailedSentence(Span, FailedItem):
    """A sentence without a prediction."""


class Prediction(LabelScores):
    """The model's result for one text."""

    sentences: NotRequired[list[Sentence | FailedSentence]]


class Word(Span):
    """A word of a text, and what it contributes to the text's label."""

    contribution: float  # how much lower the label's score is without the word


# The result for one text: a prediction, or the error that says why there is none.
Outcome = Prediction | ServiceError


def item(outcome: Result | ServiceError) -> Result | FailedItem:
    """The outcome of a text as an item of ``results``."""
    if isinstance(outcome, ServiceError):
        return {"error": {"code": outcome.code, "message": outcome.detail}}
    return outcome
