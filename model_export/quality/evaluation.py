"""Classifies labelled texts with a bundle and scores the predictions."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from app.engine.model.model import Model
from app.errors import ServiceError, UserError
from model_export.quality.calibration import expected_calibration_error, log_loss
from model_export.quality.labelled import Example
from model_export.quality.scores import Scores, score

T = TypeVar("T")
TEXTS_PER_BATCH = 16
NO_SINGLE_LABEL = "is multi-label and cannot be scored with one label per text"


def evaluate(model: Model, examples: Sequence[Example]) -> Scores:
    """Classify every example as the service does; compare labels and scores with the example's.

    Raises:
        UserError: a text cannot be classified (the message names its row), or the model is
            multi-label, while the examples have one label each.
    """
    logits = logits_of_examples(model, examples)
    gold = np.array([model.labels.index(example.label) for example in examples])
    return replace(
        compare(examples, _names(model, logits), model.labels),
        ece=expected_calibration_error(logits / model.temperature, gold),
        log_loss=log_loss(logits / model.temperature, gold),
    )


def compare(examples: Sequence[Example], predicted: Sequence[str], labels: list[str]) -> Scores:
    """The scores of predictions in the order of the examples."""
    gold, groups = [e.label for e in examples], [e.group for e in examples]
    return score(gold, predicted, labels, groups)


def predicted_labels(model: Model, examples: Sequence[Example]) -> list[str]:
    """The predicted label of every example, in the same order.

    Raises:
        UserError: see ``evaluate``.
    """
    return _names(model, logits_of_examples(model, examples))


def logits_of_examples(model: Model, examples: Sequence[Example]) -> NDArray[np.float32]:
    """The logits [examples, labels] of the examples, in the same order.

    Raises:
        UserError: see ``evaluate``.
    """
    if model.multi_label:
        raise UserError(f"{model.name} {NO_SINGLE_LABEL}")
    encodings = []
    for row, example in enumerate(examples, start=1):
        try:
            encodings.append(model.tokenizer.encode(example.text))
        except ServiceError as error:
            raise UserError(f"labelled text {row}: {error.detail}") from error
    by_length = sorted(range(len(encodings)), key=lambda index: len(encodings[index]))
    logits = np.empty((len(examples), len(model.labels)), dtype=np.float32)
    with tqdm(total=len(examples), desc=model.precision, unit="text", disable=None) as progress:
        for rows in batches(by_length, TEXTS_PER_BATCH):
            answers = model.infer([encodings[row] for row in rows])
            for row, answer in zip(rows, answers, strict=True):
                if isinstance(answer, ServiceError):
                    raise UserError(f"labelled text {row + 1}: {answer.detail}")
                logits[row] = answer
            progress.update(len(rows))
    return logits


def batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Consecutive batches of ``size`` items, the last one perhaps smaller.

    ``itertools.batched`` needs Python 3.12.
    """
    return (items[start : start + size] for start in range(0, len(items), size))


def _names(model: Model, logits: NDArray[np.float32]) -> list[str]:
    return [model.labels[index] for index in logits.argmax(axis=1)]
