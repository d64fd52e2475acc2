"""The steps of the check, each a process of its own with a time limit.

A step is a module of ``steps`` with ``run(setup)``, which yields rows. Each row is in the file
STEP.jsonl at once, so those before a failure, the end of the time or a kill are kept.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.tables import Row
from checks.gpu.setup import Device, SizeName

# The row of the step `machine` about CUDA, and its value if nothing is missing.
CUDA, WORKS = "CUDA", "can be used"
LOG_CHARACTERS = 2_000  # of what a failed step wrote


@dataclass(frozen=True)
class Step:
    """A module's name, what it does, and its limit in seconds."""

    name: str
    title: str
    seconds: int
    needs_gpu: bool = True
    exports: bool = False  # runs in the environment that has the exporter and PyTorch


STEPS = (
    Step("machine", "Machine and versions", 60, needs_gpu=False),
    Step("bundles", "Models with random weights", 420, exports=True),
    Step("refusals", "What the service says where CUDA finds no GPU", 60, needs_gpu=False),
    Step("doctor", "sentiment doctor", 60, needs_gpu=False),
    Step("parity", "Logits on the device against the same graph on the CPU", 90),
    Step("speed", "Batches of 1 to 65,536 tokens on 1 to 3 threads", 180),
    Step("peer", "The same layers in PyTorch", 60, exports=True),
    Step("kernels", "Placement, and the kernels of a batch", 60),
    Step("new_shapes", "Batches that each have a new shape", 90),
    Step("service", "The service over HTTP", 240),
    Step("start", "Starts: tuning, seconds and memory", 90),
    Step("reload", "Reloads under load", 120),
    Step("independence", "The same texts alone and in random batches", 90),
    Step("faults", "No memory, and a lost GPU", 60),
)


@dataclass
class Result:
    """What became of a step: ``state`` is ok, failed, stopped (its time was over) or skipped."""

    step: str
    title: str
    state: str
    reason: str = ""
    seconds: float = 0.0
    rows: list[Row] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"seconds": round(self.seconds, 1)}


def run_step(
    step: Step,
    python: str,
    work: Path,
    results: Path,
    device: Device,
    size: SizeName,
    limit: float,
) -> Result:
    """Run a step with this Python for at most ``limit`` seconds; never raises what it raises.

    Its rows and what it writes are in STEP.jsonl and STEP.log of ``results``.
    """
    result = Result(step.name, step.title, "ok")
    started = time.monotonic()
    rows, log = results / f"{step.name}.jsonl", results / f"{step.name}.log"
    words = [step.name, str(rows), str(work), device, size]
    with (
        log.open("wb") as written,
        subprocess.Popen(
            [python, "-m", "checks.gpu.one_step", *words],
            stdin=subprocess.PIPE,  # it ends with this process, too
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that what it starts ends with it
        ) as process,
    ):
        try:
            code = process.wait(max(1.0, limit))
            if code:
                result.state, result.reason = "failed", _failure(code, log)
        except subprocess.TimeoutExpired:
            result.state, result.reason = "stopped", f"not done after {limit:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    lines = rows.read_text(encoding="utf-8").splitlines() if rows.exists() else []
    result.rows = [json.loads(line) for line in lines if line.endswith("}")]
    result.seconds = time.monotonic() - started
    return result


def _failure(code: int, log: Path) -> str:
    written = log.read_text(encoding="utf-8", errors="replace").strip()[-LOG_CHARACTERS:]
    how = f"ended by signal {-code}" if code < 0 else f"exit code {code}"
    return f"{written or 'no output'} ({how})"
