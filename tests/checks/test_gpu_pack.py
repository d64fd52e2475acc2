"""What brings ``checks.gpu`` to a machine without network: packing, unpacking, running."""

import json
import os
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from checks.gpu.graphs import fill, make
from checks.gpu.pack import pack
from checks.gpu.run_steps import STEPS
from checks.gpu.setup import TINY, Setup
from tests.support.serving import eventually, run_program

pytestmark = pytest.mark.beside

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
    make(setup)
    fill(setup.bundle)  # as after an earlier check here
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
