"""Tables in Markdown, and the conditions that stand above each."""

import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import onnxruntime
from sentiment_service.engine.host import available_cpus, cpu_name, vector_flags

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


def conditions() -> dict[str, str]:
    """Date, machine and versions of a measurement."""
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": f"{cpu_name()} {platform.machine()} ({vector_flags()}), "
        f"{available_cpus():g} CPUs, "
        f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        # The package onnxruntime has another name for GPUs.
        "versions": f"Python {platform.python_version()}, onnxruntime {onnxruntime.__version__}, "
        + ", ".join(f"{name} {version(name)}" for name in ("tokenizers", "fastapi")),
    }
