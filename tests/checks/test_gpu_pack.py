"""What brings ``checks.gpu`` to a machine without network: packing, unpacking, running."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from checks.gpu.pack import pack, requirements
from checks.gpu.slim import slim
from checks.support.fatbin import CONTAINER, ENTRY, MAGIC
from tests.support.serving import run_program

PYTHON = ".".join(map(str, sys.version_info[:2]))
# What this environment was made from. It has none of the packages.
PYTHON_ELSEWHERE = str(Path(sys.base_prefix, "bin", f"python{PYTHON}"))
PIECE_BYTES = 10 * 2**20


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pieces. In the place of unpacked wheels, they name the packages of this environment."""
    base = tmp_path_factory.mktemp("packed")
    site = base / "site"
    site.mkdir()
    here = [path for path in sys.path if path.endswith("site-packages")]
    (site / "sitecustomize.py").write_text(f"import sys\nsys.path += {here!r}\n")
    assert len(pack(base / "pieces", site, PYTHON, PIECE_BYTES)) > 1
    return base / "pieces"


def _run(pieces: Path, into: Path, *flags: str) -> "subprocess.CompletedProcess[str]":
    """Run it in an empty directory, with another Python."""
    command: list[str | Path] = [PYTHON_ELSEWHERE, pieces / "unpack.py", "--into", into, *flags]
    return run_program(*command, cwd=into.parent, timeout_s=120)


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
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there"]


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


def test_the_packages_are_those_for_gpus() -> None:
    """The package for GPUs has the version of the one for CPUs; PyTorch is there already."""
    versions = dict(line.split("==") for line in requirements())
    assert {"onnxruntime-gpu", "nvidia-ml-py", "transformers", "uvicorn"} <= set(versions)
    assert not {"onnxruntime", "torch", "pytest"} & set(versions)


def test_machine_code_of_other_gpus_is_emptied(tmp_path: Path) -> None:
    """Only the code for one capability stays; nothing moves, and other bytes do not change."""
    codes = [(2, 80, b"for A100"), (2, 90, b"for H100"), (1, 90, b"as PTX")]
    entries = b"".join(
        ENTRY.pack(kind, 1, 64, len(code), capability).ljust(64, b"\0") + code
        for kind, capability, code in codes
    )
    container = CONTAINER.pack(*struct.unpack("<I", MAGIC), 1, 16, len(entries)) + entries
    library = tmp_path / "library.so"
    library.write_bytes(b"before" + container + MAGIC + b"by chance" + container + b"after")
    before = library.read_bytes()
    assert slim(library, 90) == {80: 16, 90: 16}
    expected = before.replace(b"for A100", bytes(8)).replace(b"as PTX", bytes(6))
    assert library.read_bytes() == expected
