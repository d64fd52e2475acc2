"""Which labels differ between two models on the same labelled texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from model_export.quality.labelled import Example, Labels
from model_export.quality.scores import Scores

TEXTS_SHOWN = 20
ROWS_SHOWN = 10  # of each kind of change


@dataclass(frozen=True, slots=True)
class Change:
    """The texts whose labels changed in one way; ``rows`` counts the labelled texts from 1.

    Of these, ``better`` have the right labels now, and ``worse`` had them before.
    """

    before: Labels
    after: Labels
    rows: list[int]
    better: int
    worse: int

    def line(self) -> str:
        """The change in one line, for a terminal."""
        rows = ", ".join(map(str, self.rows[:ROWS_SHOWN]))
        more = " …" if len(self.rows) > ROWS_SHOWN else ""
        return (
            f"{_shown(self.before)} → {_shown(self.after)}: {len(self.rows)} "
            f"({self.better} now right, {self.worse} now wrong); rows {rows}{more}"
        )

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready copy."""
        counts = {"texts": len(self.rows), "now_right": self.better, "now_wrong": self.worse}
        return {"from": self.before, "to": self.after, **counts, "rows": self.rows}


def changes(
    examples: Sequence[Example], before: Sequence[Labels], after: Sequence[Labels]
) -> list[Change]:
    """The changes from ``before`` to ``after``, the most frequent first.

    The labels of a text may be in any order: each model has its own.
    """
    rows: dict[tuple[Labels, Labels], list[int]] = {}
    for row, (old, new) in enumerate(zip(before, after, strict=True)):
        if {*old} != {*new}:
            rows.setdefault((tuple(sorted(old)), tuple(sorted(new))), []).append(row)
    found = []
    for (old, new), there in rows.items():
        gold = [{*examples[row].labels} for row in there]
        better, worse = gold.count({*new}), gold.count({*old})
        found.append(Change(old, new, [row + 1 for row in there], better, worse))
    return sorted(found, key=lambda change: -len(change.rows))


def comparison(old: Scores, new: Scores, found: Sequence[Change], texts: Sequence[Example]) -> str:
    """Both models' figures side by side, and the changes, as text for a terminal."""
    before = _figures(old)
    width = max(map(len, before))
    lines = [f"{'':<{width}}  against     this"]
    lines += [
        f"{title:<{width}}  {before[title]:7.4f}  {after:7.4f}  {after - before[title]:+.4f}"
        for title, after in _figures(new).items()
    ]
    changed = sum(len(change.rows) for change in found)
    lines += [f"labels that changed: {changed} of {len(texts)}", *(one.line() for one in found)]
    shown = sorted(((row, change) for change in found for row in change.rows), key=itemgetter(0))
    for row, change in shown[:TEXTS_SHOWN]:
        text = texts[row - 1]
        lines.append(
            f"row {row}, {_shown(text.labels)}: {_shown(change.before)} → {_shown(change.after)}: "
            f"{' '.join(text.text.split())}"
        )
    return "\n".join(lines)


def _figures(scores: Scores) -> dict[str, float]:
    return {**scores.named(), **{f"F1 {label}": figure for label, figure in scores.f1.items()}}


def _shown(labels: Labels) -> str:
    return ", ".join(labels) or "(none)"
