"""Quality figures of a classifier on labelled texts."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures in [0, 1].

    ``macro_recall`` is the metric of TweetEval's sentiment task (Barbieri et al. 2020),
    ``macro_f1`` that of UMSAB (Barbieri et al. 2022), per language.
    """

    samples: int
    accuracy: float
    macro_recall: float
    macro_f1: float

    def line(self) -> str:
        """The figures in one line, for a terminal."""
        return (
            f"macro recall {self.macro_recall:.4f}  macro F1 {self.macro_f1:.4f}  "
            f"accuracy {self.accuracy:.4f}  ({self.samples} texts)"
        )


@dataclass(frozen=True, slots=True)
class Scores(Figures):
    """Figures of all texts; ``confusion[i][j]`` counts gold label i predicted as label j.

    ``groups`` holds the figures of each group, ``mean`` their average over the groups. ``ece`` and
    ``log_loss`` are those of the model's scores, where these are known.
    """

    labels: list[str]
    recall: dict[str, float]
    confusion: list[list[int]]
    groups: dict[str, Figures]
    mean: Figures
    agreement_with_fp32: float | None = None
    ece: float | None = None
    log_loss: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready copy, without what is not known."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def table(self) -> str:
        """The figures and the confusion matrix as text for a terminal."""
        width = max(len(label) for label in self.labels) + 2
        header = " " * width + "".join(f"{label:>{width}}" for label in self.labels)
        rows = [
            f"{label:<{width}}" + "".join(f"{count:>{width}}" for count in counts)
            for label, counts in zip(self.labels, self.confusion, strict=True)
        ]
        low, high = interval(self.accuracy, self.samples)
        certain = f"accuracy on all texts like these, with 95 % confidence: {low:.3f} to {high:.3f}"
        lines = [self.line(), certain, "rows: gold, columns: predicted", header, *rows]
        if len(self.groups) > 1:
            widest = max(len(name) for name in self.groups | {"mean": 0})
            lines += [f"{name:<{widest}}  {group.line()}" for name, group in self.groups.items()]
            lines.append(f"{'mean':<{widest}}  {self.mean.line()}")
        if self.agreement_with_fp32 is not None:
            lines.append(f"labels agree with fp32: {self.agreement_with_fp32:.2%}")
        if self.ece is not None:
            lines.append(f"scores: ECE {self.ece:.4f}  log loss {self.log_loss:.4f}")
        return "\n".join(lines)


def score(
    gold: Sequence[str], predicted: Sequence[str], labels: list[str], groups: Sequence[str] = ()
) -> Scores:
    """Compare predictions with gold labels; both are label names in the same order.

    Macro figures average over the labels that occur in ``gold``. ``groups`` names the group of
    each text, in the same order; it may be empty.
    """
    index = {label: number for number, label in enumerate(labels)}
    texts = np.array([[index[label] for label in gold], [index[label] for label in predicted]])
    confusion = _confusion(texts, len(labels))
    whole = _figures(confusion)
    group_of = np.array(groups)
    by_group = {
        name: _figures(_confusion(texts[:, group_of == name], len(labels)))
        for name in sorted(set(groups))
    }
    recalls = zip(labels, confusion.diagonal(), confusion.sum(axis=1), strict=True)
    parts = list(by_group.values()) or [whole]
    return Scores(
        **asdict(whole),
        labels=labels,
        recall={label: float(right / texts) for label, right, texts in recalls if texts},
        confusion=confusion.tolist(),
        groups=by_group,
        mean=Figures(
            samples=whole.samples,
            accuracy=fmean(part.accuracy for part in parts),
            macro_recall=fmean(part.macro_recall for part in parts),
            macro_f1=fmean(part.macro_f1 for part in parts),
        ),
    )


def interval(share: float, samples: int) -> tuple[float, float]:
    """The 95 % interval of a share that was ``share`` among ``samples`` (Wilson 1927)."""
    z = 1.96 / sqrt(samples)
    middle, half = share + z * z / 2, z * sqrt(share * (1 - share) + z * z / 4)
    return (middle - half) / (1 + z * z), (middle + half) / (1 + z * z)


def _confusion(texts: NDArray[np.int_], labels: int) -> NDArray[np.int_]:
    """How many texts [2, texts] of a gold label, a row, were predicted as a label, a column."""
    counts = np.bincount(texts[0] * labels + texts[1], minlength=labels**2)
    return counts.reshape(labels, labels)


def _figures(confusion: NDArray[np.int_]) -> Figures:
    """The figures of a confusion matrix, whose rows are the gold labels."""
    right, gold, predicted = confusion.diagonal(), confusion.sum(axis=1), confusion.sum(axis=0)
    present = gold > 0
    recall = right[present] / gold[present]
    f1 = 2 * right[present] / (gold + predicted)[present]  # 2 / (1 / recall + 1 / precision)
    return Figures(
        samples=int(gold.sum()),
        accuracy=float(right.sum() / gold.sum()),
        macro_recall=float(recall.mean()),
        macro_f1=float(f1.mean()),
    )
