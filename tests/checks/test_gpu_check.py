"""``make gpu-check`` without a GPU: its steps on the CPU, what it skips and what it survives."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.engine.model.bundle import sha256
from checks.gpu import run_steps
from checks.gpu.models import random_batches
from checks.gpu.setup import TINY, Setup
from tests.support.serving import eventually, run_program
from tests.support.tiny_bundle import make_bundle, write_manifest

STEP = run_steps.Step("machine", "Machine", 60)


def _bundle(path: Path, *precisions: str) -> None:
    """A tiny bundle that has the same graph in these precisions."""
    model = make_bundle(path) / "onnx/model.onnx"
    parity = {"samples": 1, "max_abs_logit_diff": 0.0, "label_agreement": 1.0}
    variant = {
        "file": "onnx/model.onnx",
        "sha256": sha256(model),
        "bytes": model.stat().st_size,
        "parity": parity,
    }
    write_manifest(path, variants=dict.fromkeys(precisions, variant))


def _check(work: Path, *flags: str) -> tuple[int, dict[str, Any], str]:
    """Run the check; returns the exit code, the JSON's steps by name, and the page."""
    command = [sys.executable, "-m", "checks.gpu", "--work", str(work), *flags]
    done = run_program(*command, timeout_s=300)
    assert not done.stderr, done.stderr
    found = json.loads((work / "gpu-check.json").read_text(encoding="utf-8"))
    page = (work / "gpu-check.md").read_text(encoding="utf-8")
    return done.returncode, {step["step"]: step for step in found["steps"]}, page


def test_every_step_runs_on_the_cpu_provider(tmp_path: Path) -> None:
    """All steps give rows, and JSON and page have them; only the provider is another one."""
    setup = Setup(tmp_path, "cpu", TINY)
    _bundle(setup.bundle("tiny"), "fp32", "fp16")
    code, found, page = _check(tmp_path, "--device", "cpu", "--size", "tiny")
    assert {name: step["reason"] for name, step in found.items() if step["state"] != "ok"} == {}
    assert code == 0
    assert list(found) == [step.name for step in run_steps.STEPS]
    assert all(step["rows"] for step in found.values())
    assert {row["within"] for row in found["parity"]["rows"]} == {"yes"}
    cells = [(row["tokens"], row["texts"]) for row in found["speed"]["rows"]]
    assert cells == [(8, 1), (8, 4), (16, 1), (16, 4)]
    assert {row["labels changed"] for row in found["independence"]["rows"]} == {0}
    assert [row["shapes"] for row in found["new_shapes"]["rows"]] == [TINY.new_shapes]
    assert {row.get("not 200", 0) for row in found["service"]["rows"]} == {0}
    assert all(f"## {step.title}" in page for step in run_steps.STEPS)


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


def _program(path: Path, script: str) -> str:
    """A program in the place of Python; its fourth argument is the file for the rows."""
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_a_step_that_does_not_end_is_stopped(tmp_path: Path) -> None:
    """Its rows until then are kept; a row that was not written to its end is left out."""
    script = """printf '{"a": 1}\\n{"a": ' > "$4"; sleep 600 & sleep 600"""
    python = _program(tmp_path / "python", script)
    result = run_steps.run_step(STEP, python, tmp_path, tmp_path, "cpu", "tiny", 0.1)
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
