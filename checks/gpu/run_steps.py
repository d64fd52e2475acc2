"""The steps of the check, each a process of its own with a time limit.

A step is a module of ``steps`` with ``run(setup)``, which yields rows. The rows that it yields
before it fails or its time is over are kept.
"""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
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
    exports: bool = False  # runs in the environment that has the exporter


STEPS = (
    Step("machine", "Machine and versions", 60, needs_gpu=False),
    Step("refusals", "What the service says where CUDA finds no GPU", 60, needs_gpu=False),
    Step("bundles", "Models with random weights, exported", 300, exports=True),
    Step("doctor", "sentiment doctor", 60, needs_gpu=False),
    Step("parity", "Logits on the device against fp32 on the CPU", 60),
    Step("speed", "ONNX Runtime alone: a batch's time with inputs on the device", 60),
    Step("new_shapes", "Batches that each have a new shape", 120),
    Step("independence", "The same texts alone and in random batches", 120),
    Step("service", "The service over HTTP", 120),
    Step("start", "Start and memory", 60),
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
        """All fields, with the seconds rounded."""
        return asdict(self) | {"seconds": round(self.seconds, 1)}


def run_step(
    step: Step, python: str, work: Path, device: Device, size: SizeName, limit: float
) -> Result:
    """Run a step with this Python for at most ``limit`` seconds; never raises what it raises."""
    result = Result(step.name, step.title, "ok")
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        rows, log = Path(folder) / "rows", Path(folder) / "log"
        words = [step.name, str(rows), str(work), device, size]
        with log.open("wb") as written:
            process = subprocess.Popen(
                [python, "-m", "checks.gpu.one_step", *words],
                stdout=written,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that what it starts ends with it
            )
            try:
                code = process.wait(max(1.0, limit))
                if code:
                    result.state, result.reason = "failed", _failure(code, log)
            except subprocess.TimeoutExpired:
                result.state, result.reason = "stopped", f"not done after {limit:.0f} s"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        lines = rows.read_text(encoding="utf-8").splitlines() if rows.exists() else []
        result.rows = [json.loads(line) for line in lines if line.endswith("}")]
    result.seconds = time.monotonic() - started
    return result


def _failure(code: int, log: Path) -> str:
    written = log.read_text(encoding="utf-8", errors="replace").strip()[-LOG_CHARACTERS:]
    how = f"ended by signal {-code}" if code < 0 else f"exit code {code}"
    return f"{written or 'no output'} ({how})"
