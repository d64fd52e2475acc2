"""Draws the confusion matrix, or the figures of a multi-label model's labels, as SVG."""

from collections.abc import Sequence
from io import StringIO

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from sentiment_export.quality.scores import Scores

INCHES = 0.6  # of a cell
DARK = 0.55  # from this share on, a cell's text is white

# Text, not outlines; and a dollar sign in a label is one.
mpl.rcParams |= {"svg.fonttype": "none", "text.parse_math": False}


def svg(scored: Sequence[tuple[str, Scores]]) -> str:
    """One panel below the other, each with its title. A cell is as dark as its share of its row."""
    cells = [_cells(scores) for _, scores in scored]
    heights = [INCHES * len(rows) + 1.5 for rows, *_ in cells]
    width = 3 + INCHES * max(len(columns) for _, columns, *_ in cells)
    figure = Figure(figsize=(max(8, width), sum(heights)), layout="constrained")
    panels = figure.subplots(len(scored), squeeze=False, height_ratios=heights)[:, 0]
    for panel, (title, scores), (rows, columns, texts, shares) in zip(
        panels, scored, cells, strict=True
    ):
        panel.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        panel.set_title(f"{title}: {scores.line()}", fontsize="medium")
        panel.set_xticks(range(len(columns)), columns, rotation=90)
        panel.set_yticks(range(len(rows)), rows)
        if scores.confusion is not None:
            panel.set(xlabel="predicted", ylabel="gold")
        for (row, column), share in np.ndenumerate(shares):
            colour = "white" if share >= DARK else "black"
            panel.text(column, row, texts[row][column], ha="center", va="center", color=colour)
    drawing = StringIO()
    figure.savefig(drawing, format="svg")
    return drawing.getvalue()


def _cells(scores: Scores) -> tuple[list[str], list[str], list[list[str]], NDArray[np.float64]]:
    """The names of rows and columns, the texts of the cells, and their shares."""
    if scores.confusion is not None:
        counts = np.array(scores.confusion)
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        texts = [[str(count) for count in row] for row in scores.confusion]
        return scores.labels, scores.labels, texts, shares
    rows = list(scores.f1)
    by = (scores.precision, scores.recall, scores.f1)
    shares = np.array([[figures[label] for figures in by] for label in rows]).reshape(-1, 3)
    texts = [[f"{share:.2f}" for share in row] for row in shares]
    return rows, ["precision", "recall", "F1"], texts, shares
