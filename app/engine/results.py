"""The results of the engine, as plain dicts. Descriptions and docstrings appear in OpenAPI."""

from typing import Annotated, NotRequired, TypeVar

from pydantic import Field
from typing_extensions import TypedDict

from app.errors import ServiceError

Result = TypeVar("Result")


class ItemError(TypedDict):
    """Why one text of a list has no prediction."""

    code: Annotated[str, Field(description="the kind of error, for programs")]
    message: Annotated[str, Field(description="what was wrong, and what is accepted")]


class FailedItem(TypedDict):
    """Takes the place of a prediction that could not be made."""

    error: Annotated[ItemError, Field(description="why there is no prediction")]


class LabelScores(TypedDict):
    """The model's result for one text, or for a part of it."""

    label: Annotated[str, Field(description="the label with the highest score")]
    score: Annotated[float, Field(description="its score")]
    scores: Annotated[
        dict[str, float],
        Field(
            description="softmax of the logits (sigmoid for a multi-label checkpoint); the logits "
            "of a calibrated model are divided by its temperature first"
        ),
    ]
    logits: Annotated[
        dict[str, float], Field(description="what the model computed, never calibrated")
    ]
    tokens: Annotated[
        int, Field(description="tokens of the text, special ones included, before truncation")
    ]
    truncated: Annotated[bool, Field(description="whether the end of the text was cut off")]
    windows: NotRequired[
        Annotated[int, Field(description="number of classified windows, if overflow is window")]
    ]


class Span(TypedDict):
    """A part of a text. Positions count characters (Unicode code points)."""

    start: Annotated[int, Field(description="position of the first character, from 0")]
    end: Annotated[int, Field(description="position of the character after the last one")]


class Sentence(Span, LabelScores):
    """The model's result for one sentence."""


class FailedSentence(Span, FailedItem):
    """A sentence without a prediction."""


class Prediction(LabelScores):
    """The model's result for one text."""

    sentences: NotRequired[
        Annotated[
            list[Sentence | FailedSentence],
            Field(description="the sentences in order, if split is set"),
        ]
    ]


class Word(Span):
    """A word of a text, and what it contributes to the text's label."""

    contribution: Annotated[
        float, Field(description="how much lower the label's score is without this word")
    ]


# The result for one text: a prediction, or the error that says why there is none.
Outcome = Prediction | ServiceError


def item(outcome: Result | ServiceError) -> Result | FailedItem:
    """The outcome of a text as an item of ``results``."""
    if isinstance(outcome, ServiceError):
        return {"error": {"code": outcome.code, "message": outcome.detail}}
    return outcome
