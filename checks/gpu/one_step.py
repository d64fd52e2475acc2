"""Runs one step in this process: ``one_step NAME ROWS WORK DEVICE SIZE``; ROWS gets JSON lines.

Whoever starts it holds its standard input open. At the end of that, it ends with all that it
started: else the step of a killed command would keep the GPU while the next command measures.
"""

import importlib
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import cast

from checks.gpu.setup import SIZES, Device, Setup, SizeName


def main() -> None:
    threading.Thread(target=_end_with_the_command, daemon=True).start()
    name, rows, work, device, size = sys.argv[1:]
    setup = Setup(Path(work), cast(Device, device), SIZES[cast(SizeName, size)])
    step = importlib.import_module(f"checks.gpu.steps.{name}")
    with Path(rows).open("w", encoding="utf-8", buffering=1) as written:
        written.writelines(json.dumps(row) + "\n" for row in step.run(setup))


def _end_with_the_command() -> None:
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
