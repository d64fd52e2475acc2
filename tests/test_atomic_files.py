"""Directories are written completely or not at all; remains of killed exports are removed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sentiment_service.atomic_files import atomic_directory
from sentiment_service.errors import UserError

ROOT = Path(__file__).parents[1]

_HOLDS = """
import sys
from pathlib import Path
from sentiment_service.atomic_files import atomic_directory
with atomic_directory(Path(sys.argv[1])) as directory:
    (directory / "half").write_text("written")
    print(directory.name, flush=True)
    sys.stdin.read()
"""


def _start(output: Path) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDS, str(output)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def _fill(output: Path, content: str) -> None:
    with atomic_directory(output) as directory:
        (directory / "file").write_text(content)


def test_what_a_killed_export_left_goes_with_the_next(tmp_path: Path) -> None:
    """Hundreds of megabytes do not pile up in hidden directories."""
    output = tmp_path / "out"
    process, name = _start(output)
    process.kill()
    process.communicate()
    assert (tmp_path / name / "half").is_file()
    assert not output.exists()
    _fill(output, "next")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_export_at_work_is_left_alone(tmp_path: Path) -> None:
    """Of two at once to the same place, the later is refused, and the first loses nothing."""
    output = tmp_path / "out"
    process, name = _start(output)
    with pytest.raises(UserError, match=f"another command is writing to {output}; wait"):
        _fill(output, "next")
    assert (tmp_path / name / "half").read_text() == "written"
    process.communicate(input="")
    assert process.returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in output.iterdir()] == ["half"]


def test_killed_between_the_renames(tmp_path: Path) -> None:
    """The old bundle, moved aside for one that never came, is not lost when the next fails."""
    output = tmp_path / "out"
    aside = tmp_path / ".out.old"
    aside.mkdir()
    (aside / "file").write_text("old")
    with pytest.raises(ValueError, match="fails"), atomic_directory(output):
        raise ValueError("fails")
    assert (output / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_old_one_that_was_replaced_is_removed(tmp_path: Path) -> None:
    """Killed after the second rename, only the new one counts."""
    output = tmp_path / "out"
    _fill(output, "new")
    (tmp_path / ".out.old").mkdir()
    _fill(output, "newer")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_name_that_is_kept_leads_to_whole_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All files are on the disk before the name is: a power failure leaves all or nothing."""
    synced: list[str] = []
    output = tmp_path / "out"

    def fsync(descriptor: int) -> None:
        assert not output.exists()
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    monkeypatch.setattr(os, "fsync", fsync)
    with atomic_directory(output) as directory:
        (directory / "onnx").mkdir()
        (directory / "onnx" / "model.onnx").write_text("weights")
    assert synced == ["onnx", "model.onnx", directory.name]


@pytest.mark.parametrize("suffix", [".partial", ".old"])
def test_neighbours_are_no_leftovers(tmp_path: Path, suffix: str) -> None:
    """Directories with similar names stay, also those that exports to other outputs left."""
    names = ["out-2", f".out-2{suffix}", f".other{suffix}", f"out{suffix}"]
    for name in names:
        (tmp_path / name).mkdir()
    _fill(tmp_path / "out", "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names, "out"])
