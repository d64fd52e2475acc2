"""Keep the results as JSON, and write them as tables (Markdown) and plots (SVG)."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import matplotlib as mpl

from benchmarks.subject import Goal
from benchmarks.tables import Row, cell, table

mpl.use("Agg")
from matplotlib import pyplot as plt

mpl.rcParams["svg.fonttype"] = "none"  # text, not outlines
FIGURES = "results.json"
TABLES = "README.md"
HEAD = """\
# Results

`make bench` writes this page; do not edit it.

- **A ÷ B** means A divided by B: 0.8 means that A reached 80 % of B.
- **Ideal** is the throughput of ONNX Runtime alone: a loop over the same texts in ideal batches,
  without HTTP and without a queue.
- **Goodput** is the throughput of requests that were answered in time.
- **Measured** is the median of all rounds, or a count. **Rounds** shows the lowest and the highest.

## Goals

| what | measured | goal | rounds |
| --- | --- | --- | --- |"""


def line(item: Row | Goal) -> str:
    if isinstance(item, Goal):
        return _goal(item)
    return ", ".join(f"{name} {cell(value)}" for name, value in item.items())


def keep(directory: Path, section: str, conditions: dict[str, str], found: Iterable[Any]) -> None:
    """Add a section to the figures. It replaces the same section of an earlier run."""
    directory.mkdir(exist_ok=True)
    results = _read(directory)
    items = list(found)
    results[section] = {
        **conditions,
        "rows": [item for item in items if not isinstance(item, Goal)],
        "goals": [asdict(item) for item in items if isinstance(item, Goal)],
    }
    text = json.dumps(results, indent=1, ensure_ascii=False)
    (directory / FIGURES).write_text(text + "\n", encoding="utf-8")


def write(directory: Path) -> None:
    """Write tables and plots of all kept results, and print the goals."""
    results = _read(directory)
    goals = [Goal(**goal) for section in results.values() for goal in section["goals"]]
    print("\n" + "\n".join(map(_goal, goals)))
    lines = [HEAD]
    lines += [
        f"| {goal.name} | {cell(goal.value)}{'' if goal.reached else ' (**missed**)'} | "
        f"{'≤' if goal.most else '≥'} {goal.bound:g} | {goal.remark} |"
        for goal in goals
    ]
    for name, section in results.items():
        conditions = ". ".join(section[key] for key in ("date", "machine", "versions"))
        lines += ["", f"## {name[0].upper()}{name[1:]}", "", conditions, ""]
        lines += table(section["rows"])
    (directory / TABLES).write_text("\n".join(lines) + "\n", encoding="utf-8")
    _plots(directory, results)


def _read(directory: Path) -> dict[str, Any]:
    path = directory / FIGURES
    results: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return results


def _goal(goal: Goal) -> str:
    verdict = "reached" if goal.reached else "MISSED "
    sign = "≤" if goal.most else "≥"
    return f"{verdict} {cell(goal.value):>8} {sign} {goal.bound:<6g} {goal.name} ({goal.remark})"


def _plots(directory: Path, results: dict[str, Any]) -> None:
    sweeps = [section["rows"] for name, section in results.items() if "by connections" in name]
    if sweeps:
        figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
        for rows in sweeps:
            connections = [row["connections"] for row in rows]
            (drawn,) = left.plot(connections, [row["texts/s"] for row in rows], "o-")
            drawn.set_label(rows[0]["model"])
            for name, style in (("p50 ms", "o-"), ("p99 ms", "o:")):
                latencies = [row[name] for row in rows]
                right.plot(connections, latencies, style, color=drawn.get_color())
        for axes, y in ((left, "texts a second"), (right, "latency in ms: p50, and p99 dotted")):
            axes.set(xlabel="connections", ylabel=y, yscale="log")
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("")
            axes.grid(alpha=0.3)
        left.legend()
        _save(figure, directory / "connections")
    if "peers" in results:
        rows = [row for row in results["peers"]["rows"] if row["texts/s"] > 0]  # nor nan
        rows.sort(key=lambda row: row["texts/s"])
        figure, axes = plt.subplots(figsize=(8, 0.35 * len(rows) + 1))
        colours = ["tab:orange" if row["server"].startswith("ours") else "tab:blue" for row in rows]
        bars = axes.barh([r["server"] for r in rows], [r["texts/s"] for r in rows], color=colours)
        axes.bar_label(bars, fmt="%.0f", padding=3)
        axes.set(xlabel="texts a second, 32 connections, one text a request")
        _save(figure, directory / "peers")


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path.with_suffix(".svg"))
    plt.close(figure)
