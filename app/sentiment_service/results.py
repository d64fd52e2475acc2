"""What becomes of a text, for every way in: its prediction, or the error in its place.

The answers of the service, its files and its Python interface have these members under these names.
They are plain dicts, because they are written as JSON at once.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, NotRequired, TypeVar

from pydantic import Field
from typing_extensions import TypedDict

from sentiment_service.errors import ServiceError

Result = TypeVar("Result")

TextWarning = Literal["other_language", "unknown_tokens"]


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
    polarity: NotRequired[
        Annotated[
            float,
            Field(
                description="the score of positive less that of negative, from -1 to 1; only of "
                "models with these labels, with or without neutral"
            ),
        ]
    ]
    labels: NotRequired[
        Annotated[
            list[str],
            Field(description="those at or above their threshold; only of multi-label models"),
        ]
    ]
    windows: NotRequired[
        Annotated[int, Field(description="number of classified windows, if overflow is window")]
    ]
    warnings: NotRequired[
        Annotated[
            list[TextWarning],
            Field(
                description="why the model may be wrong about the text. other_language: by the "
                "request, or by its script and frequent words (only of models of English), it is "
                "in none of the model's languages; unknown_tokens: more than a fifth of its tokens "
                "stand for what the model does not know"
            ),
        ]
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


Outcome = Prediction | ServiceError


def item(outcome: Result | ServiceError) -> Result | FailedItem:
    """The outcome of a text as an item of ``results``."""
    if isinstance(outcome, ServiceError):
        return {"error": {"code": outcome.code, "message": outcome.detail}}
    return outcome


def every_prediction(outcomes: Sequence[Outcome]) -> list[Prediction]:
    """The predictions, for answers that have no place for the error of one text.

    The error of the first bad text is raised. Among several texts, it names the text.
    """
    predictions = []
    for index, outcome in enumerate(outcomes):
        if isinstance(outcome, ServiceError):
            if len(outcomes) == 1:
                raise outcome
            raise outcome.again(f"text {index}, counted from 0: {outcome.detail}")
        predictions.append(outcome)
    return predictions
