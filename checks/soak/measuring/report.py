"""Writes the outcome of the soak as JSON, and as tables in docs/measurements/soak.md."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.tables import table
from checks.soak.faults.outcomes import KILLED
from checks.soak.measuring.watch import MEASURES

MARKS = re.compile(r"(<!-- soak -->\n).*?(\n<!-- /soak -->)", re.DOTALL)
FAILURES = (
    "wrong answers",
    "lost answers",
    "unexplained statuses",
    "unexpected outcomes of faults",
    "tracebacks in the log",
    "counters that fell",
)


def keep(outcomes: Sequence[Mapping[str, Any]], figures: Path, page: Path) -> None:
    """Write the JSON file, and the tables of the page."""
    figures.write_text(json.dumps(outcomes, indent=1, ensure_ascii=False) + "\n", "utf-8")
    text = MARKS.sub(lambda marks: marks[1] + tables(outcomes) + marks[2], page.read_text("utf-8"))
    page.write_text(text, "utf-8")


def tables(outcomes: Sequence[Mapping[str, Any]]) -> str:
    """The tables of all servers in Markdown."""
    servers = [_server(outcome["workers"]) for outcome in outcomes]
    parts = [". ".join(outcomes[0]["conditions"].values()) + "."]
    parts += [
        f"{server}: {outcome['minutes']:g} minutes with seed {outcome['seed']}, at 60 % of "
        f"{outcome['capacity_tokens_per_second']:,.0f} tokens a second, three times that in "
        f"bursts. Other programs used {outcome['cpu_share_of_other_programs']:.0%} of the CPUs."
        for server, outcome in zip(servers, outcomes, strict=True)
    ]
    results = list(map(_results, outcomes))
    rows = [[what, *(result[what] for result in results)] for what in results[0]]
    parts.append(_table(["what", *servers], rows))
    columns = ["", "after warm-up", "at the end", "change an hour", "at rest"]
    for server, outcome in zip(servers, outcomes, strict=True):
        parts.append(_table([server, *columns[1:]], _processes(outcome)))
    return "\n\n".join(parts)


def _server(workers: int) -> str:
    return "one process" if workers == 1 else f"{workers} workers"


def _results(outcome: Mapping[str, Any]) -> dict[str, object]:
    """The figures of a server, by what they mean."""
    return {
        "requests": _total(outcome["requests"]),
        "not answered, because the soak killed their worker": _killed(outcome["requests"]),
        "faults": _total(outcome["faults"]),
        "texts compared bit for bit": outcome["texts_compared"],
        **{kind: outcome["failures"].get(kind, 0) for kind in FAILURES},
        "exit code after SIGTERM under load": outcome["exit_code"],
    }


def _processes(outcome: Mapping[str, Any]) -> Iterable[Sequence[object]]:
    for what, name in MEASURES.items():
        moments = [outcome[when][what] for when in ("after_warm_up", "at_the_end")]
        yield name, *moments, f"{outcome['per_hour'][what]:+.1f}", outcome["at_rest"][what]


def _total(counters: Mapping[str, Mapping[str, int]]) -> int:
    return sum(sum(counts.values()) for counts in counters.values())


def _killed(counters: Mapping[str, Mapping[str, int]]) -> int:
    return sum(counts.get(KILLED, 0) for counts in counters.values())


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    cells = ([f"{c:,}" if isinstance(c, int) else str(c) for c in row] for row in rows)
    return "\n".join(table([dict(zip(columns, row, strict=True)) for row in cells]))
