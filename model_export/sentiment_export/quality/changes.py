"""Which labels differ between two models on the same labelled texts."""

from collections.abc import Sequence
from dataclasses import dataclass

from sentiment_export.quality.labelled import Example, Labels
from sentiment_export.quality.scores import Scores

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
        """The change in one line, for a terminal."""
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
    before = _figures(old)
    width = max(map(len, before))
    lines = [f"{'':<{width}}  against     this"]
    lines += [
        f"{title:<{width}}  {before[title]:7.4f}  {after:7.4f}  {after - before[title]:+.4f}"
        for title, after in _figures(new).items()
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


def _figures(scores: Scores) -> dict[str, float]:
    return {**scores.named(), **{f"F1 {label}": figure for label, figure in scores.f1.items()}}


def _named(labels: Labels) -> str:
    return ", ".join(sorted(labels)) or "none"
