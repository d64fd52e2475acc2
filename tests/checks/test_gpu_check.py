"""``make gpu-check`` without a GPU: what it skips and what it survives."""

import json
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from sentiment_service.errors import DeviceLost, OutOfMemory

from benchmarks.tables import Row
from checks.gpu import run_steps
from checks.gpu.models import random_batches
from checks.gpu.setup import TINY, Setup
from checks.gpu.steps import faults
from tests.support.serving import eventually, run_program

STEP = run_steps.Step("machine", "Machine", 60)


def _check(work: Path, *flags: str) -> tuple[int, dict[str, Any], str]:
    """Run the check; returns the exit code, the JSON's steps by name, and the page."""
    command = [sys.executable, "-m", "checks.gpu", "--work", str(work), *flags]
    done = run_program(*command, timeout_s=300)
    assert not done.stderr, done.stderr
    found = json.loads((work / "gpu-check.json").read_text(encoding="utf-8"))
    page = (work / "gpu-check.md").read_text(encoding="utf-8")
    return done.returncode, {step["step"]: step for step in found["steps"]}, page


def test_without_a_gpu_the_rest_is_skipped(tmp_path: Path) -> None:
    """The reason is what CUDA lacks, nothing is exported, and the exit code is 0."""
    code, found, page = _check(tmp_path, "--only", "bundles", "--only", "speed")
    assert code == 0
    assert {name: step["state"] for name, step in found.items()} == {
        "machine": "ok",
        "bundles": "skipped",
        "speed": "skipped",
    }
    reason = found["speed"]["reason"]
    assert reason
    assert {"what": "CUDA", "value": reason} in found["machine"]["rows"]
    assert reason in page


def test_a_step_that_fails_leaves_the_others_alone(tmp_path: Path) -> None:
    """Without bundles, a step says so; the next one runs, and the exit code is 1."""
    chosen = ("--only", "parity", "--only", "doctor", "--device", "cpu", "--size", "tiny")
    code, found, page = _check(tmp_path, *chosen)
    assert code == 1
    assert found["parity"]["state"] == "failed"
    assert "has no bundle; the step 'bundles' makes them" in found["parity"]["reason"]
    assert found["doctor"]["state"] == "ok"
    assert "| failed |" in page


def test_what_failed_is_kept_and_runs_after_the_rest(tmp_path: Path) -> None:
    """Until it runs again its result stays, also where a command runs only another step."""
    on_cpu = ("--device", "cpu", "--size", "tiny")
    _check(tmp_path, *on_cpu, "--only", "parity")
    code, found, _ = _check(tmp_path, *on_cpu, "--only", "doctor")
    assert code == 1
    assert {name: step["state"] for name, step in found.items()} == {
        "machine": "ok",
        "doctor": "ok",
        "parity": "failed",
    }
    _check(tmp_path, *on_cpu, "--only", "parity", "--only", "kernels")
    kernels, parity = (tmp_path / f"{name}.log" for name in ("kernels", "parity"))
    assert kernels.stat().st_mtime_ns < parity.stat().st_mtime_ns


def test_a_step_ends_with_its_command(tmp_path: Path) -> None:
    """Also what it has started: a killed command leaves nothing behind that keeps the GPU."""
    words = ("refusals", tmp_path / "rows.jsonl", tmp_path, "cpu", "tiny")
    command: list[str | Path] = [sys.executable, "-m", "checks.gpu.one_step", *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as step:
        children = Path(f"/proc/{step.pid}/task/{step.pid}/children")
        eventually(lambda: bool(children.read_text()))
        child = int(children.read_text().split()[0])
        assert step.stdin is not None
        step.stdin.close()
        assert step.wait(30) == -signal.SIGKILL
    eventually(lambda: not Path(f"/proc/{child}/cmdline").exists())


@pytest.mark.parametrize("lost", [DeviceLost("error 700"), None])
def test_the_faults_must_be_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: Exception | None
) -> None:
    """The step yields what each fault ends in, and fails if one ends otherwise."""
    model = Mock()
    model.compute.side_effect = [None, OutOfMemory("too little"), None, lost]
    setup = Setup(tmp_path, "cuda", TINY)
    setup.bundle("tiny").mkdir()
    for name, found in (("Bundle", Mock()), ("precisions", lambda _: ["fp16"])):
        monkeypatch.setattr(faults, name, found)
    monkeypatch.setattr(faults, "load_model", lambda *_, **__: model)
    monkeypatch.setattr(faults, "of_tokens", lambda *_: [])
    monkeypatch.setattr(faults, "_store_nowhere", lambda: None)
    rows: list[Row] = []
    with nullcontext() if lost else pytest.raises(AssertionError, match="an illegal address"):
        rows.extend(faults.run(setup))
    if lost:
        ends = [row["ends in"] and str(row["ends in"]).partition("(")[0] for row in rows]
        assert ends == [None, "OutOfMemory", None, "DeviceLost"]


def _program(path: Path, script: str) -> str:
    """A program in the place of Python; its fourth argument is the file for the rows."""
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_a_step_that_does_not_end_is_stopped(tmp_path: Path) -> None:
    """So is what it started. Its rows until then are kept, without one that is half written."""
    script = """printf '{"a": 1}\\n{"a": ' > "$4"; sleep 600 & echo $! > "$4.child"; sleep 600"""
    python = _program(tmp_path / "python", script)
    result = run_steps.run_step(STEP, python, tmp_path, tmp_path, "cpu", "tiny", 0.1)
    child = (tmp_path / "machine.jsonl.child").read_text().strip()
    eventually(lambda: not Path("/proc", child, "cmdline").exists())
    assert (result.state, result.rows) == ("stopped", [{"a": 1}])
    assert "not done after" in result.reason


def test_a_step_that_crashes_is_a_failure(tmp_path: Path) -> None:
    """As when a driver ends the process: the signal is named, after what was written."""
    python = _program(tmp_path / "python", "echo CUDA failure 700; kill -SEGV $$")
    result = run_steps.run_step(STEP, python, tmp_path, tmp_path, "cpu", "tiny", 30)
    assert result.state == "failed"
    assert result.reason.startswith("CUDA failure 700")
    assert result.reason.endswith("(ended by signal 11)")


@pytest.mark.parametrize("count", [1, 7, 200])
def test_random_batches_have_every_text_once(count: int) -> None:
    """The figures about batches rest on all texts, in batches of different sizes."""
    batches = list(random_batches(count, 8))
    assert sorted(number for batch in batches for number in batch) == list(range(count))
    assert max(map(len, batches)) <= 8
    assert count < 200 or len(set(map(len, batches))) > 3
