"""What brings ``checks.gpu`` to a machine without network: packing, unpacking, running."""

import json
import os
import signal
import struct
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from checks.gpu.graphs import WEIGHTS, fill, make
from checks.gpu.pack import pack, requirements
from checks.gpu.run_steps import STEPS
from checks.gpu.setup import TINY, Setup
from checks.gpu.slim import slim
from checks.support.fatbin import CONTAINER, ENTRY, MAGIC
from tests.support.serving import eventually, run_program

PYTHON = ".".join(map(str, sys.version_info[:2]))
# What this environment was made from. It has none of the packages.
PYTHON_ELSEWHERE = str(Path(sys.base_prefix, "bin", f"python{PYTHON}"))
PIECE_BYTES = 100 * 2**10
ON_CPU = ("--device", "cpu", "--size", "tiny")


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pieces. In the place of unpacked wheels, they name the packages of this environment."""
    base = tmp_path_factory.mktemp("packed")
    setup = Setup(base / "work", "cpu", TINY)
    ((shape, (model_type, config)),) = TINY.shapes.items()
    make(setup.bundle(shape), setup.others(shape), model_type, config)
    fill(setup.bundle(shape))  # as after an earlier check here
    site = base / "site"
    site.mkdir()
    here = [path for path in sys.path if path.endswith("site-packages")]
    (site / "sitecustomize.py").write_text(f"import sys\nsys.path[:0] = {here!r}\n")
    assert len(pack(base / "pieces", site, setup, PYTHON, PIECE_BYTES)) > 1
    return base / "pieces"


def _run(pieces: Path, into: Path, *flags: str) -> "subprocess.CompletedProcess[str]":
    """Run it with another Python, in a directory that has another package called ``checks``."""
    (into.parent / "checks").mkdir(exist_ok=True)
    (into.parent / "checks/__init__.py").write_text("raise SystemExit('the wrong one')")
    command: list[str | Path] = [PYTHON_ELSEWHERE, pieces / "unpack.py", "--into", into, *flags]
    return run_program(*command, cwd=into.parent, timeout_s=300)


def test_the_steps_run_there_and_say_what_is_missing(pieces: Path, tmp_path: Path) -> None:
    """Without CUDA, the results say so, and the exit code is 0."""
    for name in ("piece.000", "piece.001"):
        assert (pieces / name).stat().st_size <= PIECE_BYTES
    done = _run(pieces, tmp_path / "there", "--only", "doctor")
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "there/results/gpu-check.json").read_text())
    machine, doctor = results["steps"]
    assert machine["rows"][0]["what"] == "CUDA"
    assert "the one for CPUs" in machine["rows"][0]["value"]
    assert doctor["state"] == "ok"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checks", "there"]
    assert not [*(tmp_path / "there/work").rglob("*_data")]  # the step bundles makes the weights


def test_a_killed_command_leaves_what_it_found_and_the_next_one_continues(
    pieces: Path, tmp_path: Path
) -> None:
    """Rows of the step that was running are in its file; the next command runs all other steps.

    They find the weights of the graphs, and all files and programs that they need.
    """
    kept = tmp_path / "kept"
    command: list[str | Path] = [PYTHON_ELSEWHERE, pieces / "unpack.py", *ON_CPU]
    process = subprocess.Popen(
        [*command, "--into", tmp_path / "there", "--results", kept],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    rows = kept / "doctor.jsonl"
    try:
        eventually(lambda: rows.exists() and "\n" in rows.read_text())
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert json.loads(rows.read_text().splitlines()[0])["doctor"]
    before = json.loads((kept / "gpu-check.json").read_text())["steps"]
    assert [step["step"] for step in before] == ["machine", "bundles", "refusals"]
    done = _run(pieces, tmp_path / "there", *ON_CPU)
    assert done.returncode == 0, done.stdout + done.stderr
    after = json.loads((tmp_path / "there/results/gpu-check.json").read_text())["steps"]
    assert after[1:3] == before[1:]
    assert [step["step"] for step in after] == [step.name for step in STEPS]
    found = {step["step"]: step["rows"] for step in after}
    assert all(found.values())
    assert [row["graphs"] for row in found["bundles"]] == ["there already"]
    assert {row["within"] for row in found["parity"]} == {"yes"}
    assert [row["precision"] for row in found["parity"]] == ["fp16", "fp32", "fp16"]
    cells = [(row["graph"], row["tokens"], row["texts"]) for row in found["speed"]]
    graphs = ("tiny, flat", "tiny, padded")
    assert cells == [(graph, *cell) for graph in graphs for cell in product((8, 16), (1, 4))]
    assert all(row["TFLOP/s"] > 0 for row in found["speed"])
    assert {row["labels changed"] for row in found["independence"]} == {0}
    assert [row["shapes"] for row in found["new_shapes"]] == [TINY.new_shapes]
    assert {row.get("not 200", 0) for row in found["service"]} == {0}
    page = (tmp_path / "there/results/gpu-check.md").read_text()
    assert all(f"## {step.title}" in page for step in STEPS)


@pytest.mark.parametrize("fault", ["missing", "damaged", "python"])
def test_a_fault_is_said_before_anything_runs(pieces: Path, tmp_path: Path, fault: str) -> None:
    """A piece that is missing or was cut, and another Python, are named."""
    brought = tmp_path / "brought"
    brought.mkdir()
    for file in pieces.iterdir():
        (brought / file.name).hardlink_to(file)
    manifest = json.loads((pieces / "pieces.json").read_text())
    changed = brought / ("pieces.json" if fault == "python" else "piece.001")
    changed.unlink()
    if fault == "damaged":
        changed.write_bytes(b"cut")
    if fault == "python":
        changed.write_text(json.dumps(manifest | {"python": "3.99"}))
    done = _run(brought, tmp_path / "there")
    expected = "packed for Python 3.99" if fault == "python" else f"piece.001 is {fault}"
    assert done.returncode == 2
    assert expected in done.stderr
    assert not (tmp_path / "there").exists()


def test_weights_spread_as_those_of_the_checkpoint(tmp_path: Path) -> None:
    """Each has its number type and its spread, one after another in the file."""
    missing = {"model.onnx": [["a", "float32", 10_000, 0.5], ["b", "float16", 10_000, 2.0]]}
    (tmp_path / WEIGHTS).write_text(json.dumps(missing))
    fill(tmp_path)
    data = (tmp_path / "model.onnx_data").read_bytes()
    single, half = np.frombuffer(data, np.float32, 10_000), np.frombuffer(data[40_000:], np.float16)
    assert half.size == 10_000
    assert (single.std(), half.std(dtype=float)) == pytest.approx((0.5, 2.0), rel=0.05)


def test_the_packages_are_those_for_gpus() -> None:
    """The package for GPUs has the version of the one for CPUs; there are none of the exporter."""
    versions = dict(line.split("==") for line in requirements())
    assert {"onnxruntime-gpu", "nvidia-ml-py", "uvicorn"} <= set(versions)
    assert not {"onnxruntime", "torch", "transformers", "onnx", "pytest"} & set(versions)


def test_machine_code_of_other_gpus_is_emptied(tmp_path: Path) -> None:
    """Only the code for one capability stays; nothing moves, and other bytes do not change."""
    codes = [(2, 80, b"for A100"), (2, 90, b"for H100"), (1, 90, b"as PTX")]
    entries = b"".join(
        ENTRY.pack(kind, 1, 64, len(code), capability).ljust(64, b"\0") + code
        for kind, capability, code in codes
    )
    container = CONTAINER.pack(*struct.unpack("<I", MAGIC), 1, 16, len(entries)) + entries
    library = tmp_path / "library.so"
    too_long = CONTAINER.pack(*struct.unpack("<I", MAGIC), 1, 16, 64)
    too_long += ENTRY.pack(2, 1, 64, 10, 80).ljust(64, b"\0")  # ends behind its container
    chance = MAGIC + b"by chance" + too_long
    library.write_bytes(b"before" + container + chance + container + b"after")
    before = library.read_bytes()
    assert slim(library, 90) == {80: 16, 90: 16}
    expected = before.replace(b"for A100", bytes(8)).replace(b"as PTX", bytes(6))
    assert library.read_bytes() == expected
