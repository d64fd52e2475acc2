"""Which labels differ between two models on the same labelled texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from model_export.quality.labelled import Example, Labels
from model_export.quality.scores import Scores

TEXTS_SHOWN = 20
ROWS_SHOWN = 10  # of each kind of change
Pair = tuple[str | None, str | None]  # what a label was, and what it is


@dataclass(frozen=True, slots=True)
class Change:
    """The texts whose label changed in one way; ``rows`` counts the labelled texts from 1.

    A text of a multi-label model gets a label (``before`` is None) or loses it (``after`` is None).
    ``better`` of the texts are now right about it, and ``worse`` were right before.
    """

    before: str | None
    after: str | None
    rows: list[int]
    better: int
    worse: int

    def line(self) -> str:
        """The change in one line, for a terminal."""
        rows = ", ".join(map(str, self.rows[:ROWS_SHOWN]))
        more = " …" if len(self.rows) > ROWS_SHOWN else ""
        return (
            f"{_shown((self.before, self.after))}: {len(self.rows)} "
            f"({self.better} now right, {self.worse} now wrong); rows {rows}{more}"
        )

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready copy."""
        counts = {"texts": len(self.rows), "now_right": self.better, "now_wrong": self.worse}
        return {"from": self.before, "to": self.after, **counts, "rows": self.rows}


def changes(
    examples: Sequence[Example],
    before: Sequence[Labels],
    after: Sequence[Labels],
    *,
    multi_label: bool,
) -> list[Change]:
    """The changes from ``before`` to ``after``, the most frequent first."""
    rows: dict[Pair, list[int]] = {}
    for row, (old, new) in enumerate(zip(before, after, strict=True)):
        lost = [label for label in old if label not in new]
        gained = [label for label in new if label not in old]
        pairs: list[Pair] = [(label, None) for label in lost] + [(None, label) for label in gained]
        if not multi_label:
            pairs = [*zip(lost, gained, strict=True)]
        for pair in pairs:
            rows.setdefault(pair, []).append(row)
    found = []
    for (old_label, new_label), there in rows.items():
        gold = [examples[row].labels for row in there]
        are, were = (sum(one in labels for labels in gold) for one in (new_label, old_label))
        better = are if new_label is not None else len(gold) - were
        worse = were if old_label is not None else len(gold) - are
        found.append(Change(old_label, new_label, [row + 1 for row in there], better, worse))
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
    by_row: dict[int, list[str]] = {}
    for change in found:
        for row in change.rows:
            by_row.setdefault(row, []).append(_shown((change.before, change.after)))
    lines.append(f"texts whose labels changed: {len(by_row)} of {len(texts)}")
    lines += [change.line() for change in found]
    for row in sorted(by_row)[:TEXTS_SHOWN]:
        gold, text = ", ".join(texts[row - 1].labels), " ".join(texts[row - 1].text.split())
        lines.append(f"row {row}, {', '.join(by_row[row])} (right: {gold or 'none'}): {text}")
    return "\n".join(lines)


def _figures(scores: Scores) -> dict[str, float]:
    return {**scores.named(), **{f"F1 {label}": figure for label, figure in scores.f1.items()}}


def _shown(pair: Pair) -> str:
    old, new = pair
    if old is None:
        return f"+{new}"
    return f"-{old}" if new is None else f"{old} → {new}"
