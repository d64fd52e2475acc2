"""Tables in Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

Row = dict[str, Any]


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines of a table; its columns are the keys of all rows, in the order of their coming."""
    if not rows:
        return []
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells = [
        [cell(row.get(name, "")).replace("|", "/").replace("\n", " ") for name in columns]
        for row in rows
    ]
    return ["| " + " | ".join(line) + " |" for line in (columns, ["---"] * len(columns), *cells)]


def cell(value: Any) -> str:
    """A value as people read it: numbers with three digits."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
