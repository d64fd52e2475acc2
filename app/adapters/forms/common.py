"""What the protocols of other servers have in common."""

from collections.abc import Iterable, Mapping
from typing import Annotated

from pydantic import BaseModel, Field, PlainValidator
from typing_extensions import TypedDict

from app.engine.model.model import Model
from app.engine.predictions import Prediction
from app.engine.text.encoding import Overflow, TextOptions
from app.engine.text.pairs import Text
from app.validation import NonEmpty, PairObject, SingleText, Threshold, parse_texts

# These protocols have no place for the error of one text, so every text must be valid.
AllTexts = Annotated[
    Text | list[Text],
    PlainValidator(
        parse_texts,
        json_schema_input_type=SingleText | NonEmpty[SingleText] | NonEmpty[PairObject],
    ),
]
INPUTS = "one text, or a list of texts; a list of two strings is two separate texts"


# What the embedded model answers to the example "I love this!".
RANKED = [
    {"label": "positive", "score": 0.899},
    {"label": "negative", "score": 0.061},
    {"label": "neutral", "score": 0.04},
]


class LabelScore(TypedDict):
    """A label and its score."""

    label: Annotated[str, Field(description="one of the model's labels")]
    score: Annotated[float, Field(description="its score")]


class TextParameters(BaseModel):
    """Parameters of all texts; others are ignored."""

    overflow: Overflow = Field(default="truncate", description="as in POST /classify")
    threshold: Threshold | None = Field(default=None, description="as in POST /classify")

    @property
    def options(self) -> TextOptions:
        """The same for the model."""
        return TextOptions(self.overflow, threshold=self.threshold)


def ranking(values: Mapping[str, float]) -> list[LabelScore]:
    """Labels and their scores or logits, highest first."""
    ranked = sorted(values.items(), key=lambda item: -item[1])
    return [{"label": label, "score": value} for label, value in ranked]


def tokens_computed(model: Model, predictions: Iterable[Prediction]) -> int:
    """The number of tokens that the model saw, including special tokens."""
    return sum(min(prediction["tokens"], model.max_tokens) for prediction in predictions)
