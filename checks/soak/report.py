"""Writes the outcome of the soak as JSON, and as tables in docs/measurements/soak.md."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

MARKS = re.compile(r"(<!-- soak -->\n).*?(\n<!-- /soak -->)", re.DOTALL)
FAILURES = (
    "wrong answers",
    "lost answers",
    "unexplained statuses",
    "unexpected outcomes of faults",
    "tracebacks in the log",
)


def keep(outcome: Mapping[str, Any], figures: Path, page: Path) -> None:
    """Write the JSON file, and the tables of the page."""
    figures.write_text(json.dumps(outcome, indent=1, ensure_ascii=False) + "\n", "utf-8")
    text = MARKS.sub(lambda marks: marks[1] + tables(outcome) + marks[2], page.read_text("utf-8"))
    page.write_text(text, "utf-8")


def tables(outcome: Mapping[str, Any]) -> str:
    """The tables in Markdown."""
    said = ". ".join(outcome["conditions"].values())
    load = (
        f"{outcome['minutes']:g} minutes with seed {outcome['seed']}, at 60 % of "
        f"{outcome['capacity_tokens_per_second']:,.0f} tokens a second, three times that in bursts."
    )
    results = [["requests", _total(outcome["requests"])], ["faults", _total(outcome["faults"])]]
    results.append(["texts compared bit for bit", outcome["texts_compared"]])
    results += [[kind, outcome["failures"].get(kind, 0)] for kind in FAILURES]
    results.append(["exit code after SIGTERM under load", outcome["exit_code"]])
    return "\n\n".join(
        [
            f"{said}. {load}",
            _table(["what", "number"], results),
            _table(
                ["", "after warm-up", "at the end", "change an hour", "at rest"], _process(outcome)
            ),
            _table(["route", "answers by status"], _counted(outcome["requests"])),
            _table(["fault", "seen by its client"], _counted(outcome["faults"])),
        ]
    )


def _process(outcome: Mapping[str, Any]) -> Iterable[Sequence[object]]:
    names = {"memory_mb": "resident memory, MB", "files": "open files", "threads": "threads"}
    for what, name in names.items():
        moments = [outcome[when][what] for when in ("after_warm_up", "at_the_end")]
        yield name, *moments, f"{outcome['per_hour'][what]:+.1f}", outcome["at_rest"][what]


def _counted(counters: Mapping[str, Mapping[str, int]]) -> Iterable[Sequence[object]]:
    for name, counts in sorted(counters.items()):
        ranked = Counter(counts).most_common()
        yield name, ", ".join(f"{what}: {number:,}" for what, number in ranked)


def _total(counters: Mapping[str, Mapping[str, int]]) -> int:
    return sum(sum(counts.values()) for counts in counters.values())


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    cells = (
        [f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in line] for line in lines
    )
    return "\n".join("| " + " | ".join(line) + " |" for line in cells)
