"""Runs a command on a disk that has too little room for what it writes."""

import os
import subprocess
from pathlib import Path

import pytest

_SCRIPT = """
mount -t tmpfs -o size="$0" tmpfs "$1" && cd "$1" || exit 99
shift
"$@"
code=$?
echo "left behind: $(ls -A)"
exit $code
"""


def run_on_small_disk(
    directory: Path, kilobytes: int, *command: str | Path
) -> subprocess.CompletedProcess[str]:
    """Run the command in an empty disk of this size, mounted at a new directory for it alone.

    The last line of its standard output names the files that it left there.
    """
    directory.mkdir()
    unshared = ["unshare", "--mount", "--map-root-user", "sh", "-c", _SCRIPT, f"{kilobytes}k"]
    run = subprocess.run(
        [*unshared, directory, *command],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode == 99 or "unshare failed" in run.stderr:
        pytest.skip(f"this system lets no test mount a disk: {run.stderr.strip()}")
    return run
