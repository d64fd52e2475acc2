"""A text's way through a model, and the document that says what came out. No HTTP here."""

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from typing_extensions import TypedDict

from app.errors import ServiceError, TextTooLong
from app.model import Encoding, Logits, Model

Overflow = Literal["truncate", "error"]


class Prediction(TypedDict):
    """What the model says of one text."""

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


class ItemError(TypedDict):
    """Why one text of a list has no prediction."""

    code: str
    message: str


class FailedItem(TypedDict):
    """Stands in the place of a prediction."""

    error: ItemError


def encode(
    model: Model, text: str, *, max_chars: int, overflow: Overflow = "truncate"
) -> Encoding | ServiceError:
    """The text's tokens, or why it cannot be classified."""
    if len(text) > max_chars:
        return TextTooLong(f"the text has {len(text)} characters; at most {max_chars} are accepted")
    try:
        encoding = model.encode(text)
    except ServiceError as error:
        return error
    if encoding.truncated and overflow == "error":
        return TextTooLong(
            f"the text has {encoding.tokens} tokens; the model takes at most {model.max_tokens} "
            'and "overflow" is "error"'
        )
    return encoding


def predict(
    model: Model,
    encoded: Sequence[Encoding | ServiceError],
    results: Sequence[Logits | ServiceError],
) -> list[Prediction | ServiceError]:
    """What became of each text; ``results`` has one for every ``Encoding`` in ``encoded``."""
    rows = [result for result in results if not isinstance(result, ServiceError)]
    logits = np.array(rows, dtype=np.float32).reshape(-1, len(model.labels))
    # All texts at once: for a list of a thousand the scores would take longer than the rest.
    values = zip(logits.tolist(), model.scores(logits).tolist(), strict=True)
    answers = iter(results)
    outcomes: list[Prediction | ServiceError] = []
    for encoding in encoded:
        if isinstance(encoding, ServiceError):
            outcomes.append(encoding)
        elif isinstance(answer := next(answers), ServiceError):
            outcomes.append(answer)
        else:
            outcomes.append(_prediction(model.labels, encoding, *next(values)))
    return outcomes


def document(outcome: Prediction | ServiceError) -> Prediction | FailedItem:
    """An item of ``results``."""
    if isinstance(outcome, ServiceError):
        return {"error": {"code": outcome.code, "message": outcome.detail}}
    return outcome


def _prediction(
    labels: Sequence[str], encoding: Encoding, logits: list[float], scores: list[float]
) -> Prediction:
    score = max(scores)
    return {
        "label": labels[scores.index(score)],
        "score": score,
        "scores": dict(zip(labels, scores, strict=True)),
        "logits": dict(zip(labels, logits, strict=True)),
        "tokens": encoding.tokens,
        "truncated": encoding.truncated,
    }
