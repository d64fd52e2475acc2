"""Draws the panels of the dashboard with matplotlib and data from a Prometheus: docs/dashboard.png.

The drawing is not Grafana's, but queries, titles, units and positions are the same:

    python -m deploy.grafana.render http://localhost:9090 docs/dashboard.png --minutes 5
"""

import argparse
import json
import math
import re
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

DASHBOARD = Path(__file__).parent / "dashboards/sentiment.json"
CELL_INCHES = (0.68, 0.335)  # a column of the grid, which has 24, and a row of it
POINTS = 240
COLORS = ("#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#8ab8ff", "#ff7383")
STYLE: Any = {
    "figure.facecolor": "#111217",
    "axes.facecolor": "#181b1f",
    "axes.edgecolor": "#2c3235",
    "axes.titlecolor": "#ccccdc",
    "axes.titlesize": 8.5,
    "axes.titleweight": "bold",
    "axes.prop_cycle": cycler(color=COLORS),
    "axes.grid": True,
    "grid.color": "#2c3235",
    "text.color": "#ccccdc",
    "xtick.color": "#8e8ea0",
    "ytick.color": "#8e8ea0",
    "font.size": 7.5,
    "axes.axisbelow": True,
}
# Smallest value, divisor, and unit to print.
SCALES = {
    "s": (
        (3600, 3600, " h"),
        (60, 60, " min"),
        (1, 1, " s"),
        (1e-3, 1e-3, " ms"),
        (0, 1e-6, " µs"),
    ),
    "bytes": ((2**30, 2**30, " GiB"), (2**20, 2**20, " MiB"), (0, 1, " B")),
    "percentunit": ((0, 0.01, " %"),),
    "reqps": ((1000, 1000, "K req/s"), (0, 1, " req/s")),
}


class Source:
    """Queries a Prometheus for a period of time."""

    def __init__(self, url: str, minutes: float, end: float) -> None:
        self._url = url
        self._end = end
        self._seconds = minutes * 60

    def series(self, target: dict[str, Any]) -> list[tuple[dict[str, str], Any, Any]]:
        """Labels, times and values of each series. Times are in minutes, and 0 is the end."""
        expression = target["expr"].replace("$__rate_interval", "15s")
        expression = expression.replace("$model", ".+").replace("$instance", ".+")
        query = urllib.parse.urlencode(
            {
                "query": expression,
                "start": self._end - self._seconds,
                "end": self._end,
                "step": self._seconds / POINTS,
            }
        )
        with urllib.request.urlopen(f"{self._url}/api/v1/query_range?{query}") as answer:  # noqa: S310
            found = json.load(answer)["data"]["result"]
        return [
            (
                series["metric"],
                np.array([(at - self._end) / 60 for at, _ in series["values"]]),
                np.array([float(value) for _, value in series["values"]]),
            )
            for series in found
        ]


def legend(target: dict[str, Any], labels: dict[str, str]) -> str:
    """The legend of a series."""
    words: str = target.get("legendFormat", "")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), words)


def formatted(value: float, unit: str) -> str:
    """A value with its unit, similar to how Grafana prints it."""
    suffix = unit.removeprefix("suffix:") if ":" in unit else ""
    scales = SCALES.get(unit, ((1000, 1000, "K" + suffix), (0, 1, suffix)))
    size, words = next((size, words) for least, size, words in scales if abs(value) >= least)
    return f"{value / size:.3g}{words}" if value else "0"


def draw_lines(axes: Axes, panel: dict[str, Any], source: Source) -> None:
    """Draw series over time, stacked or not; the axis begins at zero."""
    defaults = panel["fieldConfig"]["defaults"]
    custom = defaults["custom"]
    below: Any = 0.0
    for target in panel["targets"]:
        for labels, times, values in source.series(target):
            if not np.isfinite(values).any():
                continue
            known = values[np.isfinite(values)]
            if not known.any() and axes.has_data():
                continue  # one line at 0 is enough
            last = f"{legend(target, labels)}: {formatted(known[-1], defaults['unit'])}"
            if "stacking" in custom:
                axes.fill_between(times, below, below + values, alpha=0.5, label=last, linewidth=0)
                below = below + values
            else:
                (line,) = axes.plot(times, values, linewidth=1.1, label=last)
                axes.fill_between(times, 0, values, alpha=0.08, color=line.get_color())
    axes.set_ylim(bottom=0)
    for step in defaults.get("thresholds", {}).get("steps", ())[1:]:
        if axes.has_data() and step["value"] < 3 * axes.get_ylim()[1]:
            axes.axhline(step["value"], color="#f2495c", linestyle="--", linewidth=0.8)
    if not axes.has_data():
        axes.text(0.5, 0.5, "no data yet", transform=axes.transAxes, ha="center", color="#8e8ea0")
        axes.set_xticks([])
        axes.set_yticks([])
        return
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: formatted(value, defaults["unit"]))
    )
    axes.yaxis.set_major_locator(MaxNLocator(4))
    handles, words = axes.get_legend_handles_labels()
    shown = 6
    axes.legend(
        handles[:shown],
        words[:shown],
        loc="upper left",
        bbox_to_anchor=(-0.02, -0.15),
        ncols=2 if max(map(len, words)) < 24 else 1,
        frameon=False,
        fontsize=7,
        borderaxespad=0,
        handlelength=1,
        labelspacing=0.15,
        columnspacing=1,
    )


def draw_heatmap(axes: Axes, panel: dict[str, Any], source: Source) -> None:
    """Draw the counts in each bucket."""
    (target,) = panel["targets"]
    found = sorted(source.series(target), key=lambda series: float(series[0]["le"]))
    found = [series for series in found if math.isfinite(float(series[0]["le"]))]
    bounds = [0.0, *(float(labels["le"]) for labels, _, _ in found)]
    counts = np.diff([values for _, _, values in found], axis=0, prepend=0)
    times = found[0][1]
    axes.pcolormesh([*times, times[-1]], bounds, counts, cmap="viridis", shading="flat")
    axes.set_ylim(0, 1)
    axes.grid(visible=False)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))


def draw_words(axes: Axes, panel: dict[str, Any], source: Source) -> None:
    """Print the last value of each series of a stat or a table."""
    (target,) = panel["targets"]
    mappings = panel["fieldConfig"]["defaults"].get("mappings", [])
    lines = []
    for labels, _, values in source.series(target):
        if panel["type"] == "table":
            lines += [f"{name}: {value}" for name, value in sorted(labels.items())]
        else:
            shown = mappings[0]["options"][f"{values[-1]:.0f}"]
            lines += [legend(target, labels), shown["text"]]
            axes.set_facecolor({"green": "#1d4d2b", "red": "#6e1f2a"}[shown["color"]])
    axes.text(0.03, 0.92, "\n".join(lines), transform=axes.transAxes, va="top", fontsize=9)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)


DRAW = {
    "timeseries": draw_lines,
    "heatmap": draw_heatmap,
    "stat": draw_words,
    "table": draw_words,
}


def render(source: Source, output: Path, minutes: float) -> None:
    """Draw every panel in its position."""
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    width = 24
    height = (
        max(at["y"] + at["h"] for at in (panel["gridPos"] for panel in dashboard["panels"])) + 2
    )
    figure = pyplot.figure(figsize=(width * CELL_INCHES[0], height * CELL_INCHES[1]))
    caption = (
        f"{dashboard['title']}: data from the panels' queries to a Prometheus, drawn by "
        f"deploy/grafana/render.py with matplotlib. This is not Grafana's rendering. "
        f"{minutes:g} minutes; legends show the last values."
    )
    figure.text(0.012, 1 - 1 / height, caption, fontsize=9, va="center")
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        left, top = at["x"] / width, 1 - (at["y"] + 2) / height
        if panel["type"] == "row":
            figure.text(
                0.012, top - 0.5 / height, panel["title"], fontsize=11, va="center", weight="bold"
            )
            continue
        legend_lines = 2.3
        axes = figure.add_axes(
            (
                left + 0.9 / width,
                top - (at["h"] - legend_lines) / height,
                (at["w"] - 1.15) / width,
                (at["h"] - legend_lines - 0.95) / height,
            )
        )
        axes.set_title(panel["title"], loc="left", pad=4)
        axes.xaxis.set_major_formatter("{x:g} min")
        axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
        axes.set_xlim(-minutes, 0)
        axes.tick_params(length=0, pad=2)
        DRAW[panel["type"]](axes, panel, source)
    figure.savefig(output, dpi=72)


def main() -> None:
    """Draw what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prometheus", help="URL of the Prometheus")
    parser.add_argument("output", type=Path)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--end", type=float, default=time.time(), help="Unix time [default: now]")
    arguments = parser.parse_args()
    with mpl.rc_context(STYLE):
        source = Source(arguments.prometheus, arguments.minutes, arguments.end)
        render(source, arguments.output, arguments.minutes)


if __name__ == "__main__":
    main()
