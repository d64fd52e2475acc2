"""Quality figures of a classifier on labelled texts, for a terminal, as JSON and as a picture."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from io import StringIO
from math import sqrt
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentiment_export.quality.labelled import Example, Labels

Marks = NDArray[np.bool_]  # [texts, labels]: whether a text has a label
WIDEST = 120  # characters of a line; a wider confusion matrix is not shown, but in JSON


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures in [0, 1].

    ``macro_recall`` is the metric of TweetEval's sentiment task (Barbieri et al. 2020),
    ``macro_f1`` that of UMSAB (Barbieri et al. 2022), per language. ``accuracy`` is the share of
    texts with exactly the right labels. ``micro_f1`` counts each label of each text; it is known
    of multi-label models, because of others it is the accuracy.
    """

    samples: int
    accuracy: float
    macro_precision: float
    macro_recall: float
    macro_f1: float
    micro_f1: float | None

    def line(self) -> str:
        figures = "  ".join(f"{title} {figure:.4f}" for title, figure in self.named().items())
        return f"{figures}  ({self.samples} texts)"

    def named(self) -> dict[str, float]:
        """The figures that are shown first, by their titles."""
        macro = {"macro recall": self.macro_recall, "macro F1": self.macro_f1}
        if self.micro_f1 is None:
            return {**macro, "accuracy": self.accuracy}
        return {**macro, "micro F1": self.micro_f1, "exact match": self.accuracy}


@dataclass(frozen=True, slots=True)
class Scores(Figures):
    """Figures of all texts, of each group, and their ``mean`` over the groups.

    ``precision``, ``recall``, ``f1`` and ``texts`` are by label, without labels that no text has.
    ``confusion[i][j]`` counts gold label i predicted as label j; there is none of a multi-label
    model. ``ece`` and ``log_loss`` are those of the model's scores, where these are known.
    ``lengths``, ``tokens`` and ``unknown_tokens`` are those of ``Evaluation``.
    """

    labels: list[str]
    precision: dict[str, float]
    recall: dict[str, float]
    f1: dict[str, float]
    texts: dict[str, int]
    confusion: list[list[int]] | None
    groups: dict[str, Figures]
    mean: Figures
    agreement_with_fp32: float | None = None
    ece: float | None = None
    log_loss: float | None = None
    lengths: dict[str, int] | None = None
    tokens: int | None = None
    unknown_tokens: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready copy, without what is not known."""
        return asdict(
            self,
            dict_factory=lambda items: {name: value for name, value in items if value is not None},
        )

    def table(self) -> str:
        low, high = interval(self.accuracy, self.samples)
        *_, name = self.named()
        certain = f"{name} on all texts like these, with 95 % confidence: {low:.3f} to {high:.3f}"
        lines = [self.line(), certain, *self._label_rows(), *self._matrix()]
        if len(self.groups) > 1:
            widest = max(len(name) for name in self.groups | {"mean": 0})
            lines += [f"{name:<{widest}}  {group.line()}" for name, group in self.groups.items()]
            lines.append(f"{'mean':<{widest}}  {self.mean.line()}")
        if self.agreement_with_fp32 is not None:
            lines.append(f"labels agree with fp32: {self.agreement_with_fp32:.2%}")
        if self.ece is not None:
            lines.append(f"scores: ECE {self.ece:.4f}  log loss {self.log_loss:.4f}")
        return "\n".join(lines)

    def _label_rows(self) -> list[str]:
        width = max(map(len, [*self.labels, "macro"]))
        rows = [
            f"{label:<{width}}  {self.precision[label]:9.4f}  {self.recall[label]:6.4f}  "
            f"{self.f1[label]:6.4f}  {texts:5}"
            for label, texts in self.texts.items()
        ]
        macro = (
            f"{'macro':<{width}}  {self.macro_precision:9.4f}  {self.macro_recall:6.4f}  "
            f"{self.macro_f1:6.4f}"
        )
        return [f"{'':<{width}}  precision  recall      F1  texts", *rows, macro]

    def _matrix(self) -> list[str]:
        cell = max(map(len, [*self.labels, str(self.samples)])) + 2
        if self.confusion is None or cell * (len(self.labels) + 1) > WIDEST:
            return []
        rows = zip(self.labels, self.confusion, strict=True)
        return [
            "rows: gold, columns: predicted",
            " " * cell + "".join(f"{label:>{cell}}" for label in self.labels),
            *(f"{label:<{cell}}" + "".join(f"{n:>{cell}}" for n in row) for label, row in rows),
        ]


def score(
    gold: Sequence[Labels],
    predicted: Sequence[Labels],
    labels: list[str],
    groups: Sequence[str] = (),
    *,
    multi_label: bool = False,
) -> Scores:
    """Compare the predicted labels of each text with its gold labels, in the same order.

    Macro figures average over the labels that occur in ``gold``. ``groups`` names the group of
    each text, in the same order; it may be empty.
    """
    right, found = marks(gold, labels), marks(predicted, labels)
    whole = _figures(right, found, multi_label=multi_label)
    group_of = np.array(groups)
    by_group = {
        name: _figures(right[group_of == name], found[group_of == name], multi_label=multi_label)
        for name in sorted(set(groups))
    }
    texts = right.sum(axis=0)
    named = [label for label, some in zip(labels, texts, strict=True) if some]
    precision, recall, f1, number = (
        dict(zip(named, row[texts > 0].tolist(), strict=True))
        for row in (*_by_label(right, found), texts)
    )
    parts = list(by_group.values()) or [whole]
    means: dict[str, Any] = {
        name: fmean(getattr(part, name) for part in parts)
        for name, figure in asdict(whole).items()
        if figure is not None
    }
    return Scores(
        **asdict(whole),
        labels=labels,
        precision=precision,
        recall=recall,
        f1=f1,
        texts=number,
        confusion=None if multi_label else (right.T.astype(int) @ found).tolist(),
        groups=by_group,
        mean=replace(whole, **(means | {"samples": whole.samples})),
    )


def marks(named: Sequence[Labels], labels: Sequence[str]) -> Marks:
    """Which of the labels each text has."""
    index = {label: number for number, label in enumerate(labels)}
    found = np.zeros((len(named), len(labels)), dtype=np.bool_)
    for row, names in enumerate(named):
        found[row, [index[name] for name in names]] = True
    return found


def interval(share: float, samples: int) -> tuple[float, float]:
    """The 95 % interval of a share that was ``share`` among ``samples`` (Wilson 1927)."""
    z = 1.96 / sqrt(samples)
    middle, half = share + z * z / 2, z * sqrt(share * (1 - share) + z * z / 4)
    return (middle - half) / (1 + z * z), (middle + half) / (1 + z * z)


def _by_label(gold: Marks, predicted: Marks) -> NDArray[np.float64]:
    """Precision, recall and F1 [3, labels]; 0 where there is nothing to divide by."""
    right = (gold & predicted).sum(axis=0)
    theirs, ours = gold.sum(axis=0), predicted.sum(axis=0)
    # F1 is 2 / (1 / recall + 1 / precision).
    return np.array([right, right, 2 * right]) / np.maximum([ours, theirs, ours + theirs], 1)


def _figures(gold: Marks, predicted: Marks, *, multi_label: bool) -> Figures:
    present = gold.any(axis=0)
    by_label = _by_label(gold, predicted)[:, present]
    precision, recall, f1 = by_label.mean(axis=1) if present.any() else (0.0, 0.0, 0.0)
    both = 2 * (gold & predicted).sum() / max(gold.sum() + predicted.sum(), 1)
    return Figures(
        samples=len(gold),
        accuracy=float((gold == predicted).all(axis=1).mean()),
        macro_precision=float(precision),
        macro_recall=float(recall),
        macro_f1=float(f1),
        micro_f1=float(both) if multi_label else None,
    )


TEXTS_SHOWN = 20
ROWS_SHOWN = 10  # of each kind of change


@dataclass(frozen=True, slots=True)
class Change:
    """The texts whose labels changed in one way; ``rows`` counts the labelled texts from 1.

    ``before`` and ``after`` are a label, or all of a multi-label model's. ``now_right`` and
    ``now_wrong`` count texts whose labels are right now, or were before.
    """

    before: str
    after: str
    rows: list[int]
    now_right: int
    now_wrong: int

    def line(self) -> str:
        rows = ", ".join(map(str, self.rows[:ROWS_SHOWN]))
        more = " …" if len(self.rows) > ROWS_SHOWN else ""
        return (
            f"{self.before} → {self.after}: {len(self.rows)} "
            f"({self.now_right} now right, {self.now_wrong} now wrong); rows {rows}{more}"
        )


def changes(
    examples: Sequence[Example], before: Sequence[Labels], after: Sequence[Labels]
) -> list[Change]:
    """The changes from ``before`` to ``after``, the most frequent first."""
    rows: dict[tuple[str, str], list[int]] = {}
    for row, (old, new) in enumerate(zip(before, after, strict=True), start=1):
        if set(old) != set(new):
            rows.setdefault((_named(old), _named(new)), []).append(row)
    found = []
    for (was, became), changed in rows.items():
        gold = [_named(examples[row - 1].labels) for row in changed]
        found.append(Change(was, became, changed, gold.count(became), gold.count(was)))
    return sorted(found, key=lambda change: -len(change.rows))


def comparison(old: Scores, new: Scores, found: Sequence[Change], texts: Sequence[Example]) -> str:
    """Both models' figures side by side, and the changes, as text for a terminal."""
    before = _named_figures(old)
    width = max(map(len, before))
    lines = [f"{'':<{width}}  against     this"]
    lines += [
        f"{title:<{width}}  {before[title]:7.4f}  {after:7.4f}  {after - before[title]:+.4f}"
        for title, after in _named_figures(new).items()
    ]
    by_row = {row: change for change in found for row in change.rows}
    lines.append(f"texts whose labels changed: {len(by_row)} of {len(texts)}")
    lines += [change.line() for change in found]
    for row in sorted(by_row)[:TEXTS_SHOWN]:
        change, example = by_row[row], texts[row - 1]
        text = " ".join(example.text.split())
        right = _named(example.labels)
        lines.append(f"row {row}, {change.before} → {change.after} (right: {right}): {text}")
    return "\n".join(lines)


def _named_figures(scores: Scores) -> dict[str, float]:
    return {**scores.named(), **{f"F1 {label}": figure for label, figure in scores.f1.items()}}


def _named(labels: Labels) -> str:
    return ", ".join(sorted(labels)) or "none"


INCHES = 0.6  # of a cell
DARK = 0.55  # from this share on, a cell's text is white


def svg(scored: Sequence[tuple[str, Scores]]) -> str:
    """A picture of the confusion matrices, or of the figures of a multi-label model's labels."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    cells = [_cells(scores) for _, scores in scored]
    heights = [INCHES * len(rows) + 1.5 for rows, *_ in cells]
    width = 3 + INCHES * max(len(columns) for _, columns, *_ in cells)
    figure = Figure(figsize=(max(8, width), sum(heights)), layout="constrained")
    panels = figure.subplots(len(scored), squeeze=False, height_ratios=heights)[:, 0]
    for panel, (title, scores), (rows, columns, texts, shares) in zip(
        panels, scored, cells, strict=True
    ):
        # Without interpolation, an SVG has the cells; with it, a bitmap of the figure's size.
        panel.imshow(shares, cmap="Blues", vmin=0, vmax=1, interpolation="none")
        panel.set_title(f"{title}: {scores.line()}", fontsize="medium")
        panel.set_xticks(range(len(columns)), columns, rotation=90)
        panel.set_yticks(range(len(rows)), rows)
        if scores.confusion is not None:
            panel.set(xlabel="predicted", ylabel="gold")
        for (row, column), share in np.ndenumerate(shares):
            colour = "white" if share >= DARK else "black"
            if text := texts[row][column]:  # of a thousand labels, a million are 0
                panel.text(column, row, text, ha="center", va="center", color=colour)
    drawing = StringIO()
    # Text, not outlines; and a dollar sign in a label is one.
    with mpl.rc_context({"svg.fonttype": "none", "text.parse_math": False}):
        figure.savefig(drawing, format="svg")
    return drawing.getvalue()


def _cells(scores: Scores) -> tuple[list[str], list[str], list[list[str]], NDArray[np.float64]]:
    """The names of rows and columns, the texts of the cells, and their shares."""
    if scores.confusion is not None:
        counts = np.array(scores.confusion)
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        texts = [[str(count or "") for count in row] for row in scores.confusion]
        return scores.labels, scores.labels, texts, shares
    rows = list(scores.f1)
    by = (scores.precision, scores.recall, scores.f1)
    shares = np.array([[figures[label] for figures in by] for label in rows]).reshape(-1, 3)
    texts = [[f"{share:.2f}" for share in row] for row in shares]
    return rows, ["precision", "recall", "F1"], texts, shares
