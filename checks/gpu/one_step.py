"""Runs one step in this process: ``one_step NAME ROWS WORK DEVICE SIZE``; ROWS gets JSON lines."""

import importlib
import json
import sys
from pathlib import Path
from typing import cast

from checks.gpu.setup import SIZES, Device, Setup, SizeName


def main() -> None:
    """Write each row as soon as the step yields it."""
    name, rows, work, device, size = sys.argv[1:]
    setup = Setup(Path(work), cast(Device, device), SIZES[cast(SizeName, size)])
    step = importlib.import_module(f"checks.gpu.steps.{name}")
    with Path(rows).open("w", encoding="utf-8", buffering=1) as written:
        written.writelines(json.dumps(row) + "\n" for row in step.run(setup))


if __name__ == "__main__":
    main()
