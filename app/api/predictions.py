"""A text's way through a model, and the document that says what came out. No HTTP here."""

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from typing_extensions import TypedDict

from app.errors import ServiceError, TextTooLong
from app.model import Encoding, Model

Overflow = Literal["truncate", "error"]
Scored = tuple[list[float], list[float]]  # logits and scores, in the order of the labels


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
    model: Model, texts: Sequence[str], *, max_chars: int, overflow: Overflow = "truncate"
) -> list[Encoding | ServiceError]:
    """Each text's tokens, or why it cannot be classified."""
    fitting = iter(model.encode_batch([text for text in texts if len(text) <= max_chars]))
    return [
        _within_limit(next(fitting), model, overflow)
        if len(text) <= max_chars
        else TextTooLong(f"the text has {len(text)} characters; at most {max_chars} are accepted")
        for text in texts
    ]


def infer(model: Model, encodings: Sequence[Encoding]) -> list[Scored | ServiceError]:
    """Logits and scores of each encoding, computed as one batch."""
    logits = model.infer(encodings)
    rows = [row for row in logits if not isinstance(row, ServiceError)]
    # All at once: one by one the scores would take longer than the rest of a short answer.
    values = np.array(rows, dtype=np.float32).reshape(-1, len(model.labels))
    scored = zip(values.tolist(), model.scores(values).tolist(), strict=True)
    return [row if isinstance(row, ServiceError) else next(scored) for row in logits]


def predict(
    labels: Sequence[str],
    encoded: Sequence[Encoding | ServiceError],
    results: Sequence[Scored | ServiceError],
) -> list[Prediction | ServiceError]:
    """What became of each text; ``results`` has one for every ``Encoding`` in ``encoded``."""
    answers = iter(results)
    outcomes: list[Prediction | ServiceError] = []
    for encoding in encoded:
        if isinstance(encoding, ServiceError):
            outcomes.append(encoding)
        elif isinstance(answer := next(answers), ServiceError):
            outcomes.append(answer)
        else:
            outcomes.append(_prediction(labels, encoding, *answer))
    return outcomes


def document(outcome: Prediction | ServiceError) -> Prediction | FailedItem:
    """An item of ``results``."""
    if isinstance(outcome, ServiceError):
        return {"error": {"code": outcome.code, "message": outcome.detail}}
    return outcome


def _within_limit(
    encoding: Encoding | ServiceError, model: Model, overflow: Overflow
) -> Encoding | ServiceError:
    if isinstance(encoding, Encoding) and encoding.truncated and overflow == "error":
        return TextTooLong(
            f"the text has {encoding.tokens} tokens; the model takes at most {model.max_tokens} "
            'and "overflow" is "error"'
        )
    return encoding


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
