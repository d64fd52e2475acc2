"""From encodings to predictions: logits and scores of a batch, then the outcome of each text."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import cast

import numpy as np

from app.engine.model.device_errors import device_error
from app.engine.model.model import Model
from app.engine.results import FailedSentence, Outcome, Prediction, Sentence, item
from app.engine.text.encoded_text import EncodedSentence, EncodedText
from app.engine.text.encoding import Encoding
from app.errors import ServiceError

Scored = tuple[list[float], list[float]]  # logits and scores, in the order of the labels


def score_batch(model: Model, encodings: Sequence[Encoding]) -> list[Scored | ServiceError]:
    """Logits and scores of each encoding, computed as one batch.

    Raises:
        OutOfMemory: the batch needs more memory than there is.
        DeviceLost: no further batch can be computed.
    """
    try:
        logits = model.infer(encodings)
    except Exception as error:
        if (known := device_error(error)) is not None:
            raise known from error
        raise
    rows = [row for row in logits if not isinstance(row, ServiceError)]
    # Compute all scores at once. One at a time, they would take longer than the rest of a short
    # answer.
    values = np.array(rows, dtype=np.float32).reshape(-1, len(model.labels))
    scored = zip(values.tolist(), model.scores(values).tolist(), strict=True)
    return [row if isinstance(row, ServiceError) else next(scored) for row in logits]


def outcomes_of(
    model: Model,
    texts: Sequence[EncodedText | ServiceError],
    results: Sequence[Scored | ServiceError],
) -> list[Outcome]:
    """The outcome of each text. ``results`` has one result for each of ``encodings(texts)``."""
    left = iter(results)
    return [
        text if isinstance(text, ServiceError) else _prediction(model, text, left) for text in texts
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
    if text.options.overflow == "window":
        prediction["truncated"] = False
        prediction["windows"] = len(windows)
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
