"""Quality figures of a classifier on labelled texts."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, recall_score


@dataclass(frozen=True, slots=True)
class Scores:
    """Figures in [0, 1]; ``confusion[i][j]`` counts gold label i predicted as label j.

    ``macro_recall`` is the metric of TweetEval's sentiment task (Barbieri et al. 2020),
    ``macro_f1`` that of UMSAB (Barbieri et al. 2022).
    """

    samples: int
    accuracy: float
    macro_recall: float
    macro_f1: float
    labels: list[str]
    recall: dict[str, float]
    confusion: list[list[int]]

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready copy."""
        return asdict(self)

    def table(self) -> str:
        """The figures and the confusion matrix as text for a terminal."""
        width = max(len(label) for label in self.labels) + 2
        header = " " * width + "".join(f"{label:>{width}}" for label in self.labels)
        rows = [
            f"{label:<{width}}" + "".join(f"{count:>{width}}" for count in counts)
            for label, counts in zip(self.labels, self.confusion, strict=True)
        ]
        figures = (
            f"macro recall {self.macro_recall:.4f}  macro F1 {self.macro_f1:.4f}  "
            f"accuracy {self.accuracy:.4f}  ({self.samples} texts)"
        )
        return "\n".join([figures, "rows: gold, columns: predicted", header, *rows])


def score(gold: Sequence[str], predicted: Sequence[str], labels: list[str]) -> Scores:
    """Compare predictions with gold labels, both as label names in the same order.

    Macro figures average over the labels that occur in ``gold``.
    """
    present = [label for label in labels if label in set(gold)]
    recalls = recall_score(gold, predicted, labels=present, average=None, zero_division=0)
    return Scores(
        samples=len(gold),
        accuracy=float(accuracy_score(gold, predicted)),
        macro_recall=float(recalls.mean()),
        macro_f1=float(f1_score(gold, predicted, labels=present, average="macro", zero_division=0)),
        labels=labels,
        recall={label: float(value) for label, value in zip(present, recalls, strict=True)},
        confusion=confusion_matrix(gold, predicted, labels=labels).tolist(),
    )
