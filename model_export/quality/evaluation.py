"""Labels that a bundle gives to labelled texts, and how well they fit."""

from collections.abc import Sequence

from tqdm import tqdm

from app.engine.model import Model
from app.errors import ServiceError, UserError
from model_export.quality.labelled import Example
from model_export.quality.scores import Scores, score

TEXTS_PER_BATCH = 16


def evaluate(model: Model, examples: Sequence[Example]) -> Scores:
    """Classify every example as the service would and compare with its label.

    Raises:
        UserError: a text cannot be classified; names its row. Or the model is multi-label,
            which one label a text cannot score.
    """
    return compare(examples, predict(model, examples), model.labels)


def compare(examples: Sequence[Example], predicted: Sequence[str], labels: list[str]) -> Scores:
    """The scores of predictions that are in the examples' order."""
    gold, groups = [e.label for e in examples], [e.group for e in examples]
    return score(gold, predicted, labels, groups)


def predict(model: Model, examples: Sequence[Example]) -> list[str]:
    """The label of every example, in their order.

    Raises:
        UserError: as ``evaluate``.
    """
    if model.multi_label:
        raise UserError(f"{model.name} is multi-label: one label a text cannot score it")
    encodings = []
    for row, example in enumerate(examples, start=1):
        try:
            encodings.append(model.encode(example.text))
        except ServiceError as error:
            raise UserError(f"labelled text {row}: {error.detail}") from error
    by_length = sorted(range(len(encodings)), key=lambda index: len(encodings[index]))
    predicted = [""] * len(examples)
    with tqdm(total=len(examples), desc=model.precision, unit="text", disable=None) as progress:
        for start in range(0, len(by_length), TEXTS_PER_BATCH):
            rows = by_length[start : start + TEXTS_PER_BATCH]
            answers = model.infer([encodings[row] for row in rows])
            for row, logits in zip(rows, answers, strict=True):
                if isinstance(logits, ServiceError):
                    raise UserError(f"labelled text {row + 1}: {logits.detail}")
                predicted[row] = model.labels[int(logits.argmax())]
            progress.update(len(rows))
    return predicted
