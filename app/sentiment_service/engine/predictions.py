"""The results of texts, as plain dicts, and how they are made of the logits of batches."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NotRequired, TypeVar, cast

import numpy as np
from typing_extensions import TypedDict

from sentiment_service.engine.model.model import Model, Scored
from sentiment_service.engine.text.encoding import (
    EncodedSentence,
    EncodedText,
    Encoding,
    TextWarning,
)
from sentiment_service.errors import ServiceError

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
    polarity: NotRequired[float]  # of a model of sentiment
    labels: NotRequired[list[str]]  # of a multi-label model
    windows: NotRequired[int]
    warnings: NotRequired[list[TextWarning]]  # of a text that has any


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


# The result for one text: a prediction, or the error that says why there is none.
Outcome = Prediction | ServiceError


def item(outcome: Result | ServiceError) -> Result | FailedItem:
    """The outcome of a text as an item of ``results``."""
    if isinstance(outcome, ServiceError):
        return {"error": {"code": outcome.code, "message": outcome.detail}}
    return outcome


def outcomes_of(
    model: Model,
    texts: Sequence[EncodedText | ServiceError],
    results: Sequence[Scored | ServiceError],
) -> list[Outcome]:
    """The outcome of each text. ``results`` has one result for each of ``encodings(texts)``."""
    remaining = iter(results)
    return [
        text if isinstance(text, ServiceError) else _prediction(model, text, remaining)
        for text in texts
    ]


def _prediction(
    model: Model, text: EncodedText, results: Iterator[Scored | ServiceError]
) -> Outcome:
    windows = text.windows
    answers = list(islice(results, len(windows)))
    sentences = [_sentence(model, sentence, results) for sentence in text.sentences]
    scored: list[Scored] = []
    for answer in answers:
        if isinstance(answer, ServiceError):
            return answer
        scored.append(answer)
    logits, scores = scored[0] if len(scored) == 1 else _mean(model, windows, scored)
    # Not by the scores: where they are rounded to the same number, the logits still differ.
    best = logits.index(max(logits))
    prediction: Prediction = {
        "label": model.labels[best],
        "score": scores[best],
        "scores": dict(zip(model.labels, scores, strict=True)),
        "logits": dict(zip(model.labels, logits, strict=True)),
        "tokens": text.encoding.tokens,
        "truncated": text.encoding.truncated,
    }
    if model.is_sentiment:
        by_label = prediction["scores"]
        prediction["polarity"] = by_label["positive"] - by_label["negative"]
    if model.multi_label:
        prediction["labels"] = model.chosen(scores, text.options.threshold)
    if text.options.overflow == "window":
        prediction["truncated"] = False
        prediction["windows"] = len(windows)
    if text.warnings:
        prediction["warnings"] = [*text.warnings]
    if text.options.split:
        prediction["sentences"] = sentences
    return prediction


def _sentence(
    model: Model, sentence: EncodedSentence, results: Iterator[Scored | ServiceError]
) -> Sentence | FailedSentence:
    if isinstance(sentence.text, ServiceError):
        outcome: Outcome = sentence.text
    else:
        outcome = _prediction(model, sentence.text, results)
    part = {"start": sentence.start, "end": sentence.end, **item(outcome)}
    return cast(Sentence | FailedSentence, part)


def _mean(model: Model, windows: Sequence[Encoding], scored: Sequence[Scored]) -> Scored:
    """One text's logits and scores. Its logits are the mean of its windows', weighted by tokens."""
    logits = np.average([logits for logits, _ in scored], axis=0, weights=[*map(len, windows)])
    scores = model.scores(logits.astype(np.float32))
    return logits.tolist(), scores.tolist()


def every_prediction(outcomes: Sequence[Outcome]) -> list[Prediction]:
    """The predictions, for answers that have no place for the error of one text.

    Raises:
        ServiceError: the error of the first bad text. Among several texts, it names the text.
    """
    predictions = []
    for index, outcome in enumerate(outcomes):
        if isinstance(outcome, ServiceError):
            if len(outcomes) == 1:
                raise outcome
            # A new error: other texts and other requests may share the original.
            detail = f"text {index}, counted from 0: {outcome.detail}"
            raise type(outcome)(detail, retry_after_s=outcome.retry_after_s) from None
        predictions.append(outcome)
    return predictions
