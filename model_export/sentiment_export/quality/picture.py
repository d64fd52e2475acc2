"""Draws the confusion matrix, or the figures of a multi-label model's labels, as SVG."""

from collections.abc import Sequence
from html import escape

import numpy as np

from sentiment_export.quality.scores import Scores

CELL, LINE, CHARACTER = 56, 24, 7.5  # pixels
MARGIN = 16
DARK = 0.55  # from this share on, a cell's text is white


def svg(scored: Sequence[tuple[str, Scores]]) -> str:
    """One panel below the other, each with its title. A cell is as dark as its share of its row."""
    drawn, width, height = [], 0.0, float(MARGIN)
    for title, scores in scored:
        panel, panel_width, panel_height = _panel(title, scores)
        drawn.append(f'<g transform="translate({MARGIN},{height:g})">{panel}</g>')
        width, height = max(width, panel_width + 2 * MARGIN), height + panel_height + MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'font-family="sans-serif" font-size="13">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{chr(10).join(drawn)}\n</svg>\n'
    )


def _panel(title: str, scores: Scores) -> tuple[str, float, float]:
    """The drawing, and its width and height in pixels."""
    if scores.confusion is not None:
        counts = np.array(scores.confusion)
        rows, heading = scores.labels, "rows: gold, columns: predicted"
        columns = scores.labels
        texts = [[str(count) for count in row] for row in scores.confusion]
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    else:
        rows, heading = list(scores.f1), "figures by label"
        columns = ["precision", "recall", "F1"]
        by = (scores.precision, scores.recall, scores.f1)
        shares = np.array([[figures[label] for figures in by] for label in rows]).reshape(-1, 3)
        texts = [[f"{share:.2f}" for share in row] for row in shares]
    left = max(map(len, rows), default=0) * CHARACTER + 8
    top = 2 * LINE + max(map(len, columns)) * CHARACTER + 8
    parts = [_text(0, 14, f"{title}: {scores.line()}"), _text(0, 14 + LINE, heading)]
    for number, name in enumerate(columns):
        x = left + (number + 0.6) * CELL
        parts.append(_text(x, top - 6, name, f' transform="rotate(-90 {x:g} {top - 6:g})"'))
    for number, (name, row, darkness) in enumerate(zip(rows, texts, shares, strict=True)):
        y = top + number * LINE
        parts.append(_text(left - 6, y + 17, name, ' text-anchor="end"'))
        for column, (text, share) in enumerate(zip(row, darkness, strict=True)):
            x = left + column * CELL
            colour = f"rgb({255 - 223 * share:.0f},{255 - 168 * share:.0f},{255 - 92 * share:.0f})"
            parts.append(
                f'<rect x="{x:g}" y="{y:g}" width="{CELL}" height="{LINE}" fill="{colour}"/>'
            )
            style = ' text-anchor="middle"' + (' fill="white"' if share >= DARK else "")
            parts.append(_text(x + CELL / 2, y + 17, text, style))
    width = max(left + CELL * len(columns), (len(title) + len(scores.line()) + 2) * CHARACTER)
    return "".join(parts), width, top + LINE * len(rows)


def _text(x: float, y: float, text: str, attributes: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}"{attributes}>{escape(text)}</text>'
