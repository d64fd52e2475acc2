"""What the engine answers with, as plain dicts; the descriptions show in OpenAPI."""

from typing import Annotated, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from app.errors import ServiceError


class ItemError(TypedDict):
    """Why one text of a list has no prediction."""

    code: str
    message: str


class FailedItem(TypedDict):
    """Stands in the place of a prediction."""

    error: ItemError


class LabelScores(TypedDict):
    """What the model says of one text or of a part of it."""

    label: Annotated[str, Field(description="the label with the highest score")]
    score: Annotated[float, Field(description="its score")]
    scores: Annotated[
        dict[str, float],
        Field(description="softmax of the logits (sigmoid for a multi-label checkpoint)"),
    ]
    logits: Annotated[dict[str, float], Field(description="what the model computed")]
    tokens: Annotated[
        int, Field(description="tokens of the text, special ones included, before truncation")
    ]
    truncated: Annotated[bool, Field(description="whether the end of the text was cut off")]
    windows: NotRequired[
        Annotated[int, Field(description="with overflow window: how many were classified")]
    ]


class Span(TypedDict):
    """A part of a text, in characters: Unicode code points."""

    start: int
    end: Annotated[int, Field(description="the character after its last")]


class Sentence(Span, LabelScores):
    """What the model says of one sentence."""


class FailedSentence(Span, FailedItem):
    """A sentence without a prediction."""


class Prediction(LabelScores):
    """What the model says of one text."""

    sentences: NotRequired[
        Annotated[
            list[Sentence | FailedSentence], Field(description="with split: each, in their order")
        ]
    ]


class Word(Span):
    """What a word contributes to the label of its text."""

    contribution: Annotated[
        float, Field(description="how much lower the label's score is without this word")
    ]


# What became of one text.
Outcome = Prediction | ServiceError


def item(outcome: Outcome) -> Prediction | FailedItem:
    """The outcome as an item of ``results``."""
    if isinstance(outcome, ServiceError):
        return {"error": {"code": outcome.code, "message": outcome.detail}}
    return outcome
