"""Scores a bundle on labelled texts."""

from collections.abc import Sequence

from app.errors import ServiceError, UserError
from app.model import Model
from model_export.labelled import Example
from model_export.scores import Scores, score

TEXTS_PER_BATCH = 16


def evaluate(model: Model, examples: Sequence[Example]) -> Scores:
    """Classify every example as the service would and compare with its label.

    Raises:
        UserError: a text cannot be classified; names its row.
    """
    encodings = []
    for row, example in enumerate(examples, start=1):
        try:
            encodings.append(model.encode(example.text))
        except ServiceError as error:
            raise UserError(f"labelled text {row}: {error.detail}") from error
    by_length = sorted(range(len(encodings)), key=lambda index: len(encodings[index]))
    predicted = [""] * len(examples)
    for start in range(0, len(by_length), TEXTS_PER_BATCH):
        rows = by_length[start : start + TEXTS_PER_BATCH]
        for row, logits in zip(rows, model.infer([encodings[row] for row in rows]), strict=True):
            if isinstance(logits, ServiceError):
                raise UserError(f"labelled text {row + 1}: {logits.detail}")
            predicted[row] = model.labels[int(logits.argmax())]
    return score([example.label for example in examples], predicted, model.labels)
